"""The preemptible jobs on nodes: when each may be preempted, and how long it may save its work.

Pure. Times are of this machine's boot clock, from when this process saw the job run or the order to
stop. A scheduler that takes over starts the counts again, as with start limits. Tests:
tests/unit/test_preemption.py.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

import msgspec

from libs.common import reasons
from libs.common.life import job_life
from libs.common.model import JobId, JobSpec
from libs.common.state.cluster import Job
from libs.common.state.ordering import DEFAULT_QUEUE, SECOND_NS
from services.scheduler.placement.lending import may_be_called_back

NEVER: Final = 1 << 62


class Need(NamedTuple):
    """The priority of the job that needs room, and the queue in which it takes turns, if it does.

    `called_back` are the jobs on lent nodes that end for it (`lending.py`).
    """

    priority: int
    queue: str = ""
    called_back: tuple[JobId, ...] = ()


class Watched(msgspec.Struct):
    """An attempt seen running at `began_at`.

    From `grow_at` on it may restart with more nodes (0: never). At `save_until` its time to save
    ends (0: it is not preempted).
    """

    attempt: int
    began_at: int = NEVER
    grow_at: int = 0
    save_until: int = 0


class Preemptible:
    """The attempts of preemptible jobs.

    `overdue` were told to save their work and their time is over. `ripe` have run long enough to
    restart with more nodes. `borrowers` run on lent nodes. `slice_of` returns the length of a job's
    time slice.
    """

    def __init__(self, slice_of: Callable[[Job], int], grow_after_s: int = 0) -> None:
        self.slice_of: Final = slice_of
        self.grow_after_s: Final = grow_after_s
        self.jobs: dict[JobId, Watched] = {}
        self.overdue: dict[JobId, None] = {}
        self.ripe: dict[JobId, None] = {}
        self.borrowers: dict[JobId, None] = {}
        # Attempts whose time counts from the next reading of the clock.
        self._begun: dict[JobId, None] = {}
        self._timers: list[tuple[int, JobId, int]] = []

    def note(self, job: Job) -> None:
        """Note that a fact touched a preemptible job."""
        watched = self.jobs.get(job.job_id)
        if job.state not in job_life.ON_NODES or not is_saving(job):
            self.overdue.pop(job.job_id, None)
        if watched is not None and (
            job.state not in job_life.ON_NODES or watched.attempt != job.attempt
        ):
            del self.jobs[job.job_id]
            self.ripe.pop(job.job_id, None)
            self.borrowers.pop(job.job_id, None)
            self._begun.pop(job.job_id, None)
            watched = None
        if job.state not in job_life.ON_NODES:
            return
        if watched is None:
            watched = self.jobs[job.job_id] = Watched(job.attempt)
            if job.preemption.lender:
                self.borrowers[job.job_id] = None
        if (watched.began_at == NEVER and job.state == job_life.RUNNING) or (
            is_saving(job) and not watched.save_until
        ):
            self._begun[job.job_id] = None

    def begin(self, jobs: dict[JobId, Job]) -> None:
        """Begin a term: start all counts again."""
        known, self.jobs, self.ripe = self.jobs, {}, {}
        self.borrowers.clear()
        self._timers.clear()
        for job_id in known:
            self.note(jobs[job_id])

    def ring(self, jobs: dict[JobId, Job], now_ns: int) -> Iterator[JobId]:
        """Yield the jobs whose time has come since the last call."""
        for job_id in self._begun:
            self._time(jobs[job_id], self.jobs[job_id], now_ns)
        self._begun.clear()
        while self._timers and self._timers[0][0] <= now_ns:
            _, job_id, attempt = heappop(self._timers)
            watched = self.jobs.get(job_id)
            if watched is not None and watched.attempt == attempt:
                if 0 < watched.save_until <= now_ns and is_saving(jobs[job_id]):
                    self.overdue[job_id] = None
                if 0 < watched.grow_at <= now_ns:
                    self.ripe[job_id] = None
                yield job_id

    def may_yield(self, job: Job, need: Need, now_ns: int) -> bool:
        """Return whether the job may be preempted for this need."""
        watched = self.jobs.get(job.job_id)
        if watched is not None and job.job_id in need.called_back and may_be_called_back(job):
            return True
        runs = (
            job.state in (job_life.PLACED, job_life.RUNNING)
            and not job.stop_reason
            and job.cancel is None
        )
        after_s = self._yields_after_s(job, need)
        if watched is None or not runs or after_s is None:
            return False
        return not after_s or watched.began_at + after_s * SECOND_NS <= now_ns

    def _yields_after_s(self, job: Job, need: Need) -> int | None:
        """Return how long the job runs before it makes room for this need; None if it
        never does.
        """
        if job.spec.priority < need.priority:
            return job.spec.min_run_s
        equal = (
            job.spec.priority == need.priority and (job.spec.queue or DEFAULT_QUEUE) == need.queue
        )
        slice_s = self.slice_of(job) if equal else 0
        return max(job.spec.min_run_s, slice_s) if slice_s else None

    def reslice(self, jobs: dict[JobId, Job], queue: str) -> None:
        """Apply a changed time slice of the queue: check its jobs again now and at the end of their
        slices.
        """
        for job_id, watched in self.jobs.items():
            if watched.began_at < NEVER and (jobs[job_id].spec.queue or DEFAULT_QUEUE) == queue:
                self._ring_after(jobs[job_id], 0, 0)
                self._ring_after(jobs[job_id], watched.began_at, self.slice_of(jobs[job_id]))

    def _time(self, job: Job, watched: Watched, now_ns: int) -> None:
        if watched.began_at == NEVER and job.state == job_life.RUNNING:
            watched.began_at = now_ns
            for after_s in (job.spec.min_run_s, self.slice_of(job)):
                if after_s:
                    self._ring_after(job, now_ns, after_s)
            if may_grow(job.spec):
                watched.grow_at = self._ring_after(
                    job, now_ns, max(job.spec.min_run_s, self.grow_after_s)
                )
        if is_saving(job) and not watched.save_until:
            watched.save_until = self._ring_after(job, now_ns, job.spec.checkpoint_grace_s)

    def _ring_after(self, job: Job, now_ns: int, seconds: int) -> int:
        at_ns = now_ns + seconds * SECOND_NS
        heappush(self._timers, (at_ns, job.job_id, job.attempt))
        return at_ns


def is_saving(job: Job) -> bool:
    """Return whether the job is preempted and has more time than a stopped job, to
    save its work.
    """
    return job.stop_reason in reasons.GOES_ON and job.stop_grace_ms > job.spec.grace_s * 1_000


def may_grow(spec: JobSpec) -> bool:
    """Return whether the job saves its work on request and may have more nodes than it needs."""
    return spec.preemptible and spec.checkpoint_grace_s > 0 and spec.nodes_max > spec.nodes


def has_saved(job: Job) -> bool:
    """Return whether the job has answered with a checkpoint, so that no work is lost if it ends
    now.
    """
    return job.preemption.saved == job.attempt
