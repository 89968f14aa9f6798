"""`whatif` with nodes that nobody has bought: the state as if they had joined, and all that waits had been placed on them first.

Pure. It applies facts to a state of its own (`past.py` folds one in a child process) and asks the very rules that decide. Held by
tests/unit/test_scheduler_with_nodes.py.
"""

from typing import Any, Final

from msgspec.structs import replace

from libs.common import fold, job_life, subjects
from libs.common.change import Stamp
from libs.common.cluster import Cluster, Job, Node
from libs.common.facts import JobPlaced, NodeRegistered
from libs.common.model import Gpu, GpuId, JobId, NodeId
from services.scheduler.decide import place
from services.scheduler.placement.strategies import DEFAULT
from services.scheduler.placement.wish import is_model
from services.scheduler.state import State
from services.scheduler.what_if import LAST, WhatIfAsk, what_if

# Nothing real is called so: no id has an underscore.
NAME: Final = "new_{}"
IMAGINED: Final = JobId("imagined_")
# Of jobs that wait: beyond this many the answer would take too long.
PLACED_MAX: Final = 20_000


def what_if_added(cluster: Cluster, ask: WhatIfAsk, placement: str = DEFAULT) -> dict[str, Any]:
    """As `what_if`, after these nodes came and what stands before the job was placed. Changes the cluster. `placement` is its strategy."""
    assert ask.add is not None, "without new nodes this is what_if"
    add = ask.add
    like = _like(cluster, add.model)
    if like is None:
        known = ", ".join(sorted({view.gpu.model for view in cluster.gpus.values()})) or "none"
        text = f"no node here has such GPUs, so what a new one would have is not known; there are: {known}"
        return {"would_start": False, "placement": [], "answer": text, "blockers": [], "remedy": None, "at": cluster.seq}
    for number in range(1, add.nodes + 1):
        _join(cluster, like, NodeId(NAME.format(number)), add.gpus)
    cluster.jobs[IMAGINED] = Job(IMAGINED, ask.spec, ask.tenant, "", seq=LAST, state=job_life.QUEUED, admitted=True)
    grown = State(cluster, placement=placement)
    grown.epoch = cluster.epoch
    placed = _place_before(grown)
    found = what_if(grown, ask)
    what = f"with {add.nodes} nodes of {add.gpus} {add.model or 'such'} GPUs more, and {placed} jobs before it placed"
    return found | {"answer": f"{what}: {found['answer']}"}


def _like(cluster: Cluster, model: str) -> Node | None:
    """The first node with such a device."""
    for node in cluster.nodes.values():
        if any(is_model(model, cluster.gpus[uuid].gpu.model) for uuid in node.gpus):
            return node
    return None


def _join(cluster: Cluster, like: Node, node_id: NodeId, gpus: int) -> None:
    """A node built like that one, elsewhere: its rack is not known."""
    built = [cluster.gpus[uuid].gpu for uuid in like.gpus]
    fact = NodeRegistered(
        node_id=node_id,
        incarnation=1,
        address=node_id,
        gpus=tuple(_device(built[index % len(built)], node_id, index) for index in range(gpus)),
        cpus_milli=like.cpus_milli,
        memory_bytes=like.memory_bytes,
        labels=like.labels,
        sockets=like.sockets,
    )
    fold.apply(cluster, fact, Stamp(cluster.seq, 0, 1, subjects.NODE_KIND, node_id))


def _device(like: Gpu, node_id: NodeId, index: int) -> Gpu:
    return replace(like, uuid=GpuId(f"{node_id}-gpu{index}"), index=index)


def _place_before(state: State) -> int:
    """How many jobs the scheduler would place before the imagined one, or before nothing fits any more."""
    for placed in range(PLACED_MAX):
        facts = place(state)
        if not facts or (isinstance(facts[0], JobPlaced) and facts[0].job_id == IMAGINED):
            return placed
        state.apply_own(facts, state.wall_ns)
    return PLACED_MAX
