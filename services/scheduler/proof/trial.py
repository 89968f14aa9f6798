"""A change tried: told to a copy of the state as the facts that it would be in the log, then `decide` says what follows.

Pure. There is no second opinion on whether a job fits: what starts it here starts it there. Copies are the caller's to make: `copied` does
it by value, the live scheduler by a fork (`aside.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from libs.common import snapshot, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact, JobPlaced
from libs.common.model import JobId
from services.scheduler.decide import Heard, decide
from services.scheduler.state import State

Trial = Callable[[State], bool]
# Runs a trial on a copy of the state.
Apart = Callable[[State, Trial], bool]

# What is imagined comes after all that was recorded.
LAST: Final = 1 << 62
DECISIONS_MAX: Final = 20_000


def copied(state: State, trial: Trial) -> bool:
    """`trial` on a copy of which nothing is shared."""
    other = State(snapshot.copy(state.cluster), placement=state.capacity.strategy)
    other.begin(state.epoch, state.now_ns)
    other.pass_time(state.wall_ns)
    return trial(other)


def prepare(state: State) -> None:
    """Make a state that was only folded one that decides: in the term, and at the time, of the last commit."""
    state.epoch = state.cluster.epoch
    latest = max((mark.at_ns for mark in state.cluster.writers.values()), default=0)
    state.pass_time(max(state.wall_ns, latest))


def tell(state: State, facts: Iterable[AnyFact]) -> None:
    """Each as its rightful writer would record it now."""
    for fact in facts:
        kind = subjects.WRITER_OF[type(fact)]
        writer = str(getattr(fact, "node_id", "")) if kind == subjects.NODE_KIND else ""
        state.hear(fact, Stamp(LAST, state.wall_ns, state.epoch, kind, writer))


def decided(state: State) -> Iterator[AnyFact]:
    """All that the scheduler would say now, each folded before it is given."""
    for _ in range(DECISIONS_MAX):
        facts = decide(state, state.now_ns, Heard(quiet=state.quiet), state.wall_ns)
        if not facts:
            return
        state.apply_own(facts, state.wall_ns)
        yield from facts


def decided_until(state: State, job_id: JobId) -> Iterator[AnyFact]:
    """The same, but nothing after the placement of this job."""
    for fact in decided(state):
        yield fact
        if isinstance(fact, JobPlaced) and fact.job_id == job_id:
            return


def begins(state: State, job_id: JobId) -> bool:
    """Whether the scheduler would place this job now. Its decisions before that are taken, or all when it would not."""
    return any(isinstance(fact, JobPlaced) and fact.job_id == job_id for fact in decided_until(state, job_id))
