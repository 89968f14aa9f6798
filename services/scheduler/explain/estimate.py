"""The estimate of when a job starts if nothing else changes: running jobs end as expected, one
after the other, and the rules decide.

Pure. A job's expected duration is its user's estimate, otherwise the average of its tenant's jobs,
never more than its time limit (`policies/srsf.py`). A job without an expected end, or past it, is
assumed to go on. Jobs that are submitted later may go first.
"""

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from libs.common.facts import JobPlaced
from libs.common.model import JobId
from libs.common.quantities import counted
from libs.common.state.cluster import Job
from services.scheduler.explain.trial import decided, ending, places, tell
from services.scheduler.placement.choose import possible
from services.scheduler.policies.srsf import expected_of
from services.scheduler.state.state import State

MS: Final = 1_000_000
ENDS_MAX: Final = 2_000

ESTIMATE: Final = "their users' estimates"
ALLOTTED: Final = "the ends of allocations"
HISTORY: Final = "earlier jobs of the same tenant"
LIMIT: Final = "time limits"


class Estimate(NamedTuple):
    """The seconds until the start, or None if they are unknown, and the basis of the estimate."""

    in_s: int | None
    basis: str


class End(NamedTuple):
    """The expected end of a job, and the source of that expectation."""

    at_ns: int
    job_id: JobId
    word: str


def estimate(state: State, job: Job) -> Estimate:
    """Return when a waiting job starts, in a state in which no decision is left.

    Changes the state: time passes in it.
    """
    if job.order.held or job.order.waits:
        return Estimate(None, "none: it is not in the queue")
    if job.preemption.reserved:
        return Estimate(
            None, "none: as soon as the jobs that make room for it have saved their work and ended"
        )
    now = state.wall_ns
    if job.refusals.waits(now):
        return Estimate(
            (job.refusals.not_before_ns - now) // (1_000 * MS) + 1,
            "when its wait is over, if a node is free then",
        )
    ends = [
        end
        for job_id in state.noted
        if (end := end_of(state, state.cluster.jobs[job_id])) is not None
    ]
    silent = len(state.noted) - len(ends)
    heapify(ends)
    words: Counter[str] = Counter()
    for _ in range(ENDS_MAX):
        if not ends:
            break
        end = heappop(ends)
        state.pass_time(end.at_ns)
        tell(state, [*ending(state.cluster.jobs[end.job_id], exit_code=0)])
        words[end.word] += 1
        for fact in decided(state):
            if isinstance(fact, JobPlaced):
                if places(state, fact, job.job_id):
                    return Estimate((end.at_ns - now) // (1_000 * MS), _basis(words))
                started = end_of(state, state.cluster.jobs[fact.job_id])
                if started is None:
                    silent += 1
                else:
                    heappush(ends, started)
    return Estimate(None, _without_estimate(state, job, silent, bool(ends)))


def end_of(state: State, job: Job) -> End | None:
    """Return when a job is expected to end; None if that is unknown, or past."""
    if job.expires_ns > state.wall_ns:
        return End(job.expires_ns, job.job_id, ALLOTTED)
    began = job.started_ns or job.placed_ns
    limit_ms = job.spec.time_limit_s * 1_000
    for word, expected_ms in ((_basis_of(job), expected_of(job)), (LIMIT, limit_ms)):
        at_ns = began + (min(expected_ms, limit_ms) if limit_ms else expected_ms) * MS
        if expected_ms and at_ns > state.wall_ns:
            return End(at_ns, job.job_id, word)
    return None


def _basis_of(job: Job) -> str:
    return ESTIMATE if job.spec.estimate_s else HISTORY if job.order.usual_ms else LIMIT


def _basis(words: Counter[str]) -> str:
    sources = ", ".join(f"{word} ({counted(number, 'job')})" for word, number in words.items())
    return f"a guess from {sources}; jobs submitted meanwhile may go first"


def _without_estimate(state: State, job: Job, silent: int, more: bool) -> str:
    if job.refusals.avoided(state.wall_ns) and not possible(
        state.capacity, state.queue.request(job)
    ):
        return "none: nodes that refused it are excluded for a while"
    if not possible(state.capacity, state.queue.request(job)):
        return "none: this cluster cannot hold it as it is"
    if more:
        return f"none: not once the next {ENDS_MAX} jobs ended"
    if silent:
        verb = "has" if silent == 1 else "have"
        return f"none: {counted(silent, 'job')} ahead {verb} no time limit and no estimate"
    return "none: it would not start even after all running jobs have ended"
