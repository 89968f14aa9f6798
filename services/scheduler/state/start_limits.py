"""The start limits of placed attempts, by this machine's boot clock.

Pure, and derived: a part of `State`.
"""

from collections.abc import Mapping
from heapq import heappop, heappush

from libs.common.model import JobId
from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS
from services.scheduler.state.buckets import waits_to_start


class StartLimits:
    """A heap of (limit, job, attempt)."""

    def __init__(self) -> None:
        self.limits: list[tuple[int, JobId, int]] = []

    def watch(self, job: Job, now_ns: int) -> None:
        """Count the start limit of the present attempt from now on."""
        heappush(self.limits, (now_ns + job.spec.start_s * SECOND_NS, job.job_id, job.attempt))

    def overdue(self, jobs: Mapping[JobId, Job], now_ns: int) -> Job | None:
        """Return a job whose start limit has passed.

        Drops the entries of attempts that began or ended.
        """
        while self.limits and self.limits[0][0] <= now_ns:
            _, job_id, attempt = self.limits[0]
            job = jobs.get(job_id)
            if job is not None and job.attempt == attempt and waits_to_start(job):
                return job
            heappop(self.limits)
        return None
