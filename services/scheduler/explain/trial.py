"""The trial of a change: a copy of the state folds its facts, then `decide` shows what follows.

Pure. The explanation uses the scheduler's own rules, so a change that starts the job here starts it
in the cluster too. The caller makes the copies: `copied` by value, the live scheduler by a fork
(`questions/aside.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec.structs import replace

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

# Imagined facts come after all recorded ones.
LAST: Final = 1 << 62
DECISIONS_MAX: Final = 20_000


def copied(state: State, trial: Trial) -> bool:
    """Run `trial` on a deep copy of the state."""
    other = State(
        snapshot.copy(state.cluster), state.capacity.strategy, state.preemptible.grow_after_s
    )
    other.begin(state.epoch, state.now_ns)
    other.pass_time(state.wall_ns)
    return trial(other)


def prepare(state: State) -> None:
    """Let a state that was only folded decide, in the term and at the time of its last commit.

    No agent answers a copy, so gangs start without their preflights.
    """
    state.epoch = state.cluster.epoch
    state.fabric_rules = replace(state.fabric_rules, preflights=False)
    latest = max((mark.at_ns for mark in state.cluster.writers.values()), default=0)
    state.pass_time(max(state.wall_ns, latest))


def tell(state: State, facts: Iterable[AnyFact]) -> None:
    """Fold these facts as if their rightful writers recorded them now."""
    for fact in facts:
        kind = subjects.WRITER_OF[type(fact)]
        writer = str(getattr(fact, "node_id", "")) if kind == subjects.NODE_KIND else ""
        state.imagine(
            fact,
            Stamp(seq=LAST, at_ns=state.wall_ns, epoch=state.epoch, writer=kind, writer_id=writer),
        )


def ending(job: Job, exit_code: int | None = None) -> Iterator[AnyFact]:
    """Yield what the nodes record when the job ends: by itself with an exit code, by a signal
    without one.
    """
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
    """Yield all that the scheduler would decide now, each fact after it was folded.

    A preempted job ends at once.
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
    """Yield the same decisions up to the placement of this job."""
    for fact in decided(state):
        yield fact
        if places(state, fact, job_id):
            return


def places(state: State, fact: AnyFact, job_id: JobId) -> bool:
    """Return whether the fact places this job, or an element of this array."""
    return isinstance(fact, JobPlaced) and job_id in (
        fact.job_id,
        state.cluster.jobs[fact.job_id].array,
    )


def placed_now(state: State, job_id: JobId) -> Job | None:
    """Return the job, or the element of this array, that the scheduler would place now.

    Its earlier decisions are applied, or all of them if it would not place the job.
    """
    fact = next(
        (fact for fact in decided_until(state, job_id) if places(state, fact, job_id)), None
    )
    return state.cluster.jobs[fact.job_id] if isinstance(fact, JobPlaced) else None
