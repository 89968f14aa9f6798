"""The waiting jobs in the order in which the scheduler tries them, with their expected starts.

Pure. The order is that of the decisions (`queueing/queue_order.py`). The starts come from one
course of the future for all jobs of a page, by the rules of `estimate.py`. Tests:
tests/unit/test_upcoming.py.
"""

from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from libs.common.facts import JobPlaced
from libs.common.life import job_life
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.explain.asker import sees
from services.scheduler.explain.estimate import MS, end_of
from services.scheduler.explain.trial import decided, ending, prepare, tell
from services.scheduler.queueing.queue_order import Rank, rank
from services.scheduler.queueing.shape import LaneId
from services.scheduler.state.state import State

# Ends of jobs in one course of the future.
ENDS_MAX: Final = 500
BASIS: Final = (
    "a guess: running jobs end as their users' estimates, earlier jobs of the same tenant or time "
    "limits say; jobs submitted meanwhile may go first"
)


class UpcomingAsk(msgspec.Struct, frozen=True):
    """A question for a page of the queue: at most `limit` jobs behind position `after`.

    `queue`: only this queue's jobs; empty for all. `asker` is the only tenant whose jobs the answer
    may name; None means all. Jobs of others keep their positions.
    """

    queue: str = ""
    after: int = 0
    limit: int = 200
    asker: TenantId | None = TenantId("")


def upcoming(state: State, ask: UpcomingAsk) -> dict[str, object]:
    """Return the page and the number of all waiting jobs. Changes the state: time passes in it."""
    prepare(state)
    state.asker = ask.asker
    line = _in_order(state, ask.queue)
    page = [
        (position, job)
        for position, job in enumerate(line, start=1)
        if position > ask.after and sees(state, job.tenant)
    ]
    shown = page[: ask.limit]
    seq = state.cluster.seq
    starts = _starts(state, {job.job_id for _, job in shown})
    return {
        "jobs": [
            {"position": position, "job_id": job.job_id, "in_s": starts.get(job.job_id)}
            for position, job in shown
        ],
        "next": shown[-1][0] if len(page) > len(shown) else None,
        "total": len(line),
        "basis": BASIS,
        "at": seq,
    }


def no_upcoming(text: str, seq: int) -> dict[str, object]:
    """Return an answer of the same form that says why there is none."""
    return {"jobs": [], "next": None, "total": 0, "basis": text, "at": seq}


def _in_order(state: State, queue: str) -> list[Job]:
    """Return the jobs in the queue, the next one to be tried first."""
    ranks: dict[LaneId, Rank] = {}
    keyed = []
    for job in state.cluster.jobs.values():
        if job.state != job_life.QUEUED or job.order.held or job.order.waits or not job.has_room:
            continue
        if queue not in ("", state.queue_of(job).name):
            continue
        lane = state.lane_of(job)
        if lane not in ranks:
            ranks[lane] = rank(state, lane)
        keyed.append((ranks[lane], state.key_of(job), job.job_id))
    return [state.cluster.jobs[job_id] for _, _, job_id in sorted(keyed)]


def _starts(state: State, wanted: set[JobId]) -> dict[JobId, int]:
    """Return the seconds until the wanted jobs start, as far as that can be said."""
    now = state.wall_ns
    found: dict[JobId, int] = {}
    expected = (end_of(state, state.cluster.jobs[job_id]) for job_id in state.noted)
    ends = [end for end in expected if end is not None]
    heapify(ends)
    for _ in range(ENDS_MAX):
        for fact in decided(state):
            if not isinstance(fact, JobPlaced):
                continue
            job = state.cluster.jobs[fact.job_id]
            for name in (job.job_id, job.array):
                if name in wanted:
                    found.setdefault(name, (state.wall_ns - now) // (1_000 * MS))
            end = end_of(state, job)
            if end is not None:
                heappush(ends, end)
        if not ends or len(found) == len(wanted):
            break
        end = heappop(ends)
        state.pass_time(end.at_ns)
        tell(state, [*ending(state.cluster.jobs[end.job_id], exit_code=0)])
    return found
