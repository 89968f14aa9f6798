"""A job with reserved devices may start on other devices, but it delays no job before it."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from services.scheduler.state.state import State
from tests.given import ended, given, registered, tell, waiting
from tests.unit.preemption_facts import running
from tests.unit.scheduler_decisions import decisions, hear
from tests.unit.test_backfill import LASTS_100, when_and_where

GIB = 1 << 30
# All running jobs are in the queue `busy`, so its waiting jobs rank behind those of `calm`.
BUSY: dict[str, Any] = {"queue": "busy", "preemptible": False}
LASTS_50 = LASTS_100 | {"time_limit_s": 30}
GANG = waiting("first", queue="calm", gpus=4, nodes=2, priority=10)


def three_busy_nodes(*more: AnyFact | list[AnyFact], **fields: Any) -> State:
    """Return a state in which devices of node a are reserved for the job `later`, whose victim
    still runs there. The jobs on b and c end after 100 s and after 50 s.
    """
    state = given(
        *(registered(name) for name in "abc"),
        running("victim", 0, 1, 2, 3, node="a", queue="busy"),
        running("long", 0, 1, 2, 3, node="b", **BUSY, **LASTS_100),
        running("short", 0, 1, 2, 3, node="c", **BUSY, **LASTS_50),
        *more,
        waiting("later", **{"queue": "busy", "gpus": 4, "priority": 90} | fields),
    )
    assert [fact.job_id for fact in decisions(state)] == ["later", "victim"]
    return state


def placed_now(state: State) -> list[tuple[str, list[str]]]:
    return [
        (fact.job_id, [member.node_id for member in fact.members])
        for fact in decisions(state, now_s=2)
        if isinstance(fact, f.JobPlaced)
    ]


def free_c(state: State) -> list[tuple[str, list[str]]]:
    """End the job on node c, and return the placements that follow."""
    hear(state, *ended("short", "c")[1:])
    return placed_now(state)


def test_a_job_with_reserved_devices_avoids_the_nodes_of_the_first_job() -> None:
    state = three_busy_nodes(GANG)
    assert free_c(state) == []
    assert when_and_where(state, "first") == (100, ["b", "c"])
    hear(state, *ended("victim", "a", None, signal=15, reason="stopped")[1:])
    assert placed_now(state)[0] == ("later", ["a"])
    assert when_and_where(state, "first") == (100, ["b", "c"])


def test_a_job_with_reserved_devices_that_ends_in_time_uses_the_nodes_of_the_first_job() -> None:
    assert free_c(three_busy_nodes(GANG, **LASTS_50)) == [("later", ["c"])]


def test_a_job_with_reserved_devices_goes_before_the_jobs_behind_it() -> None:
    same_queue = waiting("behind", queue="busy", gpus=4, nodes=2, priority=10)
    assert free_c(three_busy_nodes(same_queue)) == [("later", ["c"])]
    light = f.QueueSet(queue="calm", policy="priority", weight=1)
    heavy = f.QueueSet(queue="busy", policy="priority", weight=10_000)
    held = running("held", 0, node="d", queue="calm", preemptible=False)
    other_queue = [light, heavy, registered("d", 1), *held, *GANG]
    assert free_c(three_busy_nodes(other_queue)) == [("later", ["c"])]


def test_a_job_that_ranks_before_one_with_reserved_devices_starts_first() -> None:
    state = three_busy_nodes()
    hear(state, *waiting("small", queue="calm", gpus=3))
    assert free_c(state) == [("small", ["c"])]
    assert state.cluster.jobs[JobId("later")].preemption.reserved


def test_a_job_with_reserved_devices_passes_a_job_that_its_tenant_limit_keeps_waiting() -> None:
    """The limit allows the part of a large card, but not that of the card that is free."""
    large = registered("d", 1)
    large = replace(large, gpus=tuple(replace(gpu, memory_bytes=160 * GIB) for gpu in large.gpus))
    limit = f.TenantSet(tenant=TenantId("u"), max_gpu_share=50)
    limited = waiting("limited", queue="calm", tenant="u", gpu_memory_bytes=60 * GIB)
    full = running("full", 0, node="d", **BUSY)
    assert free_c(three_busy_nodes(large, full, limit, limited)) == [("later", ["c"])]


def test_a_job_with_reserved_devices_passes_no_first_job_of_a_queue_without_backfill() -> None:
    state = three_busy_nodes()
    hear(state, f.QueueSet(queue="calm", policy="fifo"), *GANG)
    assert free_c(state) == []


def test_the_share_that_is_reserved_for_a_job_counts_once_beside_the_first_job() -> None:
    """Both are of one tenant, whose limit is 23 GPUs: 12 are held, 3 reserved, and 8 wanted."""
    limit = f.TenantSet(tenant=TenantId("default"), max_gpu_share=2_300)
    state = three_busy_nodes(limit, GANG, gpus=3)
    hear(state, registered("d", 3))
    assert placed_now(state) == [("later", ["d"])]


def test_a_job_with_reserved_devices_borrows_nodes_before_a_later_job_of_its_queue() -> None:
    """A queue without backfill keeps its order on lent nodes too."""
    fifo = f.QueueSet(queue="busy", policy="fifo")
    first = waiting("first", queue="calm", gpus=4, nodes=2, priority=90)
    state = three_busy_nodes(fifo, first, preemptible=True)
    for fact in [
        *waiting("next", queue="busy", gpus=4, preemptible=True),
        *ended("short", "c")[1:],
    ]:
        state.refresh(tell(state.cluster, fact, seq=1_000))
    placed = next(fact for fact in decisions(state, now_s=2) if isinstance(fact, f.JobPlaced))
    assert (placed.job_id, placed.lender) == ("later", "first")


def test_a_job_with_reserved_devices_starts_nowhere_above_its_tenant_limit() -> None:
    state = three_busy_nodes()
    hear(state, f.TenantSet(tenant=TenantId("default"), max_gpu_share=1_100))
    assert free_c(state) == []
    assert state.cluster.jobs[JobId("later")].preemption.reserved
    hear(state, *ended("victim", "a", None, signal=15, reason="stopped")[1:])
    assert placed_now(state) == [("later", ["a"])]


@pytest.mark.parametrize(("scan_max", "tenants"), [(1, ["default"]), (4, ["default", "other"])])
def test_jobs_with_reserved_devices_share_the_bound_of_a_pass(
    monkeypatch: pytest.MonkeyPatch, scan_max: int, tenants: list[str]
) -> None:
    """Two kinds before it use up the pass, or its tenant's part of the pass."""
    history = [
        GANG,
        waiting("second", queue="calm", gpus=4, nodes=3, priority=10),
        *[waiting(f"of-{each}", queue="last", tenant=each, gpus=9) for each in tenants],
    ]
    assert free_c(three_busy_nodes(*history, **LASTS_50)) == [("later", ["c"])]
    state = three_busy_nodes(*history, **LASTS_50)
    monkeypatch.setattr("services.scheduler.decide.placing.SCAN_MAX", scan_max)
    assert free_c(state) == []


def test_many_jobs_with_reserved_devices_end_a_pass_in_an_empty_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = three_busy_nodes()
    assert not state.queue.waiting
    monkeypatch.setattr("services.scheduler.decide.placing.SCAN_MAX", 1)
    assert placed_now(state) == []
    assert free_c(state) == [("later", ["c"])]
