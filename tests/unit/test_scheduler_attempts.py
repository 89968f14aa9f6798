"""The scheduler's rules about ends of attempts, jobs and nodes: each acts, refuses or waits."""

from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Allocation, AttemptRef, GpuHold, GpuId, JobId, Member, NodeId
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    ended,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    tell,
    waiting,
)
from tests.unit.scheduler_decisions import decisions


def test_a_job_whose_members_all_exited_with_0_is_completed() -> None:
    state = given(registered("a"), waiting("j"), placed("j", member("a", 0)), ended("j", "a"))
    assert decisions(state) == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="completed", exit_code=0)
    ]


def test_a_job_ends_only_after_its_devices_are_released() -> None:
    state = given(
        registered("a"),
        waiting("j"),
        placed("j", member("a", 0)),
        started("j", "a"),
        finished("j", "a"),
    )
    assert decisions(state) == []


def test_a_failed_attempt_uses_up_a_retry_and_then_the_job_fails() -> None:
    first = [*waiting("j", retries=1), placed("j", member("a", 0)), *ended("j", "a", 3)]
    again = f.JobRequeued(job_id=JobId("j"), attempt=1, reason="failed", counted=True)
    state = given(registered("a"), first)
    assert decisions(state) == [again, placed("j", member("a", 0), attempt=2, port=29_501)]
    second = given(
        registered("a"),
        first,
        again,
        placed("j", member("a", 0), attempt=2),
        ended("j", "a", 3, attempt=2),
    )
    assert decisions(second) == [
        f.JobClosed(job_id=JobId("j"), attempt=2, outcome="failed", reason="failed", exit_code=3)
    ]


def test_an_attempt_lost_with_its_node_is_placed_again_without_using_a_retry() -> None:
    history = [*waiting("j"), placed("j", member("a", 0)), started("j", "a")]
    state = given(registered("a"), registered("b"), history)
    assert decisions(state, silent=[(NodeId("a"), 1)]) == [
        f.NodeLost(node_id=NodeId("a"), incarnation=1, lost_ns=1_000_000_000),
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False),
        placed("j", member("b", 0), attempt=2, port=29_501),
    ]


def test_a_job_without_requeue_fails_with_its_node() -> None:
    history = [*waiting("j", requeue=False), placed("j", member("a", 0)), started("j", "a")]
    state = given(registered("a"), registered("b"), history)
    assert decisions(state, silent=[(NodeId("a"), 1)])[1:] == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="failed", reason="node_lost")
    ]


def test_a_gang_is_requeued_only_after_every_node_of_its_attempt_is_over() -> None:
    gang = [
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "a"),
        started("j", "b"),
    ]
    state = given(registered("a"), registered("b"), registered("c"), gang)
    said = decisions(state, silent=[(NodeId("a"), 1)])
    assert [type(fact) for fact in said] == [f.NodeLost, f.JobStopOrdered, f.DevicesReserved]
    assert said[1] == f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="gang_hurt", signal=15, grace_ms=10_000
    )


def test_a_silent_node_of_an_older_incarnation_is_not_lost() -> None:
    assert decisions(given(registered("a", incarnation=2)), silent=[(NodeId("a"), 1)]) == []


def test_a_lost_node_returns_after_it_registers_without_attempts() -> None:
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1, lost_ns=1_000_000_000)
    state = given(registered("a"), lost, registered("a", incarnation=2))
    assert decisions(state) == [f.NodeReturned(node_id=NodeId("a"), incarnation=2)]
    assert decisions(given(registered("a"), lost)) == []


def test_a_replaced_node_gets_no_jobs_until_its_former_incarnation_is_lost() -> None:
    began = [
        registered("a", directory="one"),
        *waiting("j", nodes=1),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    history = [*began, registered("a", incarnation=2, directory="other"), *waiting("next")]
    assert decisions(given(history)) == []
    assert decisions(given(history), silent=[(NodeId("a"), 2)]) == []
    assert decisions(given(history), silent=[(NodeId("a"), 1)])[:3] == [
        f.NodeLost(node_id=NodeId("a"), incarnation=1, reason="replaced"),
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False),
        f.NodeReturned(node_id=NodeId("a"), incarnation=2),
    ]


def test_a_lost_node_with_an_attempt_does_not_return_yet() -> None:
    history = [registered("a"), *waiting("j"), placed("j", member("a", 0)), started("j", "a")]
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1, lost_ns=1_000_000_000)
    ref = given(history).cluster.jobs[JobId("j")].ref
    state = given(history, lost, registered("a", incarnation=2, attempts=(ref,)))
    assert not any(isinstance(fact, f.NodeReturned) for fact in decisions(state))
    back = given(history, lost, registered("a", incarnation=2, attempts=(ref,)), released("j", "a"))
    assert f.NodeReturned(node_id=NodeId("a"), incarnation=2) in decisions(back)


def test_a_cancelled_job_that_waits_ends_at_once() -> None:
    state = given(waiting("j"), f.CancelRequested(job_id=JobId("j")))
    assert decisions(state) == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="cancelled", reason="cancelled")
    ]


def test_a_cancelled_running_job_is_stopped_once_and_again_for_a_shorter_grace() -> None:
    running = [registered("a"), *waiting("j"), placed("j", member("a", 0)), started("j", "a")]
    order = f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="cancelled", signal=2, grace_ms=5_000
    )
    assert decisions(given(running, f.CancelRequested(job_id=JobId("j"), signal=2, grace_s=5))) == [
        order
    ]
    killed = given(
        running,
        f.CancelRequested(job_id=JobId("j"), signal=2, grace_s=5),
        order,
        f.CancelRequested(job_id=JobId("j"), grace_s=0),
    )
    assert decisions(killed) == [
        f.JobStopOrdered(job_id=JobId("j"), attempt=1, reason="cancelled", signal=15, grace_ms=0)
    ]


def test_a_job_that_reached_its_time_limit_fails_without_a_retry() -> None:
    running = [
        registered("a"),
        *waiting("j", time_limit_s=60, retries=3),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    over = given(
        running, finished("j", "a", None, signal=15, reason="time_limit"), released("j", "a")
    )
    assert decisions(over) == [
        f.JobClosed(
            job_id=JobId("j"), attempt=1, outcome="failed", reason="time_limit", exit_code=143
        )
    ]


def test_a_gang_fails_by_time_limit_if_one_member_reached_it() -> None:
    gang = [
        *waiting("j", nodes=2, time_limit_s=60),
        placed("j", member("a", 0), member("b", 0, rank=1)),
    ]
    running = [registered("a"), registered("b"), *gang, started("j", "a"), started("j", "b")]
    order = f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="gang_hurt", signal=15, grace_ms=10_000
    )
    limited = [finished("j", "a", None, signal=15, reason="time_limit"), released("j", "a")]
    assert decisions(given(running, limited)) == [order]
    over = given(
        running,
        limited,
        order,
        finished("j", "b", None, signal=15, reason="stopped"),
        released("j", "b"),
    )
    assert decisions(over) == [
        f.JobClosed(
            job_id=JobId("j"), attempt=1, outcome="failed", reason="time_limit", exit_code=143
        )
    ]


def test_the_scheduler_does_not_enforce_time_limits_by_its_own_clock() -> None:
    running = [
        registered("a"),
        *waiting("j", time_limit_s=60),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    assert decisions(given(running), now_s=1_000_000) == []


def test_a_new_term_counts_the_start_limit_from_its_own_beginning() -> None:
    state = given(registered("a"), waiting("j", start_s=30), placed("j", member("a", 0)))
    state.start_limits.limits.clear()
    state.begin(state.epoch, 1_000 * SECOND_NS)
    assert decisions(state, now_s=1_029) == []
    assert [getattr(fact, "reason", "") for fact in decisions(state, now_s=1_030)] == [
        "start_timeout"
    ]


def test_an_attempt_that_does_not_start_in_time_is_stopped() -> None:
    state = given(registered("a"), waiting("j", start_s=30), placed("j", member("a", 0)))
    assert decisions(state, now_s=29) == []
    assert [getattr(fact, "reason", "") for fact in decisions(state, now_s=30)] == ["start_timeout"]


@pytest.mark.parametrize(
    ("spec", "heard", "follows"),
    [
        ({}, f.RequeueRequested(job_id=JobId("j"), attempt=1), f.JobStopOrdered),
        ({"allocation": Allocation(expires_s=60, warn_s=600)}, None, f.AllocationWarned),
    ],
)
def test_a_job_that_a_rule_concerns_at_once_is_not_forgotten_when_it_is_placed(
    spec: dict[str, Any], heard: AnyFact | None, follows: type[AnyFact]
) -> None:
    state = given(registered("a"), waiting("j", **spec), *([heard] if heard is not None else []))
    assert [type(fact) for fact in decisions(state)] == [f.JobPlaced, follows]


def test_a_refusal_of_one_member_stops_the_gang_and_requeues_it() -> None:
    gang = [
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "a"),
    ]
    refused = f.JobRefused(job_id=JobId("j"), attempt=1, node_id=NodeId("b"), reason="no lease")
    state = given(registered("a"), registered("b"), gang, refused)
    assert [getattr(fact, "reason", "") for fact in decisions(state)] == ["gang_hurt"]
    over = [finished("j", "a", None, signal=15, reason="stopped"), released("j", "a")]
    for fact in over:
        tell(state.cluster, fact)
    again = State(state.cluster)
    again.epoch = state.epoch
    (requeued,) = decisions(again)
    assert isinstance(requeued, f.JobRequeued) and (requeued.reason, requeued.counted) == (
        "refused",
        False,
    )


def test_a_device_that_moved_is_free_at_its_new_node_after_its_release() -> None:
    """The member is released by the node on which it ran; what it held stands at the other."""
    state = given(registered("a", gpus=1), waiting("j"), placed("j", member("a", 0)), waiting("k"))
    moved = msgspec.structs.replace(registered("a", gpus=1), node_id=NodeId("b"))
    without = msgspec.structs.replace(
        registered("a", gpus=0, incarnation=2), attempts=(AttemptRef(JobId("j"), 1),)
    )
    for fact in (without, moved, *ended("j", "a")):
        state.refresh(tell(state.cluster, fact))
    assert decisions(state)[-1] == placed(
        "k", Member(NodeId("b"), 1, 0, (GpuHold(GpuId("a-gpu0")),)), port=29_501
    )


def _gang_whose_first_rank_is_over(*more: AnyFact) -> State:
    """Rank 0 ran on node a for a minute, and node a has registered again since."""
    return given(
        registered("a"),
        registered("b"),
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "b"),
        *ended("j", "a", 0, run_ms=60_000),
        *more,
    )


def test_a_rank_that_was_over_is_not_lost_with_its_node() -> None:
    state = _gang_whose_first_rank_is_over()
    (lost,) = decisions(state, silent=[(NodeId("a"), 1)])
    assert lost == f.NodeLost(
        node_id=NodeId("a"), incarnation=1, lost_ns=1_000_000_000, over=(JobId("j"),)
    )
    for fact in (registered("a", incarnation=2), finished("j", "b", 0, run_ms=90_000)):
        state.refresh(tell(state.cluster, fact))
    state.refresh(tell(state.cluster, released("j", "b")))
    close = f.JobClosed(job_id=JobId("j"), attempt=1, outcome="completed", exit_code=0)
    assert close in decisions(state, 100)
    (charge,) = state.cluster.uncharged.values()
    assert charge.share_ms == 100 * (60_000 + 90_000)


def test_a_rank_whose_end_crossed_the_loss_of_its_node_is_lost_in_both_orders() -> None:
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1)
    early = _gang_whose_first_rank_is_over(lost).cluster.jobs[JobId("j")]
    late = given(
        registered("a"),
        registered("b"),
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "b"),
        started("j", "a"),
        lost,
        *ended("j", "a", 0, run_ms=60_000)[1:],
    ).cluster.jobs[JobId("j")]
    assert early.members == late.members and early.members[NodeId("a")].state == "lost"


def test_a_rank_that_refused_to_start_is_charged_nothing() -> None:
    state = given(
        registered("a"),
        registered("b"),
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        f.JobRefused(job_id=JobId("j"), attempt=1, node_id=NodeId("a"), reason="no device"),
        *ended("j", "b", 143, run_ms=1_000),
    )
    decisions(state, 50)
    (charge,) = state.cluster.uncharged.values()
    assert charge.share_ms == 100 * 1_000
