"""Preemption: who makes room, for whom, when; and that what is reserved goes to nobody else."""

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from services.scheduler.decide.decide import decide
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.preemption.preemptible import Need, Preemptible
from services.scheduler.state.outlook import KEPT_MAX
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
from tests.unit.test_scheduler_decide import decisions

REQUEUED = {"reason": "preempted", "counted": False}


def running(job: str, *gpus: int, node: str = "a", **fields: object) -> list[AnyFact]:
    """A job that may be preempted, on these devices."""
    asked = {"gpus": len(gpus), "priority": 10, "preemptible": True} | fields
    return [*waiting(job, **asked), placed(job, member(node, *gpus)), started(job, node)]


def preempted(
    job: str, by: str, attempt: int = 1, lost_share_ms: int = 0, signal: int = 15, grace_s: int = 10
) -> f.JobPreempted:
    return f.JobPreempted(
        job_id=JobId(job),
        attempt=attempt,
        by=JobId(by),
        signal=signal,
        grace_ms=1_000 * grace_s,
        lost_share_ms=lost_share_ms,
    )


def reserved(job: str, *members: object, attempt: int = 1) -> f.DevicesReserved:
    return f.DevicesReserved(job_id=JobId(job), attempt=attempt, members=members)  # type: ignore[arg-type]


def told(state: State, *facts: AnyFact) -> None:
    """Others say this, at time 0."""
    for fact in facts:
        state.refresh(tell(state.cluster, fact))


def test_jobs_of_lower_priority_make_room_for_the_first_waiting_job() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    assert decisions(state) == [
        reserved("high", member("a", 0, 1, 2, 3)),
        preempted("low", by="high", lost_share_ms=400 * 1_000),
    ]


def test_it_is_placed_where_it_was_reserved_once_that_is_free_and_the_other_waits_again() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    told(state, finished("low", "a", None, signal=15, reason="stopped"), released("low", "a"))
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


def test_no_job_is_preempted_unless_it_helps() -> None:
    """What the others leave is not enough, or they could end and it would not fit all the same."""
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


def test_it_costs_least_work_whatever_the_priorities() -> None:
    """Of two nodes the one whose job saved its work last."""
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


def test_a_gang_ends_whole_and_counts_whole() -> None:
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


def test_a_job_has_run_for_as_long_as_it_asked_for_before_it_makes_room() -> None:
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
    told(state, finished("low", "a", None, signal=15), released("low", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["low", "high"]
    assert state.cluster.jobs[JobId("next")].state == "queued"


def test_it_is_placed_elsewhere_if_there_is_room_sooner() -> None:
    busy = [*waiting("rock", gpus=4), placed("rock", member("b", 0, 1, 2, 3)), started("rock", "b")]
    jobs = [
        *running("low", 0, 1, 2, 3),
        *waiting("high", gpus=4, priority=90),
        *waiting("same", gpus=4, priority=90),
    ]
    state = given(registered("a"), registered("b"), busy, jobs)
    decisions(state)
    told(state, finished("rock", "b"), released("rock", "b"))
    facts = decisions(state)
    assert facts[1] == placed("high", member("b", 0, 1, 2, 3), port=29_501)
    assert [fact.job_id for fact in facts] == ["rock", "high"] and not state.cluster.nodes[
        NodeId("a")
    ].reserved


def test_a_part_of_a_device_is_made_free_as_well() -> None:
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


def test_a_reservation_ends_with_its_device_and_its_job_goes_back_in_line() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    told(
        state,
        f.GpuFaulted(
            node_id=NodeId("a"), uuid=member("a", 0).gpus[0].uuid, health="offline", reason="xid"
        ),
    )
    assert decisions(state)[0] == reserved("high")
    assert "high" in state.queue.waiting and not state.cluster.nodes[NodeId("a")].reserved


def test_a_reservation_ends_with_the_cancel_of_its_job() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2, 3),
        waiting("high", gpus=4, priority=90),
        waiting("next"),
    )
    decisions(state)
    told(
        state,
        f.CancelRequested(job_id=JobId("high")),
        finished("low", "a", None, signal=15),
        released("low", "a"),
    )
    facts = decisions(state)
    assert [type(fact) for fact in facts] == [f.JobRequeued, f.JobClosed, f.JobPlaced]
    assert facts[2].job_id == "next"  # type: ignore[union-attr]


def test_reserved_devices_are_given_up_when_their_job_is_held() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    told(state, f.JobUpdated(job_id=JobId("high"), held=True))
    assert decisions(state) == [reserved("high")]


def test_a_reservation_ends_when_its_tenant_may_hold_no_more() -> None:
    state = given(
        registered("a"),
        running("low", 0, 1, 2, 3),
        waiting("high", gpus=4, priority=90, tenant="t"),
    )
    decisions(state)
    told(
        state,
        f.TenantSet(tenant=state.cluster.jobs[JobId("high")].tenant, max_gpu_share=100),
        finished("low", "a", 1),
        released("low", "a"),
    )
    assert reserved("high") in decisions(state)


def test_a_scheduler_that_takes_over_keeps_what_is_reserved() -> None:
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
    told(state, finished("low", "a", None, signal=15), released("low", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["low", "high"]


def test_a_job_that_was_done_before_it_heard_is_done() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    told(state, finished("low", "a", 0), released("low", "a"))
    assert decisions(state)[0] == f.JobClosed(
        job_id=JobId("low"), attempt=1, outcome="completed", exit_code=0
    )


def test_a_job_that_saved_its_work_and_ended_well_when_told_goes_on_later() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3), waiting("high", gpus=4, priority=90))
    decisions(state)
    told(state, finished("low", "a", 0, reason="stopped"), released("low", "a"))
    assert decisions(state)[0] == f.JobRequeued(job_id=JobId("low"), attempt=1, **REQUEUED)  # type: ignore[arg-type]


SAVING = {"checkpoint_grace_s": 60, "checkpoint_signal": 10, "grace_s": 5}
STOPPED = f.JobStopOrdered(
    job_id=JobId("low"), attempt=1, reason="preempted", signal=15, grace_ms=5_000
)


def test_a_job_that_has_saved_its_work_is_stopped_as_any_other() -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    assert decisions(state)[1] == preempted(
        "low", by="high", lost_share_ms=400_000, signal=10, grace_s=65
    )
    told(state, f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a")))
    assert decisions(state, now_s=30) == []
    told(state, f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a"), asked=True))
    assert decisions(state, now_s=30) == [STOPPED]


@pytest.mark.parametrize("grace_s", [3, 20, 70])
def test_a_job_that_saves_its_work_obeys_each_order_that_gives_it_less_time(
    grace_s: int,
) -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    decisions(state, now_s=1)
    told(state, f.CancelRequested(job_id=JobId("low"), signal=15, grace_s=grace_s))
    cancelled = f.JobStopOrdered(
        job_id=JobId("low"), attempt=1, reason="cancelled", signal=15, grace_ms=grace_s * 1_000
    )
    assert decisions(state, now_s=2) == ([cancelled] if grace_s < 65 else [])
    told(state, f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a"), asked=True))
    assert decisions(state, now_s=3) == ([STOPPED] if grace_s > 5 else [])
    assert decisions(state, now_s=90) == []


def test_a_job_that_does_not_save_its_work_in_its_time_is_stopped_as_any_other() -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    decisions(state, now_s=1)
    assert decisions(state, now_s=60) == []
    assert decisions(state, now_s=62) == [STOPPED]
    assert decisions(state, now_s=90) == []


def test_a_job_that_ended_by_itself_as_its_time_to_save_is_over_is_not_stopped_any_more() -> None:
    state = given(
        registered("a"), running("low", 0, 1, 2, 3, **SAVING), waiting("high", gpus=4, priority=90)
    )
    decisions(state, now_s=1)
    assert decisions(state, now_s=60) == []
    told(state, finished("low", "a", 0), released("low", "a"))
    assert [type(fact) for fact in decisions(state, now_s=62)] == [f.JobClosed, f.JobPlaced]


def test_a_checkpoint_of_a_time_to_come_counts_from_when_it_was_said() -> None:
    state = given(registered("a"), running("low", 0))
    for at_ns in (1 << 62, 1 << 61):
        said = f.JobCheckpointed(job_id=JobId("low"), attempt=1, node_id=NodeId("a"), at_ns=at_ns)
        tell(state.cluster, said, at_s=5)
        assert state.cluster.jobs[JobId("low")].preemption.checkpointed_ns == 5 * SECOND_NS


def test_a_preempted_job_may_be_preempted_for_ever_and_still_be_tried_again() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3, retries=1))
    job = state.cluster.jobs[JobId("low")]
    job.attempt, job.preemption.times = 500, 499
    told(state, finished("low", "a", 1, attempt=500), released("low", "a", attempt=500))
    assert decide(state, SECOND_NS) == (
        f.JobRequeued(job_id=JobId("low"), attempt=500, reason="failed", counted=True),
    )


def gang_on(*nodes: str, **fields: object) -> list[AnyFact]:
    members = [member(node, 0, 1, rank=rank) for rank, node in enumerate(nodes)]
    begun = [started("gang", node) for node in nodes]
    return [
        *waiting("gang", nodes=len(nodes), gpus=2, priority=10, **fields),
        placed("gang", *members),
        *begun,
    ]


def test_what_is_left_of_a_gang_that_lost_a_node_is_kept_for_it_with_a_free_node() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b", "c")]
    state = given(
        *nodes, gang_on("a", "b"), waiting("stranger", gpus=2, priority=90, node_list=("a",))
    )
    told(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    facts = decisions(state)
    assert facts[0] == f.JobStopOrdered(
        job_id=JobId("gang"), attempt=1, reason="gang_hurt", signal=15, grace_ms=10_000
    )
    assert facts[1] == reserved("gang", member("a", 0, 1), member("c", 0, 1, rank=1), attempt=2)
    told(state, finished("gang", "a", None, signal=15, reason="stopped"), released("gang", "a"))
    again = placed("gang", member("a", 0, 1), member("c", 0, 1, rank=1), attempt=2, port=29_501)
    assert decisions(state) == [
        f.JobRequeued(job_id=JobId("gang"), attempt=1, reason="node_lost", counted=False),
        again,
    ]


def test_a_gang_without_a_free_node_waits_in_the_queue() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b")]
    state = given(*nodes, gang_on("a", "b"), waiting("stranger", gpus=2, priority=90))
    told(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    assert [type(fact) for fact in decisions(state)] == [f.JobStopOrdered]
    told(state, finished("gang", "a", None, signal=15, reason="stopped"), released("gang", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["gang", "stranger"]


def test_a_gang_that_is_not_tried_again_is_kept_nothing() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b", "c")]
    state = given(*nodes, gang_on("a", "b", requeue=False))
    told(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    assert [type(fact) for fact in decisions(state)] == [f.JobStopOrdered]


def test_a_gang_hurt_by_its_own_fault_is_kept_nothing() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b", "c")]
    state = given(*nodes, gang_on("a", "b", retries=3))
    told(state, *ended("gang", "b", 1)[1:])
    assert [type(fact) for fact in decisions(state)] == [f.JobStopOrdered]


def test_a_gang_that_must_be_in_one_rack_is_given_room_in_one() -> None:
    """The cheapest two nodes are in different racks."""
    nodes = [
        registered(name, gpus=2, rack=rack, spine="s")
        for name, rack in (("a", "x"), ("b", "y"), ("c", "y"))
    ]
    jobs = [fact for name in "abc" for fact in running(f"on-{name}", 0, 1, node=name)]
    for required in ("rack", "spine"):
        state = given(
            *nodes, jobs, waiting("high", nodes=2, gpus=2, priority=90, **{required: "required"})
        )
        for name, at_s in (("a", 8), ("b", 7), ("c", 1)):
            tell(
                state.cluster,
                f.JobCheckpointed(job_id=JobId(f"on-{name}"), attempt=1, node_id=NodeId(name)),
                at_s=at_s,
            )
        ending = sorted(fact.job_id for fact in decisions(state, now_s=9)[1:])
        assert ending == (["on-b", "on-c"] if required == "rack" else ["on-a", "on-b"])


def test_where_a_gang_ends_its_other_nodes_cost_nothing_more() -> None:
    """Two nodes of one gang, rather than one of them and another job's."""
    nodes = [registered(name, gpus=2) for name in "abc"]
    gang = gang_on("a", "b", preemptible=True)
    state = given(
        *nodes, gang, running("old", 0, 1, node="c"), waiting("high", nodes=2, gpus=2, priority=90)
    )
    tell(
        state.cluster,
        f.JobCheckpointed(job_id=JobId("gang"), attempt=1, node_id=NodeId("a")),
        at_s=8,
    )
    assert [fact.job_id for fact in decisions(state, now_s=9)] == ["high", "gang"]


def test_a_job_whose_end_is_needed_is_not_spared() -> None:
    """CPUs: the last that ends brings them, and the first is needed for its device."""
    node = registered("a", gpus=2, cpus_milli=2_000)
    jobs = [
        *running("one", 0, cpus_milli=500),
        *running("two", 1, cpus_milli=500),
        *running("host", gpus=0, cpus_milli=1_000),
    ]
    state = given(node, jobs, waiting("high", gpus=2, cpus_milli=1_000, priority=90))
    for job, at_s in (("one", 7), ("two", 8), ("host", 1)):
        tell(
            state.cluster,
            f.JobCheckpointed(job_id=JobId(job), attempt=1, node_id=NodeId("a")),
            at_s=at_s,
        )
    assert [fact.job_id for fact in decisions(state, now_s=9)] == ["high", "two", "one"]


def test_offers_are_kept_for_a_bounded_number_of_requests() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3))
    for gpus in range(KEPT_MAX + 3):
        state.offers(ResourceRequest(gpus=gpus), "default", Need(90))
    assert len(state.outlook.offered) == KEPT_MAX


def test_an_attempt_that_is_over_rings_no_more() -> None:
    state = given(registered("a"), running("low", 0, 1, 2, 3, min_run_s=5))
    told(state, finished("low", "a"), released("low", "a"))
    decisions(state)
    assert (
        list(state.preemptible.ring(state.cluster.jobs, 9 * SECOND_NS)) == []
        and not state.preemptible.jobs
    )


def test_an_attempt_that_is_over_before_it_is_timed_or_before_its_time_rings_for_nobody() -> None:
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
