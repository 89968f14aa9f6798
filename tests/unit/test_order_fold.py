"""Fold of dependencies, holds and requeues of jobs, and the scheduler's decisions on them."""

import pytest

from libs.common import facts as f
from libs.common.folds import order_fold
from libs.common.model import JobId
from services.scheduler.decide.decide import decide
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import SECOND_NS, ended, given, member, placed, registered, tell, waiting
from tests.unit.scheduler_decisions import decisions

J = JobId("j")


def closed(job: str, outcome: str = "completed") -> f.JobClosed:
    return f.JobClosed(job_id=JobId(job), attempt=1, outcome=outcome)


def over(job: str, outcome: str = "completed") -> list[f.AnyFact]:
    return [
        placed(job, member("a", 0)),
        *ended(job, "a", 0 if outcome == "completed" else 1),
        closed(job, outcome),
    ]


def placed_jobs(state: State) -> list[str]:
    return [fact.job_id for fact in decisions(state) if isinstance(fact, f.JobPlaced)]


def test_a_job_begins_after_the_one_that_it_waits_for() -> None:
    first = waiting("i")
    assert placed_jobs(
        given(registered("a"), first, waiting("j", after=(("afterok", JobId("i")),)))
    ) == ["i"]
    assert placed_jobs(
        given(registered("a"), first, waiting("j", after=(("afterok", JobId("i")),)), over("i"))
    ) == ["j"]


def test_a_job_that_waits_in_vain_is_cancelled() -> None:
    state = given(
        registered("a"),
        waiting("i"),
        waiting("j", after=(("afterok", JobId("i")),)),
        over("i", "failed"),
    )
    assert decisions(state) == [
        f.JobClosed(job_id=J, attempt=1, outcome="cancelled", reason="dependency_failed")
    ]


def test_afterany_asks_only_for_an_end() -> None:
    state = given(
        registered("a"),
        waiting("i"),
        waiting("j", after=(("afterany", JobId("i")),)),
        over("i", "failed"),
    )
    assert placed_jobs(state) == ["j"]


def test_unmet_dependency_also_fails_later_dependents() -> None:
    chain = [
        *waiting("j", after=(("afterok", JobId("i")),)),
        *waiting("k", after=(("afterok", J),)),
    ]
    state = given(registered("a"), waiting("i"), chain, over("i", "failed"))
    assert [
        (fact.job_id, fact.reason) for fact in decisions(state) if isinstance(fact, f.JobClosed)
    ] == [
        ("j", "dependency_failed"),
        ("k", "dependency_failed"),
    ]


def test_a_job_that_is_known_no_more_has_not_ended_well() -> None:
    state = given(
        registered("a"),
        waiting("j", after=(("afterok", JobId("gone")),)),
        waiting("k", after=(("afterany", JobId("gone")),)),
    )
    assert placed_jobs(state) == ["k"] and state.cluster.jobs[J].reason == "dependency_failed"


def test_singletons_of_one_name_run_one_after_the_other() -> None:
    three = [waiting(name, name="train", singleton=True) for name in "ijk"]
    assert placed_jobs(given(registered("a"), *three)) == ["i"]
    assert placed_jobs(given(registered("a"), *three, over("i"))) == ["j"]
    assert placed_jobs(
        given(
            registered("a"),
            waiting("i", name="train", singleton=True),
            waiting("j", name="other", singleton=True),
        )
    ) == [
        "i",
        "j",
    ]


def test_cancelled_waiting_singleton_keeps_the_order_of_its_name() -> None:
    three = [waiting(name, name="train", singleton=True) for name in "ijk"]
    running = [placed("i", member("a", 0)), f.CancelRequested(job_id=J), closed("j", "cancelled")]
    state = given(registered("a"), *three, running)
    assert placed_jobs(state) == []
    assert state.cluster.dependents == {"i": {"k": None}}
    last = given(registered("a"), *three[:2], running, three[2])
    assert placed_jobs(last) == []


def test_a_held_job_is_not_placed_until_it_is_released() -> None:
    held = given(registered("a"), waiting("j", hold=True))
    assert decisions(held) == []
    assert "holds it" in explain(held, J)["answer"]
    assert (
        placed_jobs(
            given(registered("a"), waiting("j"), f.JobUpdated(job_id=J, held=True, user="ada"))
        )
        == []
    )
    assert placed_jobs(
        given(registered("a"), waiting("j", hold=True), f.JobUpdated(job_id=J, held=False))
    ) == ["j"]


def test_a_hold_does_not_touch_a_running_attempt_and_counts_when_it_comes_back() -> None:
    running = [
        *waiting("j", retries=1),
        placed("j", member("a", 0)),
        f.JobUpdated(job_id=J, held=True),
    ]
    assert decisions(given(registered("a"), running)) == []
    state = given(registered("a"), running, ended("j", "a", exit_code=1))
    assert decisions(state) == [f.JobRequeued(job_id=J, attempt=1, reason="failed", counted=True)]


def test_a_held_job_can_be_cancelled() -> None:
    state = given(registered("a"), waiting("j", hold=True), f.CancelRequested(job_id=J))
    assert decisions(state) == [
        f.JobClosed(job_id=J, attempt=1, outcome="cancelled", reason="cancelled")
    ]


def test_a_requeue_ends_the_attempt_and_uses_up_no_retry() -> None:
    running = [*waiting("j"), placed("j", member("a", 0)), f.RequeueRequested(job_id=J, attempt=1)]
    state = given(registered("a"), running)
    assert decisions(state) == [
        f.JobStopOrdered(job_id=J, attempt=1, reason="requeued", signal=15, grace_ms=10_000)
    ]
    for code in (0, 143):
        state = given(
            registered("a"),
            running,
            f.JobStopOrdered(job_id=J, attempt=1, reason="requeued"),
            ended("j", "a", exit_code=code),
        )
        assert list(decide(state, SECOND_NS)) == [
            f.JobRequeued(job_id=J, attempt=1, reason="requeued", counted=False)
        ]


def test_a_requeue_of_an_attempt_that_is_over_is_nothing() -> None:
    again = [
        *waiting("j"),
        placed("j", member("a", 0)),
        *ended("j", "a", 1),
        f.JobRequeued(job_id=J, attempt=1, reason="x", counted=False),
    ]
    second = [
        *again,
        placed("j", member("a", 0), attempt=2),
        f.RequeueRequested(job_id=J, attempt=1),
    ]
    assert decisions(given(registered("a"), second)) == []


def test_a_cancel_goes_before_a_requeue() -> None:
    running = [
        *waiting("j"),
        placed("j", member("a", 0)),
        f.RequeueRequested(job_id=J, attempt=1),
        f.CancelRequested(job_id=J),
    ]
    state = given(
        registered("a"),
        running,
        f.JobStopOrdered(job_id=J, attempt=1, reason="requeued"),
        ended("j", "a", exit_code=1),
    )
    assert [fact.outcome for fact in decisions(state) if isinstance(fact, f.JobClosed)] == [
        "cancelled"
    ]


def test_a_changed_time_limit_is_the_next_attempt_s() -> None:
    state = given(registered("a"), waiting("j", hold=True), f.JobUpdated(job_id=J, time_limit_s=60))
    assert (
        state.cluster.jobs[J].spec.time_limit_s == 60 and state.cluster.jobs[J].spec.priority == 50
    )
    assert tell(state.cluster, f.JobUpdated(job_id=JobId("unknown"), priority=1)).jobs == ()


def test_newer_runs_weigh_more_in_the_expected_run_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order_fold, "RUNS_MAX", 2)

    def run(job: str, run_ms: int) -> list[f.AnyFact]:
        return [
            *waiting(job),
            placed(job, member("a", 0)),
            *ended(job, "a", 0, run_ms=run_ms),
            closed(job),
        ]

    state = given(registered("a"), run("g", 100), run("h", 100), run("i", 700), waiting("j"))
    assert state.cluster.jobs[J].order.usual_ms == 400, "as if g and h were one"
