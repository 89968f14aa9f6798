"""The jobs on nodes that said `preemptible`: when each may be preempted, and how long one that is may still save its work.

Pure. Times are of this machine's boot clock, from when this process saw the job run, or told to stop: a scheduler that takes over counts
anew, as with start limits. Held by tests/unit/test_preemption.py.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

import msgspec

from libs.common import job_life
from libs.common.cluster import Job
from libs.common.model import JobId, JobSpec

NEVER: Final = 1 << 62


class Watched(msgspec.Struct):
    """An attempt; from `old_at` on it may be preempted, from `grow_at` on be begun anew with more nodes (0: never), at `save_until` it has
    had its time to save (0: it is not preempted).
    """

    attempt: int
    old_at: int
    grow_at: int
    save_until: int = 0


class Preemptible:
    """`overdue` are those that were told to save their work and whose time for it is over; `ripe` those that have run for long enough to be
    begun anew with more nodes.
    """

    def __init__(self, grow_after_s: int = 0) -> None:
        self.grow_after_s: Final = grow_after_s
        self.jobs: dict[JobId, Watched] = {}
        self.overdue: dict[JobId, None] = {}
        self.ripe: dict[JobId, None] = {}
        # Those whose time begins to count when this process next looks at its clock.
        self._begun: dict[JobId, None] = {}
        self._timers: list[tuple[int, JobId, int]] = []

    def note(self, job: Job) -> None:
        """A fact touched a job that may be preempted."""
        watched = self.jobs.get(job.job_id)
        if job.state not in job_life.ON_NODES or not is_saving(job):
            self.overdue.pop(job.job_id, None)
        if job.state not in job_life.ON_NODES:
            self.jobs.pop(job.job_id, None)
            self.ripe.pop(job.job_id, None)
            return
        if watched is None or watched.attempt != job.attempt:
            old_at, grow_at = NEVER if job.spec.min_run_s else 0, NEVER if may_grow(job.spec) else 0
            watched = self.jobs[job.job_id] = Watched(job.attempt, old_at, grow_at)
        begins = job.state == job_life.RUNNING and NEVER in (watched.old_at, watched.grow_at)
        if begins or (is_saving(job) and not watched.save_until):
            self._begun[job.job_id] = None

    def begin(self, jobs: dict[JobId, Job]) -> None:
        """A term begins: all is counted anew."""
        known, self.jobs, self.ripe = self.jobs, {}, {}
        self._timers.clear()
        for job_id in known:
            self.note(jobs[job_id])

    def ring(self, jobs: dict[JobId, Job], now_ns: int) -> Iterator[JobId]:
        """Those whose time has come since it was last asked."""
        for job_id in self._begun:
            if job_id in self.jobs:
                self._time(jobs[job_id], self.jobs[job_id], now_ns)
        self._begun.clear()
        while self._timers and self._timers[0][0] <= now_ns:
            _, job_id, attempt = heappop(self._timers)
            watched = self.jobs.get(job_id)
            if watched is not None and watched.attempt == attempt:
                if 0 < watched.save_until <= now_ns:
                    self.overdue[job_id] = None
                if 0 < watched.grow_at <= now_ns:
                    self.ripe[job_id] = None
                yield job_id

    def may_yield(self, job: Job, priority: int, now_ns: int) -> bool:
        """Whether it may be preempted for a job of this priority."""
        watched = self.jobs.get(job.job_id)
        runs = job.state in (job_life.PLACED, job_life.RUNNING) and not job.stop_reason and job.cancel is None
        return watched is not None and runs and job.spec.priority < priority and watched.old_at <= now_ns

    def _time(self, job: Job, watched: Watched, now_ns: int) -> None:
        if watched.old_at == NEVER and job.state == job_life.RUNNING:
            watched.old_at = self._ring_after(job, now_ns, job.spec.min_run_s)
        if watched.grow_at == NEVER and job.state == job_life.RUNNING:
            watched.grow_at = self._ring_after(job, now_ns, max(job.spec.min_run_s, self.grow_after_s))
        if is_saving(job) and not watched.save_until:
            watched.save_until = self._ring_after(job, now_ns, job.spec.checkpoint_grace_s)

    def _ring_after(self, job: Job, now_ns: int, seconds: int) -> int:
        at_ns = now_ns + seconds * 1_000_000_000
        heappush(self._timers, (at_ns, job.job_id, job.attempt))
        return at_ns


def is_saving(job: Job) -> bool:
    """It is to go on by another attempt, and has more time than any job that is stopped."""
    return job.stop_reason in job_life.GOES_ON and job.stop_grace_ms > job.spec.grace_s * 1_000


def may_grow(spec: JobSpec) -> bool:
    """It says that it saves its work when it is told to, and may have more nodes than it needs."""
    return spec.preemptible and spec.checkpoint_grace_s > 0 and spec.nodes_max > spec.nodes


def has_saved(job: Job) -> bool:
    """It has answered by a checkpoint: nothing is lost if it ends now."""
    return job.preemption.saved == job.attempt
