"""The nodes of a gang: in one rack if it holds enough, otherwise under one spine, otherwise in as
few racks as possible.

Pure. A gang is placed whole or not at all, on one GPU model unless the job accepts a mixture. Ranks
follow the topology: neighbours in a rack are neighbours in rank. A node with an unknown rack is in
none, so it never serves a gang that must keep together.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from services.scheduler.placement.bits import indexes
from services.scheduler.placement.ranking import Ranking
from services.scheduler.placement.resource_request import ResourceRequest

NO_NODES: Final[list[int]] = []

Found = TypeVar("Found")


class Neighbours(NamedTuple):
    """The nodes of each rack, spine and model, as bits, in the order of first registration; and the
    rack of each node.
    """

    rack: dict[str, int]
    spine: dict[str, int]
    model: dict[str, int]
    rack_of: dict[int, str]


def members(
    ranking: Ranking,
    request: ResourceRequest,
    near: Neighbours,
    excluded_nodes: int = 0,
    preferred: int = 0,
) -> list[int]:
    """Return `request.nodes` nodes in rank order without `excluded_nodes`; NO_NODES if there are
    too few that may be together.

    Among equal nodes of a neighbourhood the `preferred` ones (bits) are taken first.
    """
    kinds = [
        kind
        for kind in _kinds(ranking.members & ~excluded_nodes, request, near)
        if kind.bit_count() >= request.nodes
    ]
    for kind in sorted(kinds, key=_size):
        for group in _groups(kind, request, near):
            chosen = _best(ranking, group, request.nodes, near, preferred)
            return in_ranks(chosen, near)
    return NO_NODES


def together(serving: int, request: ResourceRequest, near: Neighbours) -> int:
    """Return those of these nodes of which enough may form the gang; 0 if there are too few."""
    kinds = [kind for kind in _kinds(serving, request, near) if kind.bit_count() >= request.nodes]
    return next((group for kind in kinds for group in _groups(kind, request, near)), 0)


def allowed(serving: int, request: ResourceRequest, near: Neighbours) -> Iterator[int]:
    """Yield the sets of nodes from which the gang may be taken, ignoring preferences."""
    for kind in _kinds(serving, request, near):
        required = (
            near.rack
            if "rack" in request.required
            else near.spine
            if "spine" in request.required
            else None
        )
        yield from (kind & bits for bits in required.values()) if required is not None else (kind,)


def widest(fewest: int, most: int, choose: Callable[[int], Found]) -> Found:
    """Return what `choose` returns for the largest possible number of nodes.

    If it finds nothing for a number, it finds nothing for a larger one.
    """
    more = range(fewest + 1, most + 1)
    return choose(fewest + bisect_left(more, True, key=lambda nodes: not choose(nodes)))


def _kinds(serving: int, request: ResourceRequest, near: Neighbours) -> list[int]:
    """Return the nodes by GPU model."""
    return (
        [serving]
        if request.mixed or not request.gpus or len(near.model) < 2
        else [serving & bits for bits in near.model.values()]
    )


def _groups(serving: int, request: ResourceRequest, near: Neighbours) -> Iterator[int]:
    """Yield the narrowest neighbourhoods that hold enough nodes, the tightest first."""
    for level, sets in (("rack", near.rack), ("spine", near.spine)):
        if level not in request.ignored and request.nodes > 1:
            enough = [
                group
                for group in map(serving.__and__, sets.values())
                if group.bit_count() >= request.nodes
            ]
            if enough:
                yield min(enough, key=_size)
        if level in request.required and request.nodes > 1:
            return
    yield serving


def _size(bits: int) -> tuple[int, int]:
    return bits.bit_count(), bits & -bits


def _best(ranking: Ranking, group: int, count: int, near: Neighbours, preferred: int) -> list[int]:
    """Take the nodes from as few racks as possible: the fullest first, the rest from the smallest
    that serves.
    """
    home = near.rack.get(near.rack_of[(group & -group).bit_length() - 1], 0)
    if "rack" in ranking.request.ignored or not group & ~home:
        return _top(ranking, group, count, preferred)
    chosen: list[int] = []
    while left := count - len(chosen):
        racks = [here for bits in near.rack.values() if (here := group & bits)]
        alone = group & ~sum(racks)
        racks += [1 << index for index in indexes(alone)] if not racks else []
        enough = [rack for rack in racks if rack.bit_count() >= left]
        fewest = min(map(int.bit_count, enough), default=0)
        most = fewest or max(map(int.bit_count, racks))
        suited = [rack for rack in racks if rack.bit_count() == most]
        rack = min(suited, key=lambda bits: (-(bits & preferred).bit_count(), bits & -bits))
        chosen += _top(ranking, rack, min(left, rack.bit_count()), preferred)
        group &= ~rack
    return chosen


def _top(ranking: Ranking, group: int, count: int, preferred: int) -> list[int]:
    """Return the best of these nodes by the strategy's score."""
    parts = (group & preferred, group & ~preferred) if preferred else (group,)
    best_first = (
        index
        for level in sorted(ranking.levels, reverse=True)
        for part in parts
        for index in indexes(ranking.levels[level] & part)
    )
    return list(islice(best_first, count))


def in_ranks(chosen: Iterable[int], near: Neighbours) -> list[int]:
    """Return the nodes in rank order: by registration, with the nodes of one rack together."""
    racks: dict[str, list[int]] = {}
    for index in sorted(chosen):
        racks.setdefault(near.rack_of[index], []).append(index)
    return [index for rack in racks.values() for index in rack]
