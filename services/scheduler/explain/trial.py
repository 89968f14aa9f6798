"""A change tried: told to a copy of the state as the facts that it would be in the log, then
`decide` says what follows.

Pure. There is no second opinion on whether a job fits: what starts it here starts it there. Copies
are the caller's to make: `copied` does it by value, the live scheduler by a fork (`aside.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from libs.common import subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact, JobFinished, JobPlaced, JobPreempted, JobReleased
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.reasons import EXITED, STOPPED
from libs.common.state.cluster import Job
from libs.common.transport import snapshot
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.state.state import State

Trial = Callable[[State], bool]
# Runs a trial on a copy of the state.
RunOnCopy = Callable[[State, Trial], bool]

# What is imagined comes after all that was recorded.
LAST: Final = 1 << 62
DECISIONS_MAX: Final = 20_000


def copied(state: State, trial: Trial) -> bool:
    """`trial` on a copy of which nothing is shared."""
    other = State(
        snapshot.copy(state.cluster), state.capacity.strategy, state.preemptible.grow_after_s
    )
    other.begin(state.epoch, state.now_ns)
    other.pass_time(state.wall_ns)
    return trial(other)


def prepare(state: State) -> None:
    """Make a state that was only folded one that decides: in the term, and at the time, of the last
    commit.
    """
    state.epoch = state.cluster.epoch
    latest = max((mark.at_ns for mark in state.cluster.writers.values()), default=0)
    state.pass_time(max(state.wall_ns, latest))


def tell(state: State, facts: Iterable[AnyFact]) -> None:
    """Each as its rightful writer would record it now."""
    for fact in facts:
        kind = subjects.WRITER_OF[type(fact)]
        writer = str(getattr(fact, "node_id", "")) if kind == subjects.NODE_KIND else ""
        state.imagine(fact, Stamp(LAST, state.wall_ns, state.epoch, kind, writer))


def ending(job: Job, exit_code: int | None = None) -> Iterator[AnyFact]:
    """What its nodes say when it ends: by itself with an exit code, by a signal without one."""
    reason, signal = (STOPPED, 15) if exit_code is None else (EXITED, 0)
    for node_id, member in job.members.items():
        if member.state not in job_life.MEMBER_ENDED:
            yield JobFinished(
                job_id=job.job_id,
                attempt=job.attempt,
                node_id=node_id,
                exit_code=exit_code,
                signal=signal,
                reason=reason,
                run_ms=1,
            )
        if member.state not in job_life.MEMBER_OVER:
            yield JobReleased(job_id=job.job_id, attempt=job.attempt, node_id=node_id)


def decided(state: State) -> Iterator[AnyFact]:
    """All that the scheduler would say now, each folded before it is given.

    Who is preempted ends at once.
    """
    for _ in range(DECISIONS_MAX):
        facts = decide(state, state.now_ns, Observations(quiet=state.restless.quiet), state.wall_ns)
        if not facts:
            return
        state.apply_own(facts, state.wall_ns)
        for fact in facts:
            yield fact
            if isinstance(fact, JobPreempted):
                tell(state, [*ending(state.cluster.jobs[fact.job_id])])


def decided_until(state: State, job_id: JobId) -> Iterator[AnyFact]:
    """The same, but nothing after the placement of this job."""
    for fact in decided(state):
        yield fact
        if places(state, fact, job_id):
            return


def places(state: State, fact: AnyFact, job_id: JobId) -> bool:
    """Whether it is the placement of this job, or of an element of this array."""
    return isinstance(fact, JobPlaced) and job_id in (
        fact.job_id,
        state.cluster.jobs[fact.job_id].array,
    )


def placed_now(state: State, job_id: JobId) -> Job | None:
    """The job, or the element of this array, that the scheduler would place now.

    Its decisions before that are taken, or all when it would place none.
    """
    fact = next(
        (fact for fact in decided_until(state, job_id) if places(state, fact, job_id)), None
    )
    return state.cluster.jobs[fact.job_id] if isinstance(fact, JobPlaced) else None
