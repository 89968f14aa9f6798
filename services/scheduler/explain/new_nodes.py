"""Additional nodes, as a change and for `whatif`.

They are built like an existing node, in a rack of their own. Pure.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from libs.common.facts import NodeRegistered
from libs.common.model import GPUS_PER_NODE_MAX, Gpu, GpuId, NodeId
from libs.common.quantities import counted
from libs.common.state.cluster import Cluster, Job, Node, node_gpus
from services.scheduler.explain.change import Change
from services.scheduler.explain.classes import build_of
from services.scheduler.explain.devices_back import again_registered
from services.scheduler.placement.resource_request import is_model, request_of
from services.scheduler.state.state import State

# No real id has an underscore.
NAME: Final = "new_{}"
COUNTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
BUILDS_MAX: Final = 2


def like_model(cluster: Cluster, model: str) -> Node | None:
    """Return the first node with a GPU of this model; of any model if it is empty."""
    for node in cluster.nodes.values():
        if any(is_model(model, cluster.gpus[uuid].gpu.model) for uuid in node.gpus):
            return node
    return None


def new_nodes(cluster: Cluster, like: Node, count: int, gpus: int) -> tuple[NodeRegistered, ...]:
    """Return the registrations of this many nodes like `like`, each with `gpus` GPUs."""
    return tuple(
        _new(cluster, like, NodeId(NAME.format(number)), gpus) for number in range(1, count + 1)
    )


def _new(cluster: Cluster, like: Node, node_id: NodeId, gpus: int) -> NodeRegistered:
    built = [view.gpu for view in node_gpus(cluster, like)]
    return replace(
        again_registered(cluster, like),
        node_id=node_id,
        incarnation=1,
        address=node_id,
        gpus=tuple(_device(built[index % len(built)], node_id, index) for index in range(gpus)),
        directory="",
        rack=like.rack and NAME.format("rack"),
        spine=like.spine and NAME.format("spine"),
    )


def _device(like: Gpu, node_id: NodeId, index: int) -> Gpu:
    return replace(like, uuid=GpuId(f"{node_id}-gpu{index}"), index=index)


def added(state: State, job: Job) -> Iterator[Change]:
    """Add nodes of each existing build that serves the job, the most common build first."""
    for like, gpus in _builds(state, job):
        build = build_of(state.cluster, like, gpus)
        for count in COUNTS:
            yield Change(
                f"add {counted(count, 'node')} of {build}",
                new_nodes(state.cluster, like, count, gpus),
                job.job_id,
            )


def _builds(state: State, job: Job) -> list[tuple[Node, int]]:
    """Return nodes to copy, with their number of GPUs.

    If none has as many GPUs as the job asks for, the copies get that many of a type that serves it.
    """
    request = request_of(job.spec)
    common: Counter[str] = Counter()
    first: dict[str, Node] = {}
    for node in state.cluster.nodes.values():
        build = build_of(state.cluster, node, len(node.gpus))
        common[build] += 1
        first.setdefault(build, node)
    serving = [
        first[build] for build, _ in common.most_common() if _serves(state, first[build], job)
    ]
    if request.gpus > GPUS_PER_NODE_MAX:
        return []
    enough = [
        (node, len(node.gpus)) for node in serving if _count(state, node, job) >= request.gpus
    ]
    return (enough or [(node, request.gpus) for node in serving])[:BUILDS_MAX]


def _serves(state: State, node: Node, job: Job) -> bool:
    return not job.spec.gpus or _count(state, node, job) > 0


def _count(state: State, node: Node, job: Job) -> int:
    request = request_of(job.spec)
    return sum(1 for view in node_gpus(state.cluster, node) if request.need(view.gpu))
