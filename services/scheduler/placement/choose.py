"""The choice of nodes and devices for one attempt: a gang is placed whole or not at all.

Pure. How well each node would serve is in the request's ranking (`ranking.py`); which nodes of a
gang belong together is decided by `gang.py`.
"""

from typing import Final

from libs.common.model import GpuHold, JobSpec, NodeId
from services.scheduler.placement import gang
from services.scheduler.placement.capacity import SERVING_MAX, Capacity, Serving
from services.scheduler.placement.place import host_serves
from services.scheduler.placement.ranking import Ranking
from services.scheduler.placement.resource_request import ResourceRequest, request_of

Choice = list[tuple[NodeId, tuple[GpuHold, ...]]]

NO_PLACEMENT: Final[Choice] = []


def choose(
    capacity: Capacity, spec: JobSpec, sharing_domain: str, excluded_nodes: int = 0
) -> Choice:
    """Return a placement for this spec, or NO_PLACEMENT."""
    return choose_for(capacity, request_of(spec), sharing_domain, excluded_nodes)


def choose_for(
    capacity: Capacity,
    request: ResourceRequest,
    sharing_domain: str,
    excluded_nodes: int = 0,
    preferred: int = 0,
) -> Choice:
    """Return `request.nodes` nodes with their devices, in rank order; NO_PLACEMENT if they are not
    all free.

    A partly held device serves only its own sharing domain (`sharing_domains.py`). `excluded_nodes`
    are nodes that the job must not use, as bits. `preferred` ones come first among equals.
    """
    ranking = capacity.ranking(request, sharing_domain)
    if request.nodes > 1:
        chosen = gang.members(ranking, request, capacity.near, excluded_nodes, preferred)
        return [_member(capacity, ranking, index, request) for index in chosen] or NO_PLACEMENT
    for index in ranking.in_order(excluded_nodes, preferred, capacity.placed_last):
        place = capacity.places[index]
        assert place is not None, "a ranking holds usable nodes"
        if host_serves(place, request):
            return [(place.node_id, place.taken(ranking.best[index][1], request))]
    return NO_PLACEMENT


def _member(
    capacity: Capacity, ranking: Ranking, index: int, request: ResourceRequest
) -> tuple[NodeId, tuple[GpuHold, ...]]:
    place = capacity.places[index]
    assert place is not None, "a ranking holds usable nodes"
    return place.node_id, place.taken(ranking.best[index][1], request)


def possible(capacity: Capacity, request: ResourceRequest) -> bool:
    """Return whether the cluster, with no job running, could hold this job."""
    return serving(capacity, request) != 0


def serving(capacity: Capacity, request: ResourceRequest) -> int:
    """Return the nodes, as bits, that could serve the request with no job running; 0 if the cluster
    could not hold it.
    """
    known = capacity.serving.get(request)
    if known is None:
        if len(capacity.serving) >= SERVING_MAX:
            capacity.serving.clear()
        known = capacity.serving[request] = Serving()
    if known.seen != capacity.builds.position:
        _examine_builds(capacity, request, known)
    return known.together


def _examine_builds(capacity: Capacity, request: ResourceRequest, known: Serving) -> None:
    """Examine the nodes that were added, removed or rebuilt since the last use."""
    changed, known.seen = capacity.builds.since(known.seen), capacity.builds.position
    if len(changed) > len(capacity.by_build) and request.asks_resources_only:
        known.alone = _alone(capacity, request)
        known.together = known.alone if gang.together(known.alone, request, capacity.near) else 0
        return
    concerned = 0
    for index in changed:
        place, bit = capacity.places[index], 1 << index
        before = known.alone & bit
        known.alone &= ~bit
        if place is not None and place.could_serve(request):
            known.alone |= bit
        concerned |= before | known.alone & bit
    if concerned:
        known.together = known.alone if gang.together(known.alone, request, capacity.near) else 0


def _alone(capacity: Capacity, request: ResourceRequest) -> int:
    """Return the nodes, as bits, that could serve one member: one node of each build is asked."""
    found = 0
    for nodes in capacity.by_build.values():
        place = capacity.places[(nodes & -nodes).bit_length() - 1]
        assert place is not None, "a build has usable nodes only"
        if place.could_serve(request):
            found |= nodes
    return found
