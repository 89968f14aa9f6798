"""Device controls in the agent's core.

Each control is set once, one at a time, and set again when it was lost. The log receives changes
only.
"""

from typing import Any

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.device_controls import hot_policy
from libs.common.messages import ControlOrder, Desired, Orders
from libs.common.model import GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import controls as dc
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import apply
from services.node_agent.core.devices import Trouble
from tests.given_devices import ended, erred, fault, gpus, left, node, others, recorded, resetting
from tests.given_node import EPOCH, GPU, INCARNATION, NODE, Node, ref

POWER = ControlOrder(GPU, "power", "300", 20)
CLOCKS = ControlOrder(GPU, "clocks", "1200-1500", 21)
RESET = ControlOrder(GPU, "reset", "", 22)
OTHER = GpuId("GPU-n-1")
ASKED = fault("reset_asked", "drain_then_reset", detail="it was asked for", source="operator")
BACK = f.GpuRecovered(node_id=NODE, uuid=GPU, checks={"reset": "done"})


def asked(made: Node, *orders: ControlOrder) -> list[a.Action]:
    return made.see(o.OrdersReceived(Orders(EPOCH, (), orders)))


def desired(made: Node, *orders: ControlOrder, seq: int = 50) -> list[a.Action]:
    return made.see(
        o.DesiredReceived(
            Desired(
                epoch=EPOCH, incarnation=INCARNATION, seq=seq, starts=(), stops=(), controls=orders
            )
        )
    )


def became(order: ControlOrder, outcome: str = "done", detail: str = "") -> o.DeviceControlled:
    return o.DeviceControlled(replace(order, outcome=outcome, detail=detail))


def said(order: ControlOrder, outcome: str = "done", detail: str = "") -> f.GpuControlled:
    fields: dict[str, Any] = {
        "control": order.control,
        "value": order.value,
        "request": order.request,
    }
    return f.GpuControlled(node_id=NODE, uuid=order.uuid, outcome=outcome, detail=detail, **fields)


def test_control_is_carried_out_once_and_its_outcome_is_recorded() -> None:
    made = node()
    assert asked(made, POWER) == [a.ControlDevice(POWER)]
    assert asked(made, POWER) == []
    assert made.see(became(POWER, "denied", "no permission")) == [
        a.Record((said(POWER, "denied", "no permission"),), ())
    ]
    assert desired(made, POWER) == []


def test_one_control_at_a_time_per_device_while_other_devices_go_on() -> None:
    made, other = node(), replace(POWER, uuid=OTHER)
    assert asked(made, POWER, CLOCKS, other) == [a.ControlDevice(POWER), a.ControlDevice(other)]
    assert others(made.see(became(POWER))) == [a.ControlDevice(CLOCKS)]


def test_newest_control_counts_and_a_late_older_one_is_ignored() -> None:
    made, later = node(), replace(POWER, value="400", request=30)
    asked(made, POWER)
    assert asked(made, later) == []
    did = made.see(became(POWER))
    assert (others(did), recorded(did)) == (
        [a.ControlDevice(replace(later, in_force="300"))],
        [said(POWER)],
    )
    assert asked(made, POWER) == []


def test_the_digest_tells_that_a_wish_is_missing_and_the_full_state_brings_it() -> None:
    made, before = node(), s.local_digest(node().state)
    asked(made, POWER)
    assert s.local_digest(made.state) != before
    made.lease(digest="with the clocks too")
    assert a.AskDesired() in made.later(10**9)
    assert a.ControlDevice(CLOCKS) not in desired(made, POWER, CLOCKS)
    assert a.ControlDevice(CLOCKS) in made.see(became(POWER))


def test_next_agent_restores_lasting_settings_without_recording_them_again() -> None:
    made = node()
    known = [
        replace(order, outcome="done", in_force=order.value)
        for order in (POWER, replace(CLOCKS, value=""), RESET)
    ]
    assert desired(made, *known) == [a.ControlDevice(known[0])]
    assert made.see(became(known[0])) == []


def test_setting_that_cannot_be_restored_is_recorded() -> None:
    made, known = node(), replace(POWER, outcome="done", in_force="300")
    desired(made, known)
    assert recorded(made.see(became(known, "failed", "no"))) == [said(POWER, "failed", "no")]


def test_withdrawn_control_is_forgotten_and_a_newer_one_stays() -> None:
    made = node()
    asked(made, POWER, replace(CLOCKS, request=60), replace(RESET, uuid=OTHER))
    desired(made)
    assert list(made.state.controls.wishes) == [(GPU, "clocks")]
    assert recorded(made.see(became(replace(POWER, request=7))))[0] == said(
        replace(POWER, request=7)
    )


def test_restarted_driver_gets_the_lasting_settings_again() -> None:
    made = node()
    asked(made, POWER)
    made.see(became(POWER))
    made.see(o.DeviceTroubleChanged(GPU, "driver_wedged", Trouble("offline", "hangs")))
    known = replace(POWER, outcome="done", in_force="300")
    assert others(made.see(o.DeviceTroubleChanged(GPU, "driver_wedged", None))) == [
        a.ControlDevice(known)
    ]
    assert made.see(o.DeviceTroubleChanged(GPU, "thermal", None)) == []


def test_a_requested_reset_waits_for_the_job_and_keeps_other_jobs_off() -> None:
    made = node().running()
    did = asked(made, RESET)
    assert (others(did), recorded(did)) == ([], [ASKED])
    ended(made)
    did = left(made)
    assert others(did) == [a.ResetDevice(GPU, "reset_asked"), a.ForgetJob(ref(), 0)]
    assert recorded(did) == [resetting("drain_then_reset")]
    assert recorded(made.see(o.DeviceReset(GPU, "", {"reset": "done"}))) == [BACK, said(RESET)]
    assert desired(made, replace(RESET, outcome="done")) == []


def test_reset_carries_the_lasting_settings_and_records_their_outcomes() -> None:
    made = node()
    asked(made, POWER)
    made.see(became(POWER))
    known = replace(POWER, outcome="done", in_force="300")
    assert others(asked(made, RESET)) == [a.ResetDevice(GPU, "reset_asked", (known,))]
    found = o.DeviceReset(
        GPU, "", {"reset": "done"}, controls=(replace(known, outcome="failed", detail="no"),)
    )
    assert recorded(made.see(found)) == [BACK, said(POWER, "failed", "no"), said(RESET)]


def test_a_device_that_cannot_be_reset_is_as_well_as_before() -> None:
    for refused, why in (
        ("lacking", "it cannot be reset: no tool"),
        ("denied", "no permission"),
        ("failed", "in use"),
    ):
        made = node()
        asked(made, RESET)
        assert recorded(made.see(o.DeviceReset(GPU, why, refused=refused))) == [
            f.GpuRecovered(node_id=NODE, uuid=GPU),
            said(RESET, refused, why),
        ]


def test_a_device_that_needs_a_reset_stays_bad_when_the_reset_is_refused_or_fails() -> None:
    made = node()
    made.see(erred("xid 46"))
    asked(made, RESET)
    broken = fault("reset_failed", "reboot_node", detail="in use", source="reset")
    assert recorded(made.see(o.DeviceReset(GPU, "in use", refused="failed"))) == [
        broken,
        said(RESET, "failed", "in use"),
    ]
    dead = node()
    asked(dead, RESET)
    did = dead.see(o.DeviceReset(GPU, "it does not answer after its reset"))
    gone = fault(
        "reset_failed", "reboot_node", detail="it does not answer after its reset", source="reset"
    )
    assert recorded(did) == [gone, said(RESET, "failed", "it does not answer after its reset")]
    assert others(did) == [] and dead.did() == []
    assert others(asked(dead, replace(RESET, request=30))) == [
        a.ResetDevice(GPU, "reset_failed, reset_asked")
    ]


def test_a_reset_that_was_under_way_answers_the_wish_that_came_meanwhile() -> None:
    made = node()
    made.see(erred("xid 46"))
    assert asked(made, POWER) == []
    apply(made.state, o.OrdersReceived(Orders(EPOCH, (), (RESET,))), made.now_ns)
    did = made.see(o.DeviceReset(GPU, "", {"reset": "done"}))
    assert (others(did), recorded(did)) == ([a.ControlDevice(POWER)], [BACK, said(RESET)])
    assert recorded(made.see(o.DeviceReset(GPU, ""))) == []


def test_the_breaker_holds_back_no_reset_that_an_operator_asked_for() -> None:
    made = node(2, breaker_percent=50)
    for uuid in (GPU, OTHER):
        made.see(erred("xid 48", uuid))
    made.see(o.DeviceReset(GPU, "", {}))
    made.see(erred("xid 46"))
    assert others(asked(made, RESET)) == [a.ResetDevice(GPU, "xid 46, reset_asked")]


def test_a_device_that_needs_a_boot_recovers_by_a_reset_that_proves_it_clean() -> None:
    made = node()
    made.see(erred("xid 79"))
    assert others(asked(made, RESET)) == [a.ResetDevice(GPU, "xid 79, reset_asked")]
    assert recorded(made.see(o.DeviceReset(GPU, "", {"reset": "done"}))) == [BACK, said(RESET)]
    assert made.state.devices.troubles == {}


def test_a_device_that_needs_a_boot_stays_lost_when_its_reset_proves_nothing() -> None:
    made = node()
    made.see(erred("xid 79"))
    asked(made, RESET)
    recorded(made.see(o.DeviceReset(GPU, "it does not answer after its reset")))
    assert set(made.state.devices.troubles[GPU]) == {"xid 79", "reset_failed"}


def test_a_device_is_never_set_and_reset_at_the_same_time() -> None:
    made = node()
    asked(made, POWER)
    assert others(asked(made, RESET)) == []
    assert others(made.see(became(POWER))) == [
        a.ResetDevice(GPU, "reset_asked", (replace(POWER, outcome="done", in_force="300"),))
    ]
    assert others(asked(made, CLOCKS)) == []


CARDS = [replace(gpu, power_mw=(200_000, 700_000), clocks_mhz=(210, 1980)) for gpu in gpus(2)]
COOLER = ControlOrder(GPU, "power", "420", 0)
HEAT = o.DeviceTroubleChanged(GPU, "thermal", Trouble("offline", "90 C"))
COOL = o.DeviceTroubleChanged(GPU, "thermal", None)


def governed(policy: str = "*=power:60") -> Node:
    """One whose policy for hot devices is this."""
    made = node()
    made.state.controls.policy = hot_policy(policy)
    dc.begin(made.state.controls, CARDS)
    return made


def power_facts(did: list[a.Action]) -> list[f.NodeFact]:
    return [fact for fact in recorded(did) if isinstance(fact, f.GpuControlled)]


def test_heat_policy_lowers_a_hot_device_and_releases_it_when_cool() -> None:
    made = governed()
    assert others(made.see(HEAT)) == [a.ControlDevice(COOLER)]
    assert made.see(HEAT) == []
    assert power_facts(made.see(became(COOLER))) == [said(COOLER, detail="it was too hot")]
    digest = s.local_digest(made.state)
    own = replace(COOLER, value="", outcome="done", detail="it was too hot", in_force="420")
    assert others(made.see(COOL)) == [a.ControlDevice(own)]
    assert made.see(COOL) == []
    assert power_facts(made.see(became(own))) == [said(own, detail="it is cool again")]
    assert s.local_digest(made.state) != digest


def test_operators_setting_returns_when_cool_and_a_stricter_one_stays() -> None:
    made, wish = governed("simulated=power:60,nvidia=clocks:50"), replace(POWER, value="600")
    asked(made, wish)
    made.see(became(wish))
    assert others(made.see(HEAT)) == [a.ControlDevice(COOLER)]
    assert power_facts(made.see(became(COOLER))) == [said(COOLER, detail="it was too hot")]
    later = replace(POWER, value="500", request=30, in_force="420")
    assert others(asked(made, later)) == [a.ControlDevice(COOLER)]
    assert power_facts(made.see(became(COOLER))) == []
    assert others(made.see(COOL)) == [a.ControlDevice(later)]
    assert power_facts(made.see(became(later))) == [said(later)]
    assert others(made.see(HEAT)) == [a.ControlDevice(COOLER)]
    made.see(became(COOLER))
    strict = replace(POWER, request=40, in_force="420")
    assert others(asked(made, strict)) == [a.ControlDevice(strict)]


def test_reset_of_a_hot_device_restores_the_heat_policys_setting() -> None:
    made = governed("simulated=clocks:50")
    cooler = ControlOrder(GPU, "clocks", "210-990", 0)
    assert others(made.see(HEAT)) == [a.ControlDevice(cooler)]
    made.see(became(cooler))
    assert others(asked(made, POWER)) == [a.ControlDevice(POWER)]
    made.see(became(POWER))
    (did,) = others(asked(made, RESET))
    assert isinstance(did, a.ResetDevice)
    assert [(each.control, each.value) for each in did.controls] == [
        ("clocks", "210-990"),
        ("power", "300"),
    ]


def test_next_agent_releases_the_heat_settings_of_the_previous_one() -> None:
    made = node()
    left_over = ControlOrder(
        uuid=GPU,
        control="power",
        value="",
        request=0,
        outcome="done",
        detail="it was too hot",
        in_force="420",
    )
    assert desired(made, left_over) == [a.ControlDevice(left_over)]
    assert power_facts(made.see(became(replace(left_over, detail="")))) == [
        said(left_over, detail="it is cool again")
    ]


def test_device_without_a_policy_or_a_known_range_is_left_alone() -> None:
    for policy, cards in (
        ("nvidia=power:60", CARDS),
        ("*=power:60", gpus(2)),
        ("*=clocks:60", gpus(2)),
    ):
        made = node()
        made.state.controls.policy = hot_policy(policy)
        dc.begin(made.state.controls, cards)
        assert others(made.see(HEAT)) == [] and made.state.controls.hot == {}


def test_unknown_control_is_passed_to_the_driver_to_be_refused() -> None:
    made, strange = node(), ControlOrder(GPU, "colour", "red", 40)
    assert asked(made, strange) == [a.ControlDevice(strange)]
    known = replace(strange, outcome="lacking", detail="old")
    made = node()
    assert desired(made, known) == [a.ControlDevice(known)]
    assert made.see(became(known, "lacking", "old")) == []
