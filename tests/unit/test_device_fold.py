"""Changes of the state by each fact about a device.

The node decides on its health and operators on its service, and neither undoes the other.
"""

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.life.gpu_life import shown
from libs.common.model import AttemptRef, GpuId, JobId, NodeId
from libs.common.state.device import ERRORS_KEPT, Control, GpuView
from tests.history import History, begun, faulted, recovered

ONE = GpuId("n1g1")


def device(history: History) -> GpuView:
    return history.cluster.gpus[ONE]


def service(word: str, uuid: str = "n1g1") -> f.GpuServiceSet:
    return f.GpuServiceSet(uuid=GpuId(uuid), service=word, user="ada")


def error(name: str = "n1", number: int = 31) -> f.GpuErrorSeen:
    jobs = (AttemptRef(JobId("j"), 1),)
    return f.GpuErrorSeen(
        node_id=NodeId(name),
        uuid=ONE,
        error=f"xid {number}",
        verdict="restart_job",
        source="driver",
        jobs=jobs,
    )


def test_a_worse_cause_and_a_better_one_both_count_when_they_are_said() -> None:
    history = begun()
    for health in (
        "degraded",
        "offline",
        "offline",
        "degraded",
        "resetting",
        "resetting",
        "offline",
        "resetting",
        "degraded",
    ):
        assert history.say(faulted("n1", "n1g1", health))
        assert device(history).health == health
    assert history.say(recovered("n1", "n1g1"))
    assert (device(history).takes_work, device(history).reason, device(history).verdict) == (
        True,
        "",
        "",
    )


def test_fault_stores_its_verdict() -> None:
    history = begun()
    fault = f.GpuFaulted(
        node_id=NodeId("n1"),
        uuid=ONE,
        health="offline",
        reason="xid",
        verdict="reset",
        source="kernel_log",
    )
    assert history.say(fault)
    assert (device(history).verdict, device(history).takes_work, device(history).away) == (
        "reset",
        False,
        "xid",
    )


def test_work_is_let_onto_a_device_by_its_health_and_by_its_service() -> None:
    history = begun()
    assert history.say(service("draining"))
    assert (device(history).takes_work, device(history).away) == (False, "draining")
    assert history.say(faulted("n1", "n1g1", "offline"), service("online"))
    assert (device(history).takes_work, device(history).away) == (False, "xid")
    assert history.say(recovered("n1", "n1g1"))
    assert device(history).takes_work
    assert history.say(service("offline"), recovered("n1", "n1g1")) is False
    assert not device(history).takes_work


def test_degraded_device_takes_work_and_a_vanished_one_does_not() -> None:
    history = begun()
    assert history.say(faulted("n1", "n1g1"))
    assert device(history).takes_work
    device(history).present = False
    assert (device(history).takes_work, device(history).away) == (False, "lost")


@pytest.mark.parametrize(
    "fact", [service("sad"), service("offline", "none"), error("n2"), recovered("n2", "n1g1")]
)
def test_unknown_service_and_device_of_another_node_are_ignored(
    fact: f.GpuServiceSet | f.GpuErrorSeen,
) -> None:
    assert not begun(nodes=2).say(fact)


def test_the_last_errors_of_a_device_are_kept_with_the_jobs_that_had_it() -> None:
    history = begun()
    assert history.say(*(error(number=number) for number in range(ERRORS_KEPT + 3)))
    kept = device(history).errors
    assert [each.error for each in kept] == [
        f"xid {number}" for number in range(3, ERRORS_KEPT + 3)
    ]
    assert kept[0].jobs == (AttemptRef(JobId("j"), 1),)
    assert device(history).takes_work


@pytest.mark.parametrize(
    ("health", "reason", "word", "seen"),
    [
        ("healthy", "", "draining", "MAINTENANCE"),
        ("offline", "xid", "online", "OFFLINE"),
        ("offline", "quarantined", "offline", "ERROR"),
    ],
)
def test_the_word_for_people_names_maintenance_but_not_over_a_quarantine(
    health: str, reason: str, word: str, seen: str
) -> None:
    assert shown("available", health, reason, word) == seen


def test_agent_with_another_directory_reports_health_again() -> None:
    for tells in (True, False):
        history = begun()
        first = f.NodeRegistered(
            node_id=NodeId("n1"),
            incarnation=2,
            address="",
            gpus=(device(history).gpu,),
            directory="one",
        )
        last = replace(first, incarnation=3, directory="other", tells_health=tells)
        assert history.say(first, faulted("n1", "n1g1", "offline"), last)
        assert device(history).health == ("healthy" if tells else "offline")


def wish(value: str, control: str = "power") -> f.GpuControlRequested:
    return f.GpuControlRequested(uuid=ONE, control=control, value=value, user="ada")


def became(value: str, request: int, outcome: str = "done", node: str = "n1") -> f.GpuControlled:
    said = {
        "control": "power",
        "value": value,
        "request": request,
        "outcome": outcome,
        "detail": outcome,
    }
    return f.GpuControlled(node_id=NodeId(node), uuid=ONE, **said)  # type: ignore[arg-type]


def test_last_request_counts_and_the_node_reports_the_value_in_force() -> None:
    history = begun()
    assert history.say(wish("300"))
    first = history.cluster.seq
    assert device(history).controls == {"power": Control("300", first, "ada")}
    assert history.say(wish("400"), became("300", first))
    second = history.cluster.seq - 1
    assert device(history).controls == {"power": Control("400", second, "ada", in_force="300")}
    assert history.say(became("400", second, "failed"))
    assert device(history).controls == {
        "power": Control(
            value="400",
            request=second,
            user="ada",
            outcome="failed",
            detail="failed",
            in_force="300",
        )
    }
    assert history.say(became("400", second))
    assert device(history).controls["power"].in_force == "400"


def test_own_action_of_a_node_is_shown_beside_the_request() -> None:
    history = begun()
    assert history.say(became("200", 0))
    assert device(history).controls == {
        "power": Control(outcome="done", detail="done", in_force="200")
    }


def test_unknown_control_and_report_of_another_node_are_ignored() -> None:
    history = begun()
    for fact in (
        wish("red", "colour"),
        replace(wish("300"), uuid=GpuId("none")),
        became("300", 1, node="n2"),
    ):
        assert history.say(fact) is False
    assert device(history).controls == {}
