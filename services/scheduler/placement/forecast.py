"""Forecast when each node will serve one member of a request: by the latest ends of its jobs, if no
other job starts there.

Pure, and derived: the answer depends on the cluster and the time alone. Only nodes that changed
since the last use are examined again, by the checks of a placement (`place.fits`) on the node
without the jobs that will have ended. A job without a known end counts `UNKNOWN`, so that among
nodes without a time, the one with the fewest such jobs in the way comes first.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from operator import or_
from typing import Final

from libs.common.model import JobId, JobSpec, attempt_key, job_of
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import SECOND_NS
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.changes import UNSEEN
from services.scheduler.placement.gang import Neighbours, together
from services.scheduler.placement.imagined import Imagined
from services.scheduler.placement.place import Place, fits, host_serves
from services.scheduler.placement.resource_request import ResourceRequest

# Later than every known time. A replica never ends, so it counts as many jobs with an unknown end.
UNKNOWN: Final = 1 << 62
NEVER: Final = UNKNOWN << 20
# When a job on lent nodes ends that is called back.
AT_ONCE: Final = 0


def latest_end_ns(spec: JobSpec, placed_ns: int) -> int:
    """Return the latest end of an attempt that is placed at `placed_ns`.

    Its node ends it at its time limit, counted from its start. The scheduler ends an allocation
    when its time is over, counted from the placement. UNKNOWN without either.
    """
    if spec.allocation is not None:
        return placed_ns + (spec.allocation.expires_s + spec.grace_s) * SECOND_NS
    if not spec.time_limit_s:
        return UNKNOWN
    return placed_ns + (spec.start_s + spec.time_limit_s + spec.grace_s) * SECOND_NS


def expected_end_ns(job: Job) -> int:
    """Return the expected end of an attempt on nodes: the end of its allocation, its limit, or its
    user's estimate.
    """
    spec = job.spec
    if spec.serve is not None:
        return NEVER
    if job.expires_ns:
        return job.expires_ns
    if spec.time_limit_s:
        return latest_end_ns(spec, job.placed_ns)
    return job.placed_ns + spec.estimate_s * SECOND_NS if spec.estimate_s else UNKNOWN


class Forecast:
    """The nodes that could serve, and when.

    `whens` maps a node to the time from which it will serve (0: now; unknown from UNKNOWN on).
    `called_back` are the jobs on lent nodes, which end for this request at once. `seen` is the
    examined position of the changes.
    """

    def __init__(
        self, request: ResourceRequest, sharing_domain: str, called_back: tuple[JobId, ...] = ()
    ) -> None:
        self.request: Final = request
        self.called_back: Final = called_back
        self.sharing_domain: Final = sharing_domain
        self.whens: Final[dict[int, int]] = {}
        self.seen = UNSEEN

    def bring_up(self, cluster: Cluster, capacity: Capacity, now_ns: int) -> None:
        """Examine the nodes that changed since the last use."""
        changed, self.seen = capacity.changes.since(self.seen), capacity.changes.position
        for index in changed:
            place = capacity.places[index]
            self.whens.pop(index, None)
            when = self._when(cluster, place, now_ns) if place is not None else None
            if when is not None:
                self.whens[index] = when

    def _when(self, cluster: Cluster, place: Place, now_ns: int) -> int | None:
        """Return when the node serves; None if it does not even when empty. An end that has passed
        is unknown.
        """
        ends: list[tuple[int, str]] = []
        for key in _attempts(place):
            job = cluster.jobs[job_of(key)]
            if job.job_id in self.called_back:
                ends.append((AT_ONCE, key))
                continue
            end = expected_end_ns(job)
            ends.append((end if end > now_ns else UNKNOWN, key))
        ends.sort()
        later, gone = Imagined(cluster, place), 0
        while not self._serves(later.place):
            if gone == len(ends):
                return None
            later.end(ends[gone][1])
            gone += 1
        known = [end for end, _ in ends[:gone] if end < UNKNOWN]
        return max(known, default=0) + sum(end for end, _ in ends[len(known) : gone])

    def _serves(self, place: Place) -> bool:
        if not host_serves(place, self.request) or not place.admits(self.request):
            return False
        return (
            next(fits(place, self.request, self.sharing_domain, place.needs(self.request)), None)
            is not None
        )


def earliest(
    whens: Mapping[int, int], request: ResourceRequest, near: Neighbours
) -> tuple[int, int]:
    """Return when the whole request can be served, and on which nodes (bits); no nodes if it never
    can be.
    """
    if request.nodes == 1 and whens:
        when, index = min(zip(whens.values(), whens, strict=True))
        return when, 1 << index
    order = sorted(whens, key=lambda index: (whens[index], index))
    first = list(accumulate((1 << index for index in order), or_))
    count = bisect_left(first, True, key=lambda nodes: together(nodes, request, near) != 0)
    if count == len(first):
        return UNKNOWN, 0
    group = together(first[count], request, near)
    chosen = [index for index in order if group >> index & 1][: request.nodes]
    return max(whens[index] for index in chosen), sum(1 << index for index in chosen)


def _attempts(place: Place) -> list[str]:
    """Return all attempts that run on the node or hold something there."""
    here = (attempt_key(job_id, attempt) for job_id, attempt in place.node.members.items())
    return list(
        dict.fromkeys(
            (*here, *place.node.held, *(key for view in place.views for key in view.holds))
        )
    )
