"""Texts about receipts and devices: clean only if every check says so, else with the holder."""

import pytest

from libs.common import facts as f
from libs.common.model import GpuId, JobId, NodeId
from services.api_gateway.views.history import summary
from tests.golden.examples import EXAMPLES

N, G, J = NodeId("n"), GpuId("GPU-n-0"), JobId("j")
CLEAN = {
    "processes": "gone",
    "devices": "free",
    "mps": "other jobs use it",
    "holders": "none",
    "scrub": "not done: no way",
}


def released(**checks: str) -> str:
    return summary(f.JobReleased(job_id=J, attempt=1, node_id=N, checks=checks))


def test_a_receipt_is_clean_when_every_check_says_so() -> None:
    assert released(**CLEAN) == "devices of attempt 1 on n proved clean"
    assert released() == "devices of attempt 1 on n proved clean"


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("devices", "held"),
        ("processes", "left: 4711"),
        ("container", "not known: it hangs"),
        ("scrub", "failed: 3"),
        ("mig", "not looked for: x"),
    ],
)
def test_a_receipt_with_one_check_that_failed_does_not_say_clean(check: str, said: str) -> None:
    assert (
        released(**{**CLEAN, check: said})
        == f"attempt 1 on n released, but its devices are not proved clean: {check} {said}"
    )


def test_a_quarantined_device_names_the_process_that_holds_it() -> None:
    fact = f.GpuFaulted(
        node_id=N,
        uuid=G,
        health="offline",
        reason="quarantined",
        detail="open in process 4711 python",
    )
    assert summary(fact) == "GPU GPU-n-0 on n is quarantined: open in process 4711 python"
    assert (
        summary(f.GpuFaulted(node_id=N, uuid=G, health="offline", reason="quarantined"))
        == "GPU GPU-n-0 on n is quarantined"
    )


@pytest.mark.parametrize("kind", f.KINDS)
def test_every_kind_of_fact_says_more_than_its_kind(kind: str) -> None:
    assert summary(next(fact for fact in EXAMPLES if f.kind_of(fact) == kind)) != kind


def test_a_reservation_shows_its_users_and_its_time() -> None:
    fact = f.ReservationSet(
        reservation="course",
        nodes=tuple(map(NodeId, "abcde")),
        start_ns=0,
        end_ns=10**9,
        users=("ada",),
    )
    assert summary(fact).startswith("reservation course for ada on a, b, c, d and 1 more, from ")
    assert (
        summary(f.ReservationCleared(reservation="course", user="ada"))
        == "reservation course removed by ada"
    )
    assert (
        summary(f.JobUpdated(job_id=J, time_limit_s=5, held=False))
        == "changed by an unknown user: time limit 5 s, released"
    )


def test_a_failed_device_shows_its_own_message() -> None:
    fact = f.GpuFaulted(
        node_id=N, uuid=G, health="offline", reason="xid 79", detail="fallen off the bus"
    )
    assert summary(fact) == "GPU GPU-n-0 on n is offline (xid 79: fallen off the bus)"
    assert (
        summary(f.GpuFaulted(node_id=N, uuid=G, health="resetting", reason="reset"))
        == "GPU GPU-n-0 on n is resetting (reset)"
    )
