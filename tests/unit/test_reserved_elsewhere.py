"""A job with reserved devices may start on other devices, but it delays no job before it."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from services.scheduler.state.state import State
from tests.given import ended, given, registered, waiting
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


def test_a_job_with_reserved_devices_waits_if_many_jobs_before_it_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert free_c(three_busy_nodes(GANG, **LASTS_50)) == [("later", ["c"])]
    state = three_busy_nodes(GANG, **LASTS_50)
    monkeypatch.setattr("services.scheduler.decide.placing.SCAN_MAX", 1)
    assert free_c(state) == []
