"""The changes that an explanation tries, from the cheapest to the most expensive: the rows of
`KINDS`.

Pure. A change is the facts by which people would make it. `cheapest` tries each on a copy of the
state (`trial.py`) and returns, for each kind, the first that starts the job. A job's request is not
changed in place: the job is cancelled and submitted again behind all others.
tests/property/test_why.py checks that no cheaper listed change starts the job.
"""

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import PRIORITY_MAX
from libs.common.state.cluster import Job
from services.scheduler.explain import devices_back, less, limits
from services.scheduler.explain.change import Change, again
from services.scheduler.explain.new_nodes import added
from services.scheduler.explain.trial import RunOnCopy, placed_now, tell
from services.scheduler.placement.choose import NO_PLACEMENT, choose
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.state.state import State


def released(state: State, job: Job) -> Iterator[Change]:
    """Release a held job."""
    if job.order.held:
        yield Change(
            f"release it (muster release {job.job_id})",
            (f.JobUpdated(job_id=job.job_id, held=False),),
            job.job_id,
            job.spec,
        )


def unbound(state: State, job: Job) -> Iterator[Change]:
    """Submit a job that waits for other jobs again without its dependencies."""
    if job.order.waits and not job.order.held:
        yield again(
            job,
            "submit it again without --after and --singleton",
            replace(job.spec, after=(), singleton=False),
        )


def limited(state: State, job: Job) -> Iterator[Change]:
    """Give the job a time limit short enough for backfill; the longest ones come first."""
    may_have_one = job.spec.serve is None and job.batch is None
    for text, seconds in TIME_LIMITS.items() if may_have_one else ():
        if not 0 < job.spec.time_limit_s <= seconds:
            what = f"give it a time limit of {text} (muster update {job.job_id} --time {text})"
            yield Change(
                what, (f.JobUpdated(job_id=job.job_id, time_limit_s=seconds),), job.job_id, job.spec
            )


def priority(state: State, job: Job) -> Iterator[Change]:
    """Raise the job's priority: by one step, then to the next tens."""
    own = job.spec.priority
    for value in sorted({own + 1, *range(own // 10 * 10 + 10, PRIORITY_MAX, 10), PRIORITY_MAX}):
        if own < value <= PRIORITY_MAX:
            what = (
                f"raise its priority from {own} to {value} (muster update {job.job_id} "
                f"--priority {value})"
            )
            yield Change(
                what, (f.JobUpdated(job_id=job.job_id, priority=value),), job.job_id, job.spec
            )


# In seconds.
HOUR: Final = 3_600
TIME_LIMITS: Final = {
    **{f"{days}d": days * 24 * HOUR for days in (7, 3, 1)},
    **{f"{hours}h": hours * HOUR for hours in (12, 8, 4, 2, 1)},
    **{f"{minutes}m": minutes * 60 for minutes in (30, 10, 5, 1)},
}

Kind = Callable[[State, Job], Iterator[Change]]
# First what needs only a command, then what the job's user can do without, then what costs other
# jobs, then what must be bought.
KINDS: Final[tuple[Kind, ...]] = (
    released,
    unbound,
    limits.raised,
    limited,
    less.gpus,
    less.nodes,
    less.shares,
    less.pools,
    less.larger_parts,
    less.host,
    less.constraints,
    priority,
    devices_back.returned,
    devices_back.ended,
    added,
)


def cheapest(state: State, job: Job, run_on_copy: RunOnCopy) -> list[Change]:
    """Return the first change of each kind that starts the job now, the cheapest kind first."""
    found = (
        next((each for each in kind(state, job) if starts(state, job, each, run_on_copy)), None)
        for kind in KINDS
    )
    return [change for change in found if change is not None]


def starts(state: State, job: Job, change: Change, run_on_copy: RunOnCopy) -> bool:
    """Return whether the job starts now after this change."""
    if (
        change.must_fit is not None
        and not state.preemptible.jobs
        and choose(state.capacity, change.must_fit, sharing_domain_of(state.cluster, job.tenant))
        is NO_PLACEMENT
    ):
        return False

    def trial(copy: State) -> bool:
        tell(copy, change.facts)
        return placed_now(copy, change.job_id) is not None

    return run_on_copy(state, trial)
