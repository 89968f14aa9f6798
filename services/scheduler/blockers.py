"""What rules each node out for a job that waits, in plain words, counted: the part of `why` about nodes.

Pure. It asks what the ranking asks (`placement/ranking.py`), from what never changes to what is free at present, and names the first no.
"""

from collections.abc import Iterator
from typing import Any, Final

from libs.common import gpu_life
from libs.common.cluster import Job, Node, is_leaving, node_gpus
from libs.common.model import WHOLE_GPU
from services.scheduler.placement.circles import circle_of
from services.scheduler.placement.place import Place, host_serves, takes
from services.scheduler.placement.wish import Wish, wish_of
from services.scheduler.state import State

Blocker = dict[str, Any]

NAMED_MAX: Final = 8


def node_blockers(state: State, job: Job) -> Iterator[Blocker]:
    """The nodes that cannot take a member now, counted by what rules them out."""
    wish = wish_of(job.spec)
    counts: dict[str, list[str]] = {}
    for node in state.cluster.nodes.values():
        what = _node_blocker(state, node, job, wish)
        if what:
            counts.setdefault(what, []).append(node.node_id)
    for what, nodes in counts.items():
        yield blocker(what, len(nodes), ", ".join(sorted(nodes)[:NAMED_MAX]) + (" ..." if len(nodes) > NAMED_MAX else ""))


def blocker(what: str, count: int, detail: str) -> Blocker:
    return {"what": what, "count": count, "detail": detail}


def _node_blocker(state: State, node: Node, job: Job, wish: Wish) -> str:
    if not node.usable:
        return f"node {node.state}"
    if is_leaving(state.cluster, node.node_id):
        return "node is to be removed"
    place = state.capacity.places[state.capacity.index[node.node_id]]
    assert place is not None
    views = [view for view in node_gpus(state.cluster, node) if view.present]
    if len(views) < wish.gpus:
        return f"has fewer than {wish.gpus} GPUs"
    if sum(1 for view in views if wish.need(view.gpu)) < wish.gpus:
        return "has other GPUs than the job asks for"
    if sum(1 for view in views if view.health in gpu_life.USABLE) < wish.gpus:
        return "devices not healthy"
    return _host_blocker(place, wish) or _device_blocker(place, wish, circle_of(state.cluster, job.tenant))


def _host_blocker(place: Place, wish: Wish) -> str:
    if wish.node_list and place.node_id not in wish.node_list:
        return "not in the job's list of nodes"
    if any(place.node.labels.get(name) != value for name, value in wish.labels):
        return "has not the labels that the job asks for"
    if not place.admits(wish):
        return "runs a job that this one keeps away from"
    if wish.cpus_milli > place.node.cpus_milli or wish.memory_bytes > place.node.memory_bytes:
        return "has too few CPUs or too little memory"
    return "" if host_serves(place, wish) else "CPUs or memory in use"


def _device_blocker(place: Place, wish: Wish, circle: str) -> str:
    needs = place.needs(wish)
    if next(takes(place, wish, circle, needs), None) is not None:
        return ""
    free = {index: part.free for index, part in place.parts.items()}
    free |= {index: WHOLE_GPU for index in range(len(needs.parts)) if place.whole >> index & 1}
    enough = [index for index, left in free.items() if 0 < needs.parts[index] <= left]
    if len(enough) < wish.gpus:
        return "devices in use"
    open_to = [index for index in enough if index not in place.parts or place.parts[index].circle == circle]
    if len(open_to) < wish.gpus:
        return "devices with another tenant's jobs"
    alike = [index for index in open_to if index not in place.parts or place.parts[index].isolation == wish.isolation]
    if len(alike) < wish.gpus:
        return "devices whose parts are kept apart in another way"
    return "no free place for the MIG instance" if wish.mig_profile else "free devices are not together as the job asks"
