"""Preemption: which jobs make room, when, and that no other job gets the reserved devices."""

import pytest

from libs.common import facts as f
from libs.common.model import JobId, NodeId
from services.scheduler.decide.decide import decide
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.preemption.preemptible import Need, Preemptible
from services.scheduler.state.outlook import KEPT_MAX
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
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
from tests.unit.preemption_facts import REQUEUED, preempted, reserved, running
from tests.unit.scheduler_decisions import decisions, hear


def test_jobs_of_lower_priority_make_room_for_the_first_waiting_job() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    assert decisions(state) == [
        reserved("high", member("a", 0, 1, 2, 3)),
        preempted("low", by="high", lost_share_ms=400 * 1_000),
    ]


def test_the_job_is_placed_on_its_reserved_devices_once_they_are_free() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    hear(state, finished("low", "a", None, signal=15, reason="stopped"), released("low", "a"))
    assert decisions(state) == [
        f.JobRequeued(job_id=JobId("low"), attempt=1, reason="preempted", counted=False),
        placed("high", member("a", 0, 1, 2, 3), port=29_501),
    ]
    job = state.cluster.jobs[JobId("low")]
    assert (job.attempt, job.retries_used, job.preemption.times, job.preemption.by) == (
        2,
        0,
        1,
        "high",
    )


def test_no_job_is_preempted_when_devices_are_free() -> None:
    state = given(registered("a"), running("low", 0, 1), waiting("high", gpus=2, priority=90))
    assert decisions(state) == [placed("high", member("a", 2, 3), port=29_501)]


def test_only_preemptible_jobs_of_lower_priority_make_room() -> None:
    head = waiting("high", gpus=1, priority=50)
    for fields in ({"preemptible": False}, {"priority": 50}, {"priority": 51}):
        assert decisions(given(registered("a"), running("low", 0, 1, 2, 3, **fields), head)) == []


def test_no_job_is_preempted_if_that_makes_too_little_room() -> None:
    """Two cases: other jobs leave too little room, or the freed devices do not suffice."""
    beside = [*waiting("rock", gpus=1), placed("rock", member("a", 3))]
    state = given(
        registered("a"), running("low", 0, 1, 2), beside, waiting("high", gpus=4, priority=90)
    )
    assert decisions(state) == []
    state = given(
        registered("a"),
        running("one", 0),
        running("two", 1),
        running("big", 2, 3),
        waiting("high", gpus=2, priority=90),
    )
    for job, at_s in (("one", 9), ("big", 8)):
        tell(
            state.cluster,
            f.JobCheckpointed(job_id=JobId(job), attempt=1, node_id=NodeId("a")),
            at_s=at_s,
        )
    assert [fact.job_id for fact in decisions(state, now_s=10)[1:]] == ["big"]


def test_the_jobs_that_lose_the_least_work_are_preempted() -> None:
    """Choose, of two nodes, the one whose job saved its work last."""
    jobs = [
        *running("old", 0, 1, 2, 3, priority=1),
        *running("new", 0, 1, 2, 3, node="b", priority=40),
    ]
    state = given(registered("a"), registered("b"), jobs, waiting("high", gpus=4, priority=90))
    tell(
        state.cluster,
        f.JobCheckpointed(job_id=JobId("new"), attempt=1, node_id=NodeId("b")),
        at_s=5,
    )
    assert [fact.job_id for fact in decisions(state, now_s=9)] == ["high", "new"]


def test_a_gang_is_preempted_whole_and_its_whole_work_counts() -> None:
    gang = [
        *waiting("gang", nodes=2, gpus=2, priority=10, preemptible=True),
        placed("gang", member("a", 0, 1), member("b", 0, 1, rank=1)),
    ]
    beside = [*running("one", 2, 3), *running("other", 2, 3, node="b")]
    both = given(
        registered("a"), registered("b"), gang, beside, waiting("high", gpus=2, priority=90)
    )
    assert [fact.job_id for fact in decisions(both)] == ["high", "one"]
    wide = given(
        registered("a"),
        registered("b"),
        gang,
        beside,
        waiting("high", nodes=2, gpus=2, priority=90),
    )
    assert [fact.job_id for fact in decisions(wide)[1:]] in (["gang"], ["one", "other"])


def test_a_job_is_not_preempted_before_its_min_run() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2, 3, min_run_s=60),
        waiting("high", gpus=4, priority=90),
    )
    assert decisions(state, now_s=0) == decisions(state, now_s=59) == []
    assert [fact.job_id for fact in decisions(state, now_s=61)] == ["high", "low"]


def test_other_jobs_start_but_not_on_reserved_devices() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2),
        waiting("high", gpus=4, priority=90),
        waiting("next"),
    )
    assert [fact.job_id for fact in decisions(state)] == ["high", "low"]
    hear(state, finished("low", "a", None, signal=15, reason="stopped"), released("low", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["low", "high"]
    assert state.cluster.jobs[JobId("next")].state == "queued"


def test_the_job_is_placed_elsewhere_if_other_devices_are_free_sooner() -> None:
    busy = [*waiting("rock", gpus=4), placed("rock", member("b", 0, 1, 2, 3)), started("rock", "b")]
    jobs = [
        *running("low", 0, 1, 2, 3),
        *waiting("high", gpus=4, priority=90),
        *waiting("same", gpus=4, priority=90),
    ]
    state = given(registered("a"), registered("b"), busy, jobs)
    decisions(state)
    hear(state, finished("rock", "b"), released("rock", "b"))
    facts = decisions(state)
    assert facts[1] == placed("high", member("b", 0, 1, 2, 3), port=29_501)
    assert [fact.job_id for fact in facts] == ["rock", "high"] and not state.cluster.nodes[
        NodeId("a")
    ].reserved


def test_preemption_also_frees_a_fraction_of_a_device() -> None:
    parts = [
        fact
        for job in ("x", "y")
        for fact in (
            *waiting(job, gpu_share=50, priority=10, preemptible=True),
            placed(job, member("a", 0, share=50)),
        )
    ]
    state = given(registered("a", gpus=1), parts, waiting("high", gpu_share=40, priority=90))
    facts = decisions(state)
    assert facts[0] == reserved("high", member("a", 0, share=40)) and len(facts) == 2


def test_a_reservation_ends_if_its_device_is_lost_and_its_job_is_queued() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    hear(
        state,
        f.GpuFaulted(
            node_id=NodeId("a"), uuid=member("a", 0).gpus[0].uuid, health="offline", reason="xid"
        ),
    )
    assert decisions(state)[0] == reserved("high")
    assert "high" in state.queue.waiting and not state.cluster.nodes[NodeId("a")].reserved


def test_a_reservation_ends_when_its_job_is_cancelled() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2, 3),
        waiting("high", gpus=4, priority=90),
        waiting("next"),
    )
    decisions(state)
    hear(
        state,
        f.CancelRequested(job_id=JobId("high")),
        finished("low", "a", None, signal=15, reason="stopped"),
        released("low", "a"),
    )
    facts = decisions(state)
    assert [type(fact) for fact in facts] == [f.JobRequeued, f.JobClosed, f.JobPlaced]
    assert facts[2].job_id == "next"  # type: ignore[union-attr]


def test_a_reservation_ends_when_its_job_is_held() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    hear(state, f.JobUpdated(job_id=JobId("high"), held=True))
    assert decisions(state) == [reserved("high")]


def test_a_reservation_ends_when_its_tenant_reaches_its_limit() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2, 3),
        waiting("high", gpus=4, priority=90, tenant="t"),
    )
    decisions(state)
    hear(
        state,
        f.TenantSet(tenant=state.cluster.jobs[JobId("high")].tenant, max_gpu_share=100),
        finished("low", "a", 1),
        released("low", "a"),
    )
    assert reserved("high") in decisions(state)


def test_a_scheduler_that_takes_over_keeps_reservations() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2, 3),
        waiting("high", gpus=4, priority=90),
        waiting("next"),
    )
    decisions(state)
    state = State(state.cluster)
    state.begin(1, SECOND_NS)
    assert decisions(state) == []
    hear(state, finished("low", "a", None, signal=15, reason="stopped"), released("low", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["low", "high"]


def test_a_job_that_completed_before_its_preemption_stays_completed() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    hear(state, finished("low", "a", 0), released("low", "a"))
    assert decisions(state)[0] == f.JobClosed(
        job_id=JobId("low"), attempt=1, outcome="completed", exit_code=0
    )


def test_a_preempted_job_that_saved_and_exited_with_0_continues_later() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    hear(state, finished("low", "a", 0, reason="stopped"), released("low", "a"))
    assert decisions(state)[0] == f.JobRequeued(job_id=JobId("low"), attempt=1, **REQUEUED)  # type: ignore[arg-type]


SAVING = {"checkpoint_grace_s": 60, "checkpoint_signal": 10, "grace_s": 5}
STOPPED = f.JobStopOrdered(
    job_id=JobId("low"), attempt=1, reason="preempted", signal=15, grace_ms=5_000
)


def test_a_job_that_has_saved_its_work_is_stopped_like_any_other() -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    assert decisions(state)[1] == preempted(
        "low", by="high", lost_share_ms=400_000, signal=10, grace_s=65
    )
    hear(state, f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a")))
    assert decisions(state, now_s=30) == []
    hear(state, f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a"), asked=True))
    assert decisions(state, now_s=30) == [STOPPED]


@pytest.mark.parametrize("grace_s", [3, 20, 70])
def test_a_shorter_order_applies_to_a_job_that_saves_its_work(
    grace_s: int,
) -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    decisions(state, now_s=1)
    hear(state, f.CancelRequested(job_id=JobId("low"), signal=15, grace_s=grace_s))
    cancelled = f.JobStopOrdered(
        job_id=JobId("low"), attempt=1, reason="cancelled", signal=15, grace_ms=grace_s * 1_000
    )
    assert decisions(state, now_s=2) == ([cancelled] if grace_s < 65 else [])
    hear(state, f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a"), asked=True))
    assert decisions(state, now_s=3) == ([STOPPED] if grace_s > 5 else [])
    assert decisions(state, now_s=90) == []


def test_a_job_that_misses_its_checkpoint_grace_is_stopped_like_any_other() -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    decisions(state, now_s=1)
    assert decisions(state, now_s=60) == []
    assert decisions(state, now_s=62) == [STOPPED]
    assert decisions(state, now_s=90) == []


def test_a_job_that_ended_during_its_checkpoint_grace_is_not_stopped() -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    decisions(state, now_s=1)
    assert decisions(state, now_s=60) == []
    hear(state, finished("low", "a", 0), released("low", "a"))
    assert [type(fact) for fact in decisions(state, now_s=62)] == [f.JobClosed, f.JobPlaced]


def test_a_checkpoint_with_a_future_time_counts_from_its_record() -> None:
    state = given(registered("a"), running("low", 0))
    for at_ns in (1 << 62, 1 << 61):
        said = f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a"), at_ns=at_ns)
        tell(state.cluster, said, at_s=5)
        assert state.cluster.jobs[JobId("low")].preemption.checkpointed_ns == 5 * SECOND_NS


def test_preemptions_never_use_up_the_attempts_of_a_job() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3, retries=1))
    job = state.cluster.jobs[JobId("low")]
    job.attempt, job.preemption.times = 500, 499
    hear(state, finished("low", "a", 1, attempt=500), released("low", "a", attempt=500))
    assert decide(state, SECOND_NS) == (
        f.JobRequeued(job_id=JobId("low"), attempt=500, reason="failed", counted=True),
    )


def test_offers_are_kept_for_a_bounded_number_of_requests() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3))
    for gpus in range(KEPT_MAX + 3):
        state.offers(ResourceRequest(gpus=gpus), "default", Need(90))
    assert len(state.outlook.offered) == KEPT_MAX


def test_an_attempt_that_is_over_is_not_reported_as_due() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3, min_run_s=5))
    hear(state, finished("low", "a"), released("low", "a"))
    decisions(state)
    assert (
        list(state.preemptible.ring(state.cluster.jobs, 9 * SECOND_NS)) == []
        and not state.preemptible.jobs
    )


def test_an_attempt_that_ends_before_its_time_is_never_due() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3, min_run_s=5))
    job, jobs = state.cluster.jobs[JobId("low")], state.cluster.jobs
    for timed in (False, True):
        watching = Preemptible(lambda job: 0)
        job.state = "running"
        watching.note(job)
        assert not timed or list(watching.ring(jobs, 0)) == []
        job.state = "queued"
        watching.note(job)
        assert list(watching.ring(jobs, 9 * SECOND_NS)) == []
