"""The time of allocations: warned of, extended, over; and what becomes of the job."""

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import Allocation, JobId
from libs.common.state.cluster import WriterMark
from services.scheduler.state.buckets import EXPIRE
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    ended,
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

J = JobId("j")
HOUR = 3_600


def held(expires_s: float = HOUR, at_s: float = 0, warn_s: int = 300) -> State:
    """An allocation that runs, as of a time."""
    until_ns = int((at_s + expires_s) * SECOND_NS)
    began = f.JobPlaced(
        job_id=J, attempt=1, members=(member("a", 0),), port=29_500, expires_ns=until_ns
    )
    return given(
        registered("a"),
        waiting("j", allocation=Allocation(int(expires_s), warn_s), requeue=False),
        began,
        started("j", "a"),
    )


def hear(state: State, *facts: AnyFact) -> None:
    """Apply the facts of other writers."""
    for fact in facts:
        state.refresh(tell(state.cluster, fact))


def extended(until_s: int, attempt: int = 1) -> f.AllocationExtended:
    return f.AllocationExtended(job_id=J, attempt=attempt, expires_ns=until_s * SECOND_NS)


def warned(until_s: int) -> f.AllocationWarned:
    return f.AllocationWarned(job_id=J, attempt=1, expires_ns=until_s * SECOND_NS)


def over() -> f.JobStopOrdered:
    return f.JobStopOrdered(job_id=J, attempt=1, reason="expired", signal=15, grace_ms=10_000)


def test_a_placement_says_when_an_allocation_is_over_and_of_a_job_nothing() -> None:
    state = given(registered("a"), waiting("j", allocation=Allocation(HOUR)), waiting("k"))
    (first, second) = decisions(state, now_s=5)
    assert isinstance(first, f.JobPlaced) and first.expires_ns == (HOUR + 5) * SECOND_NS
    assert isinstance(second, f.JobPlaced) and second.expires_ns == 0


def test_an_allocation_is_warned_of_once_and_then_over() -> None:
    state = held()
    assert decisions(state, HOUR - 301) == []
    assert decisions(state, HOUR - 299) == [warned(HOUR)]
    assert decisions(state, HOUR - 1) == []
    assert decisions(state, HOUR + 1) == [over()]
    assert decisions(state, HOUR + 2) == []


def test_allocation_shorter_than_its_warning_is_warned_at_once() -> None:
    assert decisions(held(60), 1) == [warned(60)]


def test_a_new_scheduler_uses_only_the_schedulers_clock() -> None:
    cluster = held().cluster
    cluster.writers["facts.node.a"] = WriterMark(9, 1, 2 * HOUR * SECOND_NS, 1)
    assert State(cluster).first(EXPIRE) is None
    cluster.writers[subjects.SCHEDULER] = WriterMark(9, 1, 2 * HOUR * SECOND_NS, 1)
    due = State(cluster).first(EXPIRE)
    assert due is not None and due.job_id == J


def test_a_late_take_over_warns_and_ends_an_allocation_together() -> None:
    assert decisions(held(), 2 * HOUR) == [warned(HOUR), over()]


def test_an_extension_is_kept_and_warned_of_again() -> None:
    state = held()
    assert decisions(state, HOUR - 100) == [warned(HOUR)]
    hear(state, extended(2 * HOUR), extended(HOUR + 1))
    assert decisions(state, 2 * HOUR - 400) == []
    assert decisions(state, 2 * HOUR - 100) == [warned(2 * HOUR)]
    assert decisions(state, 2 * HOUR + 1) == [over()]


def test_a_scheduler_that_begins_knows_every_allocation_s_time() -> None:
    old = held()
    decisions(old, HOUR - 100)
    hear(old, extended(2 * HOUR))
    new = State(old.cluster)
    new.epoch = old.epoch
    assert decisions(new, 2 * HOUR - 400) == []
    assert decisions(new, 2 * HOUR + 1) == [warned(2 * HOUR), over()]


def test_an_extension_of_an_earlier_attempt_or_of_a_job_changes_nothing() -> None:
    state = held()
    hear(state, extended(2 * HOUR, attempt=2))
    assert decisions(state, HOUR + 1) == [warned(HOUR), over()]
    job = given(registered("a"), waiting("j"), placed("j", member("a", 0)))
    hear(job, extended(1))
    assert decisions(job, 2) == []


def closing(state: State, *facts: AnyFact) -> list[AnyFact]:
    hear(state, *facts, *ended("j", "a", 143))
    return [
        fact for fact in decisions(state, HOUR + 2) if isinstance(fact, f.JobClosed | f.JobRequeued)
    ]


def test_an_allocation_that_is_over_or_given_back_is_completed() -> None:
    late, early = held(), held()
    decisions(late, HOUR + 1)
    assert closing(late) == [
        f.JobClosed(job_id=J, attempt=1, outcome="completed", reason="expired")
    ]
    hear(early, f.CancelRequested(job_id=J))
    decisions(early, 2)
    assert closing(early) == [
        f.JobClosed(job_id=J, attempt=1, outcome="completed", reason="released")
    ]


def test_allocation_whose_process_ends_by_itself_has_failed_and_is_not_placed_again() -> None:
    assert closing(held()) == [
        f.JobClosed(job_id=J, attempt=1, outcome="failed", reason="failed", exit_code=143)
    ]


def test_allocation_that_never_began_is_placed_again_for_its_whole_time() -> None:
    state = given(registered("a"), waiting("j", allocation=Allocation(HOUR), requeue=False))
    decisions(state, 5)
    hear(
        state,
        f.JobRefused(job_id=J, attempt=1, node_id=member("a").node_id, reason="no device"),
        released("j", "a"),
    )
    again = [
        fact
        for now_s in (9, 14)
        for fact in decisions(state, now_s)
        if isinstance(fact, f.JobPlaced)
    ]
    assert [(fact.attempt, fact.expires_ns) for fact in again] == [(2, (HOUR + 14) * SECOND_NS)]


def test_how_long_something_was_held_says_nothing_of_how_long_its_tenant_s_jobs_run() -> None:
    state = held()
    decisions(state, HOUR + 1)
    hear(
        state,
        f.JobFinished(
            job_id=J, attempt=1, node_id=member("a").node_id, exit_code=None, signal=15, run_ms=9
        ),
        released("j", "a"),
    )
    decisions(state, HOUR + 2)
    assert state.cluster.jobs[J].state == "completed" and [
        tenant.use.runs for tenant in state.cluster.tenants.values()
    ] == [0]
