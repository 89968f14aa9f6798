"""Which jobs exist, by name, by the beginning of their id, and how many are in each state.

Pure. `touch` is called for each job that a commit changed; a job that the fold forgot (the oldest
ended ones) leaves this index too.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job

CANDIDATES_MAX: Final = 10
SCAN_MAX: Final = 10_000
# What sorts after every id that begins with a prefix.
_AFTER: Final = "\x7f"

# Whether the asker may know of a job.
Seen = Callable[[Job], bool]


class JobIndex:
    """An index over one Cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ids: list[JobId] = []
        self.by_name: dict[str, list[JobId]] = {}
        self.state_of: dict[JobId, tuple[str, str]] = {}
        self.counts: Counter[str] = Counter()
        self.ended: deque[JobId] = deque()
        for job_id in cluster.jobs:
            self._add(cluster.jobs[job_id], in_order=False)
        self.ids.sort()
        self.ended.extend(cluster.ended)

    def touch(self, job_id: JobId) -> None:
        """The job may have changed."""
        job = self.cluster.jobs.get(job_id)
        if job is None:
            return
        known = self.state_of.get(job_id)
        if known is None:
            self._add(job, in_order=True)
        elif known[0] != job.state:
            self.counts[known[0]] -= 1
            self.counts[job.state] += 1
            self.state_of[job_id] = (job.state, known[1])
        if job.state in job_life.ENDED and (known is None or known[0] not in job_life.ENDED):
            self.ended.append(job_id)

    def forget_gone(self) -> list[JobId]:
        """Drop what left the fold; gives the dropped ids."""
        gone = []
        while self.ended and self.ended[0] not in self.cluster.jobs:
            job_id = self.ended.popleft()
            self._drop(job_id)
            gone.append(job_id)
        return gone

    def named(self, name: str, seen: Seen) -> Job | None:
        """The latest live job of that name that is seen, else the latest."""
        latest = None
        for job_id in reversed(self.by_name.get(name, ())):
            job = self.cluster.jobs[job_id]
            if not seen(job):
                continue
            if job.state not in job_life.ENDED:
                return job
            latest = latest or job
        return latest

    def beginning(self, prefix: str, seen: Seen) -> list[JobId]:
        """The seen ids that begin so, at most CANDIDATES_MAX, of the first SCAN_MAX."""
        first, last = bisect_left(self.ids, prefix), bisect_left(self.ids, prefix + _AFTER)
        ids = self.ids[first : min(last, first + SCAN_MAX)]
        return list(
            islice((job_id for job_id in ids if seen(self.cluster.jobs[job_id])), CANDIDATES_MAX)
        )

    def _add(self, job: Job, in_order: bool) -> None:
        """An element is found by its array, not by its own name nor by the beginning of its id."""
        name = "" if job.array else job.spec.name
        if in_order and not job.array:
            insort(self.ids, job.job_id)
        elif not job.array:
            self.ids.append(job.job_id)
        if name:
            self.by_name.setdefault(name, []).append(job.job_id)
        self.state_of[job.job_id] = (job.state, name)
        self.counts[job.state] += 1

    def _drop(self, job_id: JobId) -> None:
        state, name = self.state_of.pop(job_id)
        self.counts[state] -= 1
        place = bisect_left(self.ids, job_id)
        if self.ids[place : place + 1] == [job_id]:
            del self.ids[place]
        if name:
            self.by_name[name].remove(job_id)
            if not self.by_name[name]:
                del self.by_name[name]
