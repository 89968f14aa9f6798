"""Choose nodes and devices for one attempt, or none: a gang is placed whole or not at all.

Pure. Best fit: a node with the fewest free devices that serves, so that whole nodes stay whole; a share goes to the
device with the least free share that serves. Ties go to the node that registered first, which is the same for every
reader of the log, wherever it began to read.
"""

from collections.abc import Iterator
from typing import Final

from libs.common.model import GPUS_PER_NODE_MAX, WHOLE_GPU, GpuHold, GpuId, JobSpec, NodeId
from services.scheduler.placement.capacity import Capacity, bits

Choice = list[tuple[NodeId, tuple[GpuHold, ...]]]

NOTHING: Final[Choice] = []


def choose(capacity: Capacity, spec: JobSpec, circle: str) -> Choice:
    """`spec.nodes` different nodes with their devices, in rank order; NOTHING when they cannot all be had now. A device that others
    hold a part of serves only their own circle (`circles.py`).
    """
    found: Choice = []
    for node_id, holds in _offers(capacity, spec, circle):
        found.append((node_id, holds))
        if len(found) == spec.nodes:
            return found
    return NOTHING


def possible(capacity: Capacity, spec: JobSpec) -> bool:
    """Whether the cluster, with nothing running on it, could hold this job."""
    wish = (spec.nodes, spec.gpus)
    known = capacity.possible.get(wish)
    if known is None:
        known = capacity.possible[wish] = sum(1 for size in capacity.sizes.values() if size >= spec.gpus) >= spec.nodes
    return known


def _offers(capacity: Capacity, spec: JobSpec, circle: str) -> Iterator[tuple[NodeId, tuple[GpuHold, ...]]]:
    """Nodes that can serve one member, best fit first."""
    if spec.gpu_share == WHOLE_GPU or spec.gpus == 0:
        yield from _whole_offers(capacity, spec.gpus)
    else:
        yield from _shared_offers(capacity, spec.gpus, spec.gpu_share, circle)


def _whole_offers(capacity: Capacity, gpus: int) -> Iterator[tuple[NodeId, tuple[GpuHold, ...]]]:
    for level in range(gpus, GPUS_PER_NODE_MAX + 1):
        for index in bits(capacity.by_free[level]):
            node_id = capacity.nodes[index]
            yield node_id, tuple(GpuHold(uuid) for uuid in capacity.whole[node_id][:gpus])


def _shared_offers(capacity: Capacity, gpus: int, share: int, circle: str) -> Iterator[tuple[NodeId, tuple[GpuHold, ...]]]:
    """First the nodes whose partly held devices serve alone, tightest first; then those that must open a whole device."""
    partly = [(free, node_id) for node_id, free in ((n, _tightest(capacity, n, gpus, share, circle)) for n in capacity.shared) if free]
    for free, node_id in sorted(partly):
        yield node_id, tuple(GpuHold(uuid, share) for _, uuid in free)
    served = {node_id: None for _, node_id in partly}
    for level in range(GPUS_PER_NODE_MAX + 1):
        for index in bits(capacity.by_free[level]):
            node_id = capacity.nodes[index]
            if node_id not in served and (holds := _mixed(capacity, node_id, gpus, share, circle)):
                yield node_id, holds


def _tightest(capacity: Capacity, node_id: NodeId, gpus: int, share: int, circle: str) -> list[tuple[int, GpuId]]:
    """The `gpus` partly held devices with the least free share that still serves; empty when there are not so many."""
    fitting = _fitting(capacity, node_id, share, circle)
    return list(fitting[:gpus]) if len(fitting) >= gpus else []


def _mixed(capacity: Capacity, node_id: NodeId, gpus: int, share: int, circle: str) -> tuple[GpuHold, ...]:
    """Partly held devices as far as they serve, whole ones for the rest; empty when the node cannot."""
    partly = _fitting(capacity, node_id, share, circle)
    devices = [uuid for _, uuid in partly] + capacity.whole[node_id]
    return tuple(GpuHold(uuid, share) for uuid in devices[:gpus]) if len(devices) >= gpus else ()


def _fitting(capacity: Capacity, node_id: NodeId, share: int, circle: str) -> list[tuple[int, GpuId]]:
    """Partly held devices that are open to the circle and have the share free, least free first."""
    partly = capacity.shared.get(node_id, {})
    return sorted((part.free, uuid) for uuid, part in partly.items() if part.free >= share and part.circle == circle)
