"""The nodes that could serve one wish now, best first.

Only nodes that changed since it was last asked are looked at again.

Pure, and derived: what it answers depends on the cluster alone, never on when it was asked. A set
of nodes is an integer, one bit each in the order of their first registration, so that among equals
the lowest bit is the choice.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from services.scheduler.placement.bits import indexes
from services.scheduler.placement.changes import UNSEEN
from services.scheduler.placement.hardware import Hardware
from services.scheduler.placement.place import DeviceFit, Place, fits, host_serves
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import Score
from services.scheduler.placement.workload_mix import WorkloadMix

# A level of the topology weighs more than any score.
CROSSED_BITS: Final = 40
# Answers about nodes of which no device is partly held.
KEPT_MAX: Final = 10_000

# How good a node is, and how it would serve.
Ranked = tuple[int, DeviceFit]


class Ranking:
    """`levels` are the nodes by how good they are, as bits; `best` says how each of the `members`
    would serve; `seen` is up to where it has looked at what changed.
    """

    def __init__(
        self, request: ResourceRequest, sharing_domain: str, score: Score, mix: WorkloadMix
    ) -> None:
        self.request: Final = request
        self.sharing_domain: Final = sharing_domain
        self.score: Final = score
        self.mix: Final = mix
        self.seen = UNSEEN
        self.members = 0
        self.levels: Final[dict[int, int]] = {}
        self.best: Final[dict[int, Ranked]] = {}
        # Whether all that matters of a node is what it is built of and what is free.
        self._plain: Final = not (
            request.labels
            or request.node_list
            or request.uuids
            or request.anti_affinity
            or request.means
            or request.excluded
        )
        # A node of which no device has so much free, or not so many are wholly free, serves nobody.
        self._least: Final = request.share if request.gpus else 0
        self._wholes: Final = request.gpus if request.whole else 0
        self._kept: Final[dict[tuple[Hardware, int, int, int], Ranked | None]] = {}

    def look_at(self, places: list[Place | None], changed: Iterable[int]) -> None:
        """These nodes have changed."""
        for index in changed:
            place = places[index]
            found = self.rank(place) if place is not None else None
            before = self.best.get(index)
            if found == before:
                continue
            if before is not None:
                self._drop(before[0], index)
            if found is not None:
                self.best[index] = found
                self.members |= 1 << index
                self.levels[found[0]] = self.levels.get(found[0], 0) | 1 << index

    def in_order(self, after: int = -1) -> Iterator[int]:
        """The nodes, best first; of equals those behind `after` before the others."""
        if not self.levels:
            return
        yield from _from(self.levels[max(self.levels)], after)
        for level in sorted(self.levels, reverse=True)[1:]:
            yield from _from(self.levels[level], after)

    def _drop(self, level: int, index: int) -> None:
        del self.best[index]
        self.members ^= 1 << index
        left = self.levels[level] ^ 1 << index
        if left:
            self.levels[level] = left
        else:
            del self.levels[level]

    def rank(self, place: Place) -> Ranked | None:
        """How a node, or one that is imagined, would serve.

        Nodes of one build with as much free give the same answer: it is kept.
        """
        if place.widest < self._least or place.whole.bit_count() < self._wholes:
            return None
        if not self._plain or place.parts:
            return self._rank_anew(place)
        key = (place.hardware, place.whole, place.cpus_free, place.memory_free)
        if key in self._kept:
            return self._kept[key]
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]  # the oldest
        found = self._kept[key] = self._rank_anew(place)
        return found

    def _rank_anew(self, place: Place) -> Ranked | None:
        request = self.request
        if not host_serves(place, request):
            return None
        found: Ranked | None = None
        for fit in fits(place, request, self.sharing_domain, place.needs(request)):
            level = self.score(place, fit, request, self.mix) - (fit.crossed << CROSSED_BITS)
            if found is None or level > found[0]:
                found = (level, fit)
        return found if found is not None and (self._plain or place.admits(request)) else None


def _from(nodes: int, after: int) -> Iterator[int]:
    """The bits of a set, from one on and around."""
    behind = nodes >> (after + 1) << (after + 1)
    yield from indexes(behind)
    yield from indexes(nodes ^ behind)
