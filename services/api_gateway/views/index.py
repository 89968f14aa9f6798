"""An index over the jobs of the fold: by name, by prefix of the id and by submission. It also
counts the jobs in each state.

Pure. The gateway calls `touch` for each job that a commit changed. Jobs that the fold has forgotten
(the oldest ended ones) leave this index too. Tests: tests/unit/test_job_index.py.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job

CANDIDATES_MAX: Final = 10
SCAN_MAX: Final = 10_000
FILL_SLICE: Final = 100
# Sorts after every id that begins with a prefix.
_AFTER: Final = "\x7f"

# Returns whether the principal may see a job.
Visible = Callable[[Job], bool]


class Place(NamedTuple):
    """A job's place in the list of all jobs.

    Jobs are listed by `seq`, the commit that submitted them. Replicas and elements share the `seq`
    of their model or array and stand in the order in which they appeared (`number`).
    """

    seq: int
    number: int
    job_id: JobId = JobId("")
    tenant: str = ""


class JobIndex:
    """An index over one Cluster. If it is not made `whole` at once, `filled` must run first."""

    def __init__(self, cluster: Cluster, whole: bool = True) -> None:
        self.cluster = cluster
        self.ids: list[JobId] = []
        self.by_name: dict[str, list[JobId]] = {}
        self.places: list[Place] = []
        # The same places by tenant: the list of one tenant costs nothing for the jobs of others.
        self.by_tenant: dict[str, list[Place]] = {}
        self.place_of: dict[JobId, Place] = {}
        self.state_of: dict[JobId, tuple[str, str]] = {}
        self.counts: Counter[str] = Counter()
        self.ended: deque[JobId] = deque()
        # The allocations of each tenant that has some.
        self.allocations: dict[str, dict[JobId, None]] = {}
        self._added = 0
        if whole:
            for _ in self.filled():
                pass

    def filled(self) -> Iterator[int]:
        """Add all jobs of the cluster, and yield after each few, so that a caller can pause."""
        for number, job in enumerate(self.cluster.jobs.values()):
            self._add(job, in_order=False)
            if number % FILL_SLICE == 0:
                yield number
        self.ids.sort()
        self.places.sort()
        for places in self.by_tenant.values():
            places.sort()
        self.ended.extend(self.cluster.ended)

    def touch(self, job_id: JobId) -> str:
        """Update the entry of a job that may have changed; return its state before, or empty."""
        job = self.cluster.jobs.get(job_id)
        if job is None:
            return ""
        known = self.state_of.get(job_id)
        if known is None:
            self._add(job, in_order=True)
        elif known[0] != job.state:
            self.counts[known[0]] -= 1
            self.counts[job.state] += 1
            self.state_of[job_id] = (job.state, known[1])
        if job.state in job_life.ENDED and (known is None or known[0] not in job_life.ENDED):
            self.ended.append(job_id)
        return known[0] if known is not None else ""

    def forget_gone(self) -> list[JobId]:
        """Drop the jobs that left the fold and return their ids."""
        gone = []
        while self.ended and self.ended[0] not in self.cluster.jobs:
            job_id = self.ended.popleft()
            self._drop(job_id)
            gone.append(job_id)
        return gone

    def listed(self, after: Place, count: int, tenant: str = "") -> list[Place]:
        """Return the next `count` places of the list, of one tenant if given, which follow
        `after`.
        """
        places = self.by_tenant.get(tenant, []) if tenant else self.places
        first = bisect_right(places, after)
        return places[first : first + count]

    def listed_back(self, before: Place, count: int, tenant: str = "") -> list[Place]:
        """Return the `count` places of the list, of one tenant if given, before `before`, the
        nearest first.
        """
        places = self.by_tenant.get(tenant, []) if tenant else self.places
        end = bisect_left(places, before)
        return places[max(0, end - count) : end][::-1]

    def allocations_of(self, tenant: str) -> list[Job]:
        """Return the allocations of a tenant, at no cost for its other jobs."""
        return [self.cluster.jobs[job_id] for job_id in self.allocations.get(tenant, ())]

    def named(self, name: str, visible: Visible) -> Job | None:
        """Return the latest visible live job of that name, else the latest visible one."""
        latest = None
        for job_id in reversed(self.by_name.get(name, ())):
            job = self.cluster.jobs[job_id]
            if not visible(job):
                continue
            if job.state not in job_life.ENDED:
                return job
            latest = latest or job
        return latest

    def beginning(self, prefix: str, visible: Visible) -> list[JobId]:
        """Return at most CANDIDATES_MAX visible ids with this prefix, of the first SCAN_MAX."""
        first, last = bisect_left(self.ids, prefix), bisect_left(self.ids, prefix + _AFTER)
        ids = self.ids[first : min(last, first + SCAN_MAX)]
        candidates = (job_id for job_id in ids if visible(self.cluster.jobs[job_id]))
        return list(islice(candidates, CANDIDATES_MAX))

    def _add(self, job: Job, in_order: bool) -> None:
        """Add a job. An element is found through its array, so its name and id are not indexed."""
        self._added += 1
        place = Place(job.seq, self._added, job.job_id, job.tenant)
        self.place_of[job.job_id] = place
        of_tenant = self.by_tenant.setdefault(job.tenant, [])
        if in_order:
            insort(self.places, place)
            insort(of_tenant, place)
        else:
            self.places.append(place)
            of_tenant.append(place)
        name = "" if job.array else job.spec.name
        if in_order and not job.array:
            insort(self.ids, job.job_id)
        elif not job.array:
            self.ids.append(job.job_id)
        if name:
            self.by_name.setdefault(name, []).append(job.job_id)
        if job.spec.allocation is not None:
            self.allocations.setdefault(job.tenant, {})[job.job_id] = None
        self.state_of[job.job_id] = (job.state, name)
        self.counts[job.state] += 1

    def _drop(self, job_id: JobId) -> None:
        state, name = self.state_of.pop(job_id)
        self.counts[state] -= 1
        place = self.place_of.pop(job_id)
        del self.places[bisect_left(self.places, place)]
        of_tenant = self.by_tenant[place.tenant]
        del of_tenant[bisect_left(of_tenant, place)]
        if not of_tenant:
            del self.by_tenant[place.tenant]
        if job_id in (held := self.allocations.get(place.tenant, {})):
            del held[job_id]
            if not held:
                del self.allocations[place.tenant]
        at = bisect_left(self.ids, job_id)
        if self.ids[at : at + 1] == [job_id]:
            del self.ids[at]
        if name:
            self.by_name[name].remove(job_id)
            if not self.by_name[name]:
                del self.by_name[name]
