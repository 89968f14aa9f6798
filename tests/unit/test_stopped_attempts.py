"""An attempt that was stopped has not completed, even if its processes then exited with 0.

Decision 107.
"""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import job_life
from libs.common.model import Allocation, JobId, NodeId
from services.scheduler.state.state import State
from tests.given import (
    ended,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    waiting,
)
from tests.unit.scheduler_decisions import decisions, hear

J, K = JobId("j"), JobId("k")


def running(**fields: Any) -> State:
    """`j` runs on node a; `k` starts when `j` has completed."""
    state = given(registered("a"), waiting("j", **fields), placed("j", member("a", 0)))
    hear(state, started("j", "a"), *waiting("k", after=(("afterok", J),), gpus=4))
    return state


def stop(reason: str) -> f.JobStopOrdered:
    return f.JobStopOrdered(job_id=J, attempt=1, reason=reason, signal=15, grace_ms=10_000)


def first_after(state: State, *facts: AnyFact) -> AnyFact:
    """Return the scheduler's first decision after these facts and the release of `j`."""
    hear(state, *facts, released("j", "a"))
    return decisions(state)[0]


def requeued(reason: str) -> f.JobRequeued:
    return f.JobRequeued(job_id=J, attempt=1, reason=reason, counted=False)


def closed(outcome: str, reason: str, exit_code: int | None = None) -> f.JobClosed:
    return f.JobClosed(job_id=J, attempt=1, outcome=outcome, reason=reason, exit_code=exit_code)


COMPLETED = closed(job_life.COMPLETED, "", 0)


@pytest.mark.parametrize("reason", ["node_removed", "start_timeout", "preempted", "grown"])
def test_a_job_that_saves_and_exits_with_0_when_it_is_stopped_runs_again(reason: str) -> None:
    state = running()
    found = first_after(state, stop(reason), finished("j", "a", 0, reason="stopped"))
    assert found == requeued(reason)
    assert state.cluster.jobs[K].state == job_life.QUEUED


@pytest.mark.parametrize("reason", ["lease_expired", "supervisor_lost"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_exits_when_its_machine_tells_it_to_end_runs_again(
    reason: str, code: int
) -> None:
    assert first_after(running(), finished("j", "a", code, reason=reason)) == requeued(reason)


@pytest.mark.parametrize("reason", ["node_removed", "lease_expired"])
def test_without_requeue_such_a_job_fails(reason: str) -> None:
    state = running(requeue=False)
    if reason == "lease_expired":
        found = first_after(state, finished("j", "a", 0, reason=reason))
    else:
        found = first_after(state, stop(reason), finished("j", "a", 0, reason="stopped"))
    assert found == closed(job_life.FAILED, reason)


def test_a_job_that_exits_with_0_at_its_time_limit_fails_without_a_retry() -> None:
    state = running(time_limit_s=60, retries=3)
    found = first_after(state, finished("j", "a", 0, reason="time_limit"))
    assert found == closed(job_life.FAILED, "time_limit")
    assert state.cluster.jobs[K].state == job_life.CANCELLED


@pytest.mark.parametrize("before", ["", "preempted"])
def test_a_job_that_exits_with_0_when_it_is_cancelled_is_cancelled(before: str) -> None:
    state = running()
    hear(state, *([stop(before)] if before else []), f.CancelRequested(job_id=J))
    found = first_after(state, stop("cancelled"), finished("j", "a", 0, reason="stopped"))
    assert found == closed(job_life.CANCELLED, "cancelled")
    assert state.cluster.jobs[K].state == job_life.CANCELLED


@pytest.mark.parametrize("reason", ["", "node_removed", "cancelled", "preempted", "idle_gpus"])
def test_a_job_that_had_completed_before_its_stop_arrived_stays_completed(reason: str) -> None:
    state = running()
    if reason == "cancelled":
        hear(state, f.CancelRequested(job_id=J))
    stops = [stop(reason)] if reason else []
    assert first_after(state, *stops, finished("j", "a", 0)) == COMPLETED
    assert state.cluster.jobs[K].state == job_life.PLACED


@pytest.mark.parametrize("reason", ["node_removed", "preempted", "grown", "idle_gpus"])
def test_a_job_that_had_failed_before_its_stop_arrived_has_failed(reason: str) -> None:
    found = first_after(running(), stop(reason), finished("j", "a", 3))
    assert found == closed(job_life.FAILED, "failed", 3)
    again = first_after(running(retries=1), stop(reason), finished("j", "a", 3))
    assert again == f.JobRequeued(job_id=J, attempt=1, reason="failed", counted=True)


def test_a_job_at_its_time_limit_when_it_is_preempted_has_failed() -> None:
    found = first_after(
        running(time_limit_s=60), stop("preempted"), finished("j", "a", 0, reason="time_limit")
    )
    assert found == closed(job_life.FAILED, "time_limit")


def test_a_job_that_was_stopped_before_it_started_runs_again() -> None:
    history = (registered("a"), waiting("j"), placed("j", member("a", 0)), stop("preempted"))
    refused = f.JobRefused(job_id=J, attempt=1, node_id=NodeId("a"), reason="preempted")
    state = given(*history, refused)
    assert decisions(state)[0] == requeued("preempted")
    never = (finished("j", "a", None, reason="not_started"), released("j", "a"))
    assert decisions(given(*history, never))[0] == requeued("preempted")


def test_a_job_whose_device_erred_when_it_was_stopped_runs_again() -> None:
    for reason in ("preempted", "node_removed"):
        found = first_after(running(), stop(reason), finished("j", "a", 1, reason="gpu_error"))
        assert found == requeued(reason)


def test_a_gang_has_completed_only_if_no_member_was_stopped() -> None:
    gang = (
        registered("a"),
        registered("b"),
        waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "b"),
        ended("j", "a", 0),
        stop("node_removed"),
    )
    stopped: list[AnyFact] = [finished("j", "b", 0, reason="stopped"), released("j", "b")]
    assert decisions(given(*gang, stopped))[0] == requeued("node_removed")
    by_itself: list[AnyFact] = [finished("j", "b", 0), released("j", "b")]
    assert decisions(given(*gang, by_itself)) == [COMPLETED]


def test_an_allocation_whose_node_is_removed_has_failed() -> None:
    state = running(allocation=Allocation(90_000), requeue=False)
    found = first_after(state, stop("node_removed"), finished("j", "a", 0, reason="stopped"))
    assert found == closed(job_life.FAILED, "node_removed")


def test_a_stop_by_a_member_that_names_no_reason_is_a_failure() -> None:
    found = first_after(running(), finished("j", "a", 0, reason="stopped"))
    assert found == closed(job_life.FAILED, "failed")


@pytest.mark.parametrize("reason", ["lease_expired", "gpu_error", "stopped"])
def test_a_gang_is_stopped_when_one_member_was_cut_short_and_exited_with_0(reason: str) -> None:
    state = given(
        registered("a"),
        registered("b"),
        waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
    )
    hear(state, started("j", "a"), started("j", "b"), finished("j", "a", 0, reason=reason))
    order = decisions(state)[0]
    assert isinstance(order, f.JobStopOrdered) and order.reason == "gang_hurt"


def test_a_gang_goes_on_when_one_member_has_completed() -> None:
    state = given(
        registered("a"),
        registered("b"),
        waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
    )
    hear(state, started("j", "a"), started("j", "b"), finished("j", "a", 0))
    assert decisions(state) == []
