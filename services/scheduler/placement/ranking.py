"""The nodes that can serve one request now, best first.

Only nodes that changed since the last use are examined again. Pure, and derived: the answer depends
on the cluster alone. A set of nodes is an integer with one bit per node in the order of first
registration, so among equals the lowest bit is chosen.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Final

from services.scheduler.placement.changes import UNSEEN, Changes
from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.hardware import Hardware
from services.scheduler.placement.place import DeviceFit, Place, fits, host_serves
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import Score

# A level of the topology weighs more than any score.
CROSSED_BITS: Final = 40
# Number of cached answers for nodes without a partly held device.
KEPT_MAX: Final = 10_000

# The node's level (higher is better), and its best device fit.
Ranked = tuple[int, DeviceFit]


class Ranking:
    """The ranked nodes of one request.

    `levels` are the nodes by level, as bits. `best` is the device fit of each of them. `seen` is
    the examined position of the changes. `takes_turns`: among equal nodes, those behind the node of
    the last placement come first.
    """

    def __init__(
        self,
        request: ResourceRequest,
        sharing_domain: str,
        score: Score,
        mix: WorkloadMix,
        takes_turns: bool = False,
    ) -> None:
        self.request: Final = request
        self.sharing_domain: Final = sharing_domain
        self.score: Final = score
        self.mix: Final = mix
        self.takes_turns: Final = takes_turns
        self.seen = UNSEEN
        self.levels: Final[dict[int, int]] = {}
        self.best: Final[dict[int, Ranked]] = {}
        # True if only the build and the free capacity of a node matter.
        self._plain: Final = not (
            request.labels
            or request.node_list
            or request.uuids
            or request.anti_affinity
            or request.means
            or request.excluded
        )
        # A node with less free than this on every device, or with fewer whole devices, cannot
        # serve.
        self._least: Final = request.share if request.gpus else 0
        self._wholes: Final = request.gpus if request.whole else 0
        self._kept: Final[dict[tuple[Hardware, int, int, int], Ranked | None]] = {}

    @property
    def members(self) -> int:
        """The nodes that can serve the request, as bits."""
        return reduce(or_, self.levels.values(), 0)

    def bring_up(self, places: list[Place | None], changes: Changes) -> int:
        """Examine the nodes that changed since the last use, and return how many those are."""
        if self.seen == changes.position:
            return 0
        changed = changes.since(self.seen)
        self.seen = changes.position
        best = self.best
        levels = self.levels
        for index in changed:
            place = places[index]
            found = self.rank(place) if place is not None else None
            before = best.get(index)
            if found == before:
                continue
            bit = 1 << index
            if before is not None:
                left = levels[before[0]] ^ bit
                if left:
                    levels[before[0]] = left
                else:
                    del levels[before[0]]
            if found is not None:
                best[index] = found
                levels[found[0]] = levels.get(found[0], 0) | bit
            else:
                del best[index]
        return len(changed)

    def in_order(
        self, excluded: int = 0, preferred: int = 0, placed_last: int = -1
    ) -> Iterator[int]:
        """Yield the nodes without the `excluded` ones (bits), best first.

        Among equals the `preferred` ones (bits) come first, then, if the strategy takes turns,
        those behind the node of the last placement.
        """
        is_split = preferred or self.takes_turns
        for level in sorted(self.levels, reverse=True):
            nodes = self.levels[level] & ~excluded
            for part in self._split(nodes, preferred, placed_last) if is_split else (nodes,):
                while part:
                    lowest = part & -part
                    yield lowest.bit_length() - 1
                    part ^= lowest

    def _split(self, nodes: int, preferred: int, placed_last: int) -> tuple[int, ...]:
        """Return the preferred bits, then the others; in both, first the nodes whose turn it is."""
        first = placed_last + 1 if self.takes_turns else 0
        behind = nodes >> first << first
        before = nodes ^ behind
        return (behind & preferred, before & preferred, behind & ~preferred, before & ~preferred)

    def rank(self, place: Place) -> Ranked | None:
        """Return how a node, real or imagined, would serve; None if it cannot.

        Nodes of one build with equal free capacity share one cached answer.
        """
        if place.whole.bit_count() < self._wholes or place.widest < self._least:
            return None
        if not self._plain or place.parts:
            return self._compute_rank(place)
        key = (place.hardware, place.whole, place.cpus_free, place.memory_free)
        if key in self._kept:
            return self._kept[key]
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]  # the oldest
        found = self._kept[key] = self._compute_rank(place)
        return found

    def _compute_rank(self, place: Place) -> Ranked | None:
        request = self.request
        if not host_serves(place, request):
            return None
        found: Ranked | None = None
        for fit in fits(place, request, self.sharing_domain, place.needs(request)):
            level = self.score(place, fit, request, self.mix) - (fit.crossed << CROSSED_BITS)
            if found is None or level > found[0]:
                found = (level, fit)
        return found if found is not None and (self._plain or place.admits(request)) else None
