"""Modes that divide devices, in the agent's core.

A change of mode needs a free card, and afterwards the node registers other devices.
"""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.messages import ControlOrder, StartOrder
from libs.common.model import MIG, GpuHold, GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.controls import Key
from services.node_agent.core.decide import next_due_ns
from services.node_agent.devices.attempts import slices_of_others
from tests.given_devices import ended, fault, left, node, others, recorded
from tests.given_node import GPU, INCARNATION, NODE, Node, ref, start
from tests.unit.test_agent_controls import OTHER, POWER, asked, became, desired, said

ON = ControlOrder(GPU, "mig", "on", 30)
PART = GpuId(f"{GPU}.1")
CPX = ControlOrder(GPU, "compute-partition", "CPX", 31)
STORED = o.FactsStored(40, ())
AGAIN = a.RegisterAgain("its devices have changed")


def with_modes(made: Node, **modes: str) -> Node:
    found: dict[Key, str] = {
        (GPU, control.replace("_", "-")): mode for control, mode in modes.items()
    }
    made.state.controls.modes = found
    return made


def waits(order: ControlOrder, uuid: GpuId = GPU) -> f.GpuFaulted:
    return fault(
        f"{order.control}_asked", "", uuid=uuid, detail="it was asked for", source="operator"
    )


def test_mode_change_waits_for_a_free_device_and_keeps_new_work_off() -> None:
    made = with_modes(node(), mig="off").running()
    did = asked(made, ON)
    assert (others(did), recorded(did)) == ([], [waits(ON)])
    ended(made)
    assert others(left(made)) == [a.ControlDevice(ON), a.ForgetJob(ref(), 0)]
    assert recorded(made.see(became(ON))) == [f.GpuRecovered(node_id=NODE, uuid=GPU), said(ON)]


def test_a_device_that_is_so_already_is_not_waited_for() -> None:
    made = with_modes(node(), mig="on").running()
    assert recorded(asked(made, ON)) == [said(ON)]
    off = with_modes(node(), mig="off").running()
    assert recorded(asked(off, replace(ON, value=""))) == [said(replace(ON, value=""))]


def test_the_next_agent_sets_only_the_modes_that_were_lost() -> None:
    for outcome, mode, did in (
        ("done", "on", []),
        ("lacking", "off", []),
        ("done", "off", [a.ControlDevice(replace(ON, outcome="done"))]),
    ):
        made = with_modes(node(), mig=mode)
        assert others(
            desired(made, replace(ON, outcome=outcome, in_force="on" if outcome == "done" else ""))
        ) == [replace(each, order=replace(each.order, in_force="on")) for each in did]


def test_changed_devices_are_registered_before_facts_about_them() -> None:
    made = with_modes(node(), mig="off")
    asked(made, ON)
    made.see(STORED)
    assert made.see(o.DevicesListed({(GPU, "mig"): "on"}, True), became(ON)) == [AGAIN]
    did = made.did()
    assert recorded(did) == [f.GpuRecovered(node_id=NODE, uuid=GPU), said(ON)] and AGAIN not in did
    assert made.state.controls.modes == {(GPU, "mig"): "on"}


def test_an_agent_registers_after_its_earlier_facts_are_stored() -> None:
    made = with_modes(node(), mig="off").running()
    made.see(STORED)
    asked(made, ON)
    ended(made)
    assert others(left(made)) == [a.ControlDevice(ON), a.ForgetJob(ref(), 0)]
    assert made.state.unstored > 0
    waiting = made.see(o.DevicesListed({(GPU, "mig"): "on"}, True), became(ON))
    assert (recorded(waiting), AGAIN in waiting, next_due_ns(made.state)) == ([], False, None)
    while made.state.unstored > 1:
        assert AGAIN not in made.see(STORED)
    assert made.see(STORED) == [AGAIN]


def test_devices_that_are_the_same_are_not_registered_again_nor_those_of_a_lost_node() -> None:
    made = node()
    assert made.see(o.DevicesListed({}, False)) == []
    made.lease(verdict="lost", lease_ms=0)
    assert AGAIN not in made.see(o.DevicesListed({}, True))


def test_all_parts_of_a_card_are_kept_free_for_it_and_told_one_thing_at_a_time() -> None:
    made = node()
    made.state.controls.modes = {
        (GPU, CPX.control): "SPX",
        (PART, CPX.control): "SPX",
        (OTHER, CPX.control): "SPX",
    }
    order = replace(start(), gpus=(GpuHold(PART),))
    made.orders(order)
    made.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 5, 1))
    did = asked(made, CPX)
    assert (others(did), recorded(did)) == ([], [waits(CPX), waits(CPX, PART)])
    assert asked(made, replace(POWER, uuid=OTHER)) == [a.ControlDevice(replace(POWER, uuid=OTHER))]
    free = node()
    assert others(asked(free, CPX, replace(POWER, uuid=PART))) == [a.ControlDevice(CPX)]


def test_the_other_parts_of_a_card_that_is_divided_no_more_are_told_nothing() -> None:
    made, whole = node(), replace(CPX, value="")
    made.state.controls.modes = {(GPU, CPX.control): "CPX", (PART, CPX.control): "CPX"}
    assert others(asked(made, whole, replace(whole, uuid=PART))) == [a.ControlDevice(whole)]
    made.see(STORED)
    made.see(o.DevicesListed({(GPU, CPX.control): "SPX"}, True), became(whole))
    did = made.did()
    assert others(did) == [] and {
        fact for fact in recorded(did) if isinstance(fact, f.GpuControlled)
    } == {
        said(whole),
        said(replace(whole, uuid=PART)),
    }


def test_a_device_that_came_to_be_so_while_it_was_waited_for_takes_work_again() -> None:
    made = with_modes(node(), mig="off").running()
    assert recorded(desired(made, replace(ON, outcome="done", in_force="on"))) == [waits(ON)]
    assert recorded(made.see(o.DevicesListed({(GPU, "mig"): "on"}, False))) == [
        f.GpuRecovered(node_id=NODE, uuid=GPU)
    ]


def test_settings_of_a_card_are_restored_after_its_mode_changes() -> None:
    for outcome, put_back in (
        ("done", True),
        ("failed", True),
        ("lacking", False),
        ("denied", False),
    ):
        made = with_modes(node(), mig="off")
        asked(made, POWER)
        made.see(became(POWER))
        asked(made, ON)
        did = made.see(
            o.DevicesListed({(GPU, "mig"): "on" if outcome == "done" else "off"}, False),
            became(ON, outcome),
        )
        known = replace(POWER, outcome="done", in_force="300")
        assert others(did) == ([a.ControlDevice(known)] if put_back else [])
        assert [
            each for each in recorded(made.see(became(known))) if isinstance(each, f.GpuControlled)
        ] == []


def test_a_card_is_reset_once_at_a_time_and_its_other_parts_take_no_work_meanwhile() -> None:
    made = node()
    made.state.controls.modes = {
        (GPU, CPX.control): "CPX",
        (PART, CPX.control): "CPX",
        (OTHER, CPX.control): "CPX",
    }
    reset = ControlOrder(GPU, "reset", "", 40)
    did = asked(made, reset, replace(reset, uuid=PART))
    assert others(did) == [a.ResetDevice(GPU, "reset_asked")]
    assert [
        (fact.uuid, fact.health) for fact in recorded(did) if isinstance(fact, f.GpuFaulted)
    ] == [
        (GPU, "resetting"),
        (PART, "resetting"),
    ]
    made.orders(replace(start(), gpus=(GpuHold(PART),)))
    assert made.state.attempts["j.1"].refusal == "a GPU of it is away: reset"
    assert asked(made, replace(POWER, uuid=PART)) == []
    did = made.see(o.DeviceReset(GPU, "", {"reset": "done"}))
    power = replace(POWER, uuid=PART)
    assert (others(did), recorded(did)[-1]) == ([a.ControlDevice(power)], said(reset))
    known = replace(power, outcome="done", in_force="300")
    assert others(made.see(became(power))) == [a.ResetDevice(PART, "reset_asked", (known,))]
    did = made.see(o.DeviceReset(PART, "", {"reset": "done"}, controls=(known,)))
    assert [fact.uuid for fact in recorded(did) if isinstance(fact, f.GpuRecovered)] == [GPU, PART]
    assert others(asked(made, replace(reset, request=41))) == [a.ResetDevice(GPU, "reset_asked")]
    assert others(made.see(o.DeviceReset(GPU, "", {"reset": "done"}))) == [a.ControlDevice(known)]


def test_of_a_card_that_was_not_reset_nothing_is_put_back_and_its_other_parts_take_work_again() -> (
    None
):
    made, reset = node(), ControlOrder(GPU, "reset", "", 40)
    made.state.controls.modes = {(GPU, CPX.control): "CPX", (PART, CPX.control): "CPX"}
    asked(made, replace(POWER, uuid=PART))
    made.see(became(replace(POWER, uuid=PART)))
    asked(made, reset)
    did = made.see(o.DeviceReset(GPU, "no permission", refused="denied"))
    assert others(did) == []
    assert [fact.uuid for fact in recorded(did) if isinstance(fact, f.GpuRecovered)] == [GPU, PART]


def test_attempts_own_their_card_slices_unless_they_were_refused() -> None:
    made = Node(adopted=(o.Adopted(ref("old"), 0, (GPU,), slices={GPU: 0b1}),))
    holds = (
        GpuHold(uuid=GPU, share=50, isolation=MIG, mig_profile="3g.40gb", mig_slices=0b1111_0000),
    )
    orders: list[StartOrder] = [
        replace(start(job), gpus=holds if job == "j" else (GpuHold(OTHER),)) for job in ("j", "k")
    ]
    made.orders(*orders)
    assert slices_of_others(made.state, "") == {GPU: 0b1111_0001}
    assert slices_of_others(made.state, "j.1") == {GPU: 0b1}
    made.see(o.LaunchFailed("j.1", "no room"))
    assert slices_of_others(made.state, "") == {GPU: 0b1}
    assert made.state.incarnation == INCARNATION
