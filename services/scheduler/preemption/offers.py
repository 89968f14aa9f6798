"""Offers of nodes for preemption: the jobs to end there so that a request fits.

An offer names the jobs that lose least, and only those that are needed.

Pure, and derived like a ranking (`placement/ranking.py`): only nodes that changed since the last
use are examined again. On one node, jobs that saved their work last come first; jobs whose end is
not needed are spared. Checked against all other choices by tests/property/test_making_room.py.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Final, NamedTuple

from libs.common.model import JobId, attempt_key
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.changes import UNSEEN
from services.scheduler.placement.imagined import Imagined
from services.scheduler.placement.place import DeviceFit, Place, host_serves
from services.scheduler.placement.ranking import Ranked
from services.scheduler.placement.resource_request import ResourceRequest

# The work lost, the rank of the device fit (lower is better), and the node.
Cost = tuple[int, int, int]
# Returns whether a job may end for another one.
MayEnd = Callable[[Job], bool]


class Offer(NamedTuple):
    """The level of the device fit (`ranking.py`), its devices, and the jobs that end for them.

    `share` is what these jobs hold, in hundredths of a GPU. `saved` is the sum of share times the
    time of the last save, so `share * now - saved` is the work lost.
    """

    level: int
    fit: DeviceFit
    jobs: tuple[JobId, ...] = ()
    share: int = 0
    saved: int = 0


class Offers:
    """The offers for one request.

    `of` maps each node that could serve to its offer; `members` are the same nodes as bits.

    `seen` is the position up to which changes were examined. The order of offers with equal shares
    never changes, so each share has one sorted list in `by_share`, the last save first.
    """

    def __init__(self, request: ResourceRequest, sharing_domain: str, may_end: MayEnd) -> None:
        self.request: Final = request
        self.sharing_domain: Final = sharing_domain
        self.may_end: Final = may_end
        self.seen = UNSEEN
        self.members = 0
        self.of: dict[int, Offer] = {}
        self.by_share: dict[int, list[Cost]] = {}

    def bring_up(
        self, capacity: Capacity, cluster: Cluster, among: Iterable[int] | None = None
    ) -> None:
        """Examine the nodes that changed again, or only the nodes `among`.

        A changed score counts as a change of every node.
        """
        self.ranking = capacity.ranking(self.request, self.sharing_domain)
        changed, self.seen = capacity.changes.since(self.seen), capacity.changes.position
        for index in changed if among is None else among:
            place = capacity.places[index]
            found = self._offer_of(cluster, place) if place is not None else None
            before = self.of.pop(index, None)
            if before is not None:
                costs = self.by_share[before.share]
                del costs[bisect_left(costs, (-before.saved, -before.level, index))]
                self.members ^= 1 << index
            if found is not None:
                self.of[index] = found
                insort(
                    self.by_share.setdefault(found.share, []), (-found.saved, -found.level, index)
                )
                self.members |= 1 << index

    def cheapest(self, now_ns: int) -> Iterator[Cost]:
        """Yield all nodes, those that lose least first."""
        return merge(*[_costs(share * now_ns, costs) for share, costs in self.by_share.items()])

    def _offer_of(self, cluster: Cluster, place: Place) -> Offer | None:
        if place.index in self.ranking.best and host_serves(place, self.request):
            return Offer(*self.ranking.best[place.index])
        here = [cluster.jobs[job_id] for job_id in place.node.members]
        ending = sorted([job for job in here if self.may_end(job)], key=_least_lost)
        later = Imagined(cluster, place)
        for count, job in enumerate(ending, 1):
            found = self._rank(later.end(_key(job)))
            if found is not None:
                return self._sparing(later, ending[:count], found)
        return None

    def _sparing(self, later: Imagined, ending: list[Job], found: Ranked) -> Offer:
        """Return the offer without jobs whose end is not needed; the job that would lose most is
        spared first.
        """
        needed = {job.job_id: job for job in ending}
        for job in ending[-2::-1]:
            enough = self._rank(later.spare(_key(job)))
            if enough is None:
                later.end(_key(job))
            else:
                found = enough
                del needed[job.job_id]
        shares = [(share_of(job), saved_ns(job)) for job in needed.values()]
        return Offer(
            *found,
            tuple(needed),
            sum([share for share, _ in shares]),
            sum([share * saved for share, saved in shares]),
        )

    def _rank(self, place: Place) -> Ranked | None:
        """Return how an imagined node would serve."""
        return self.ranking.rank(place) if host_serves(place, self.request) else None


def _costs(share_ns: int, costs: list[Cost]) -> Iterator[Cost]:
    return ((share_ns + saved, level, index) for saved, level, index in costs)


def share_of(job: Job) -> int:
    """Return what the job holds on all its nodes, in hundredths of a GPU; at least 1."""
    return ledger.share_of(job.members.values()) or 1


def saved_ns(job: Job) -> int:
    """Return the time from which the job's work would have to be repeated."""
    return max(job.placed_ns, job.preemption.checkpointed_ns)


def _least_lost(job: Job) -> tuple[int, int, int, str]:
    return (-saved_ns(job), share_of(job), job.spec.priority, job.job_id)


def _key(job: Job) -> str:
    return attempt_key(job.job_id, job.attempt)
