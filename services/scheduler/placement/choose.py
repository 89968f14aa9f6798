"""Choose nodes and devices for one attempt, or none: a gang is placed whole or not at all.

Pure. Which way a node would serve, and how good that is, stands in the wish's ranking (`ranking.py`); which nodes of a gang belong
together says `gang.py`.
"""

from typing import Final

from libs.common.model import GpuHold, JobSpec, NodeId
from services.scheduler.placement import gang
from services.scheduler.placement.capacity import SERVING_MAX, Capacity, Serving
from services.scheduler.placement.place import host_serves
from services.scheduler.placement.ranking import Ranking
from services.scheduler.placement.strategies import ROUND_ROBIN
from services.scheduler.placement.wish import Wish, wish_of

Choice = list[tuple[NodeId, tuple[GpuHold, ...]]]

NOTHING: Final[Choice] = []


def choose(capacity: Capacity, spec: JobSpec, circle: str, barred: int = 0) -> Choice:
    return choose_for(capacity, wish_of(spec), circle, barred)


def choose_for(capacity: Capacity, wish: Wish, circle: str, barred: int = 0) -> Choice:
    """`wish.nodes` different nodes with their devices, in rank order; NOTHING when they cannot all be had now. A device that others
    hold a part of serves only their own circle (`circles.py`). `barred` are nodes that are not for this job, as bits.
    """
    ranking = capacity.ranking(wish, circle)
    if wish.nodes > 1:
        chosen = gang.members(ranking, wish, capacity.near, barred)
        return [_member(capacity, ranking, index, wish) for index in chosen] or NOTHING
    after = capacity.placed_last if capacity.strategy_of(wish) == ROUND_ROBIN else -1
    for index in ranking.in_order(after):
        place = capacity.places[index]
        if place is not None and not barred >> index & 1 and host_serves(place, wish):
            return [_member(capacity, ranking, index, wish)]
    return NOTHING


def _member(capacity: Capacity, ranking: Ranking, index: int, wish: Wish) -> tuple[NodeId, tuple[GpuHold, ...]]:
    place = capacity.places[index]
    assert place is not None, "a ranking holds usable nodes"
    return place.node_id, place.taken(ranking.best[index][1], wish)


def possible(capacity: Capacity, wish: Wish) -> bool:
    """Whether the cluster, with nothing running on it, could hold this job."""
    return serving(capacity, wish) != 0


def serving(capacity: Capacity, wish: Wish) -> int:
    """The nodes that could serve it with nothing running there, as bits; none where the cluster could not hold it."""
    known = capacity.serving.get(wish)
    if known is None:
        if len(capacity.serving) >= SERVING_MAX:
            capacity.serving.clear()
        known = capacity.serving[wish] = Serving()
    if known.seen != capacity.builds.position:
        _look_again(capacity, wish, known)
    return known.together


def _look_again(capacity: Capacity, wish: Wish, known: Serving) -> None:
    """At the nodes that are built otherwise than when somebody last asked."""
    changed, known.seen = capacity.builds.since(known.seen), capacity.builds.position
    concerned = 0
    for index in changed:
        place, bit = capacity.places[index], 1 << index
        before = known.alone & bit
        known.alone &= ~bit
        if place is not None and place.could_serve(wish):
            known.alone |= bit
        concerned |= before | known.alone & bit
    if concerned:
        known.together = known.alone if gang.together(known.alone, wish, capacity.near) else 0
