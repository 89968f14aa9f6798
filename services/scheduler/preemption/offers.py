"""What each node could offer a wish if jobs of lower priority ended there, and which: those that
lose least, and none in vain.

Pure, and derived as a ranking is (`placement/ranking.py`): only nodes that changed since it was
last asked are looked at again. On one node jobs are taken that saved their work last; what the
others then do not need is left alone. Held against all other choices by
tests/property/test_making_room.py.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Final, NamedTuple

from libs.common.model import JobId, attempt_key
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.changes import UNSEEN
from services.scheduler.placement.imagined import Imagined
from services.scheduler.placement.place import DeviceFit, Place, host_serves
from services.scheduler.placement.ranking import Ranked
from services.scheduler.placement.resource_request import ResourceRequest

# What is lost, how good the way is (the less, the better), and the node.
Cost = tuple[int, int, int]
# Whether a job may end for another one.
MayEnd = Callable[[Job], bool]


class Offer(NamedTuple):
    """How good the way is (`ranking.py`), the devices, the jobs that end for them.

    What these hold in all, in hundredths of a GPU, and the sum of that times when each saved its
    work last: `share * now - saved` is what is lost.
    """

    level: int
    fit: DeviceFit
    jobs: tuple[JobId, ...] = ()
    share: int = 0
    saved: int = 0


class Offers:
    """`of` has the nodes that could serve, also those that serve as they are; `members` are the
    same as bits.

    `seen` is up to where it has looked at what changed. Of offers that end as much the order never
    changes: they stand in one of the `lines`, who saved last first.
    """

    def __init__(self, request: ResourceRequest, sharing_domain: str, may_end: MayEnd) -> None:
        self.request: Final = request
        self.sharing_domain: Final = sharing_domain
        self.may_end: Final = may_end
        self.seen = UNSEEN
        self.members = 0
        self.of: dict[int, Offer] = {}
        self.lines: dict[int, list[Cost]] = {}

    def bring_up(
        self, capacity: Capacity, cluster: Cluster, among: Iterable[int] | None = None
    ) -> None:
        """Look again at what has changed, or just at these nodes.

        Scores that have changed are a change of every node.
        """
        self.ranking = capacity.ranking(self.request, self.sharing_domain)
        changed, self.seen = capacity.changes.since(self.seen), capacity.changes.position
        for index in changed if among is None else among:
            place = capacity.places[index]
            found = self._look_at(cluster, place) if place is not None else None
            before = self.of.pop(index, None)
            if before is not None:
                line = self.lines[before.share]
                del line[bisect_left(line, (-before.saved, -before.level, index))]
                self.members ^= 1 << index
            if found is not None:
                self.of[index] = found
                insort(self.lines.setdefault(found.share, []), (-found.saved, -found.level, index))
                self.members |= 1 << index

    def cheapest(self, now_ns: int) -> Iterator[Cost]:
        """All of them, those that lose least first."""
        return merge(*[_costs(share * now_ns, line) for share, line in self.lines.items()])

    def _look_at(self, cluster: Cluster, place: Place) -> Offer | None:
        if place.index in self.ranking.best and host_serves(place, self.request):
            return Offer(*self.ranking.best[place.index])
        here = [cluster.jobs[job_id] for job_id in place.node.members]
        asked = sorted([job for job in here if self.may_end(job)], key=_least_lost)
        later = Imagined(cluster, place)
        for count, job in enumerate(asked, 1):
            found = self._rank(later.end(_key(job)))
            if found is not None:
                return self._sparing(later, asked[:count], found)
        return None

    def _sparing(self, later: Imagined, asked: list[Job], found: Ranked) -> Offer:
        """Without those whose end is not needed, now that the last one ends; whoever would lose
        most is spared first.
        """
        needed = {job.job_id: job for job in asked}
        for job in asked[-2::-1]:
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
        """How an imagined node would serve."""
        return self.ranking.rank(place) if host_serves(place, self.request) else None


def _costs(share_ns: int, line: list[Cost]) -> Iterator[Cost]:
    return ((share_ns + saved, level, index) for saved, level, index in line)


def share_of(job: Job) -> int:
    """What it holds on all its nodes, in hundredths; at least 1."""
    return sum([hold.share for member in job.members.values() for hold in member.gpus]) or 1


def saved_ns(job: Job) -> int:
    """Since when its work would have to be done again."""
    return max(job.placed_ns, job.preemption.checkpointed_ns)


def _least_lost(job: Job) -> tuple[int, int, int, str]:
    return (-saved_ns(job), share_of(job), job.spec.priority, job.job_id)


def _key(job: Job) -> str:
    return attempt_key(job.job_id, job.attempt)
