"""The measured fabric between a gang's nodes in words, for the answer of `why`.

Pure. Only a rack that was measured is quoted: a declared one needs no proof. Tests:
tests/unit/test_why_measured.py.
"""

from collections.abc import Collection
from typing import Final

from libs.common.facts.fabric_facts import ABANDONED
from libs.common.model import NodeId
from libs.common.quantities import counted
from libs.common.state.cluster import Cluster, Job
from libs.common.state.fabric import pair_key
from services.scheduler.fabric.fit import median

# Below this ratio in tenths, a rack is no argument.
FASTER_MIN: Final = 11


def measured_racks(cluster: Cluster, nodes: Collection[NodeId]) -> str:
    """Return how much faster the measured rack of these nodes is than its nearest neighbour.

    Empty if the nodes are not in one measured rack, or there is nothing to compare it with.
    """
    racks = list(dict.fromkeys(_measured(cluster, node_id) for node_id in nodes))
    rack = racks[0] if len(racks) == 1 else ""
    if not rack or len(nodes) < 2:
        return ""
    inside = [node_id for node_id, name in cluster.fabric.racks.items() if name == rack]
    within = _bandwidths(cluster, inside, inside)
    outside = {
        node_id: median(found)
        for node_id in cluster.fabric.nodes
        if node_id not in inside and (found := _bandwidths(cluster, [node_id], inside))
    }
    if not within or not outside:
        return ""
    nearest = max(outside, key=lambda node_id: (outside[node_id], node_id))
    tenths = median(within) * 10 // max(1, outside[nearest])
    if tenths < FASTER_MIN:
        return ""
    return (
        f"rack {rack} was measured {tenths // 10}.{tenths % 10}x faster within than to {nearest}, "
        f"its nearest node outside, at {_clock(cluster.fabric.racks_ns)} UTC"
    )


def measuring(job: Job) -> str:
    """Return that the gang waits for its preflight, as a sentence."""
    nodes = ", ".join(member.node_id for member in job.preemption.reserved)
    return f"its preflight measures the links between {nodes}, for at most 5 s; then it starts"


def preflight_words(job: Job) -> str:
    """Return what the last preflight of the present attempt found; empty without one."""
    last = job.preflight
    if last is None or last.attempt != job.attempt:
        return ""
    detail = f" ({last.detail})" if last.detail else ""
    return f"its preflight {last.outcome}: {counted(last.measured, 'pair')} measured{detail}"


def lost_place_words(job: Job) -> str:
    """Return that the gang's place became unusable during its preflight; empty otherwise."""
    last = job.preflight
    if last is None or last.attempt != job.attempt or last.outcome != ABANDONED:
        return ""
    return f"a node or device on {', '.join(last.nodes)} became unusable during its preflight"


def racks_in_words(cluster: Cluster, job: Job) -> str:
    """Return the measured racks that a waiting gang could use; empty if it does not need one."""
    names = [each for node in cluster.nodes if (each := _measured(cluster, node))]
    if job.spec.nodes < 2 or job.spec.rack != "required" or not names:
        return ""
    counts = ", ".join(f"{name} with {names.count(name)} nodes" for name in dict.fromkeys(names))
    at = _clock(cluster.fabric.racks_ns)
    return f"; its rack must be one of those measured at {at} UTC: {counts}"


def _clock(at_ns: int) -> str:
    """Return a time of the day, for example 12:03."""
    minutes = at_ns // 60_000_000_000
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


def _measured(cluster: Cluster, node_id: NodeId) -> str:
    """Return the node's rack if placement uses the measured one."""
    node = cluster.nodes[node_id]
    return node.measured_rack if node.network_rack == node.measured_rack else ""


def _bandwidths(
    cluster: Cluster, some: Collection[NodeId], others: Collection[NodeId]
) -> list[int]:
    pairs = cluster.fabric.pairs
    found = [pairs.get(pair_key(a, b)) for a in some for b in others if a != b]
    return [view.bandwidth for view in found if view is not None and view.bandwidth]
