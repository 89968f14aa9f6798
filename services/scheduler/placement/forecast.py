"""From when on each node will serve one member of a wish, by when the jobs that are there end at
latest, if nothing else begins there.

Pure, and derived: what it answers depends on the cluster and the time alone. Only nodes that
changed since it was last asked are looked at again, by the very questions of a placement
(`place.takes`), of the node without the jobs that will be gone. A job of which nobody can say when
it ends counts `UNKNOWN`, so that of nodes without a time the one with the fewest such jobs in the
way comes first.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from operator import or_
from typing import Final

from libs.common.model import JobSpec, attempt_key, job_of
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import SECOND_NS
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.changes import UNSEEN
from services.scheduler.placement.gang import Neighbours, together
from services.scheduler.placement.imagined import Imagined
from services.scheduler.placement.place import Place, fits, host_serves
from services.scheduler.placement.resource_request import ResourceRequest

# Later than every time that is known. A replica goes on for ever: it counts as many jobs that may
# end.
UNKNOWN: Final = 1 << 62
NEVER: Final = UNKNOWN << 20


def latest_end_ns(spec: JobSpec, placed_ns: int) -> int:
    """Until when an attempt that is placed then has ended at latest: its node ends it at its limit,
    counted from its start.
    """
    if not spec.time_limit_s:
        return UNKNOWN
    return placed_ns + (spec.start_s + spec.time_limit_s + spec.grace_s) * SECOND_NS


def expected_end_ns(job: Job) -> int:
    """The end of an attempt on nodes: by what was last said of an allocation, by its limit, else by
    its user's estimate.
    """
    if job.spec.serve is not None:
        return NEVER
    if job.expires_ns:
        return job.expires_ns
    if job.spec.time_limit_s or not job.spec.estimate_s:
        return latest_end_ns(job.spec, job.placed_ns)
    return job.placed_ns + job.spec.estimate_s * SECOND_NS


class Forecast:
    """`whens` are the nodes that could serve, and from when on they will (0: now; from UNKNOWN on
    nobody knows).

    `seen` is up to where it has looked at what changed.
    """

    def __init__(self, request: ResourceRequest, sharing_domain: str) -> None:
        self.request: Final = request
        self.sharing_domain: Final = sharing_domain
        self.whens: Final[dict[int, int]] = {}
        self.seen = UNSEEN

    def bring_up(self, cluster: Cluster, capacity: Capacity, now_ns: int) -> None:
        changed, self.seen = capacity.changes.since(self.seen), capacity.changes.position
        for index in changed:
            place = capacity.places[index]
            self.whens.pop(index, None)
            when = self._when(cluster, place, now_ns) if place is not None else None
            if when is not None:
                self.whens[index] = when

    def _when(self, cluster: Cluster, place: Place, now_ns: int) -> int | None:
        """None: not even with nothing on it. An end that has passed is not known any more."""
        ends: list[tuple[int, str]] = []
        for key in _attempts(place):
            end = expected_end_ns(cluster.jobs[job_of(key)])
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
    """From when on the whole wish can be served, and on which nodes, as bits; none where it never
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
    """All that is on the node, or holds something of it."""
    here = (attempt_key(job_id, attempt) for job_id, attempt in place.node.members.items())
    return list(
        dict.fromkeys(
            (*here, *place.node.held, *(key for view in place.views for key in view.holds))
        )
    )
