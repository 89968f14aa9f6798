"""Evidence of a diagnosis for tests: ranks of a job at chosen places."""

from collections.abc import Sequence

from libs.common.diagnosis.evidence import LOOKS, Collective, Frame, NodeSeen, ProcessSeen
from libs.common.model import NodeId

Stack = tuple[Frame, ...]

TRAIN = Frame("train", "/src/ann/train.py", 90)
# torch's own code is in an installed package.
TORCH = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"


def waits(op: str = "all_reduce", line: int = 40) -> Stack:
    """Return the stack of a rank in a collective, called by `step` at a line."""
    return (
        Frame("wait", TORCH, 9),
        Frame(op, TORCH, 8),
        Frame("step", "/src/ann/train.py", line),
        TRAIN,
    )


def code(function: str = "compute", line: int = 7) -> Stack:
    return (Frame(function, "/src/ann/model.py", line), TRAIN)


LOADS: Stack = (Frame("__next__", "/usr/lib/python3/torch/utils/data/dataloader.py", 7), TRAIN)
LOCKED: Stack = (Frame("acquire", "/usr/lib/python3.11/threading.py", 3), *code("cached"))
SAVES: Stack = (*code("write"), Frame("save_checkpoint", "/src/ann/io.py", 2), TRAIN)


def process(
    rank: int,
    *looks: Stack,
    state: str = "S",
    world: int = 8,
    local_world: int = 4,
    waits_in: str = "",
    cpu_ms: int = 0,
    moved_bytes: int = 0,
    collectives: Sequence[Collective] = (),
    gpu: str = "",
) -> ProcessSeen:
    """Return a rank. One look stands for all of them."""
    seen = looks * LOOKS if len(looks) == 1 else looks
    return ProcessSeen(
        rank=rank,
        pid=100 + rank,
        name="python",
        state=state,
        world=world,
        local_world=local_world,
        waits_in=waits_in,
        cpu_ms=cpu_ms,
        moved_bytes=moved_bytes,
        watched_ms=1_000,
        looks=seen,
        collectives=tuple(collectives),
        gpu=gpu,
    )


def node(member: int, *processes: ProcessSeen, **more: object) -> NodeSeen:
    name = NodeId(f"node-{member + 1}")
    return NodeSeen(name, member, processes=processes, **more)  # type: ignore[arg-type]


def two_nodes(*others: ProcessSeen, without: Sequence[int] = ()) -> list[NodeSeen]:
    """Return eight ranks on two nodes. All wait in the same collective except `others`."""
    given = {one.rank: one for one in others}
    ranks = [given.get(rank, process(rank, waits())) for rank in range(8) if rank not in without]
    return [node(member, *(one for one in ranks if one.rank // 4 == member)) for member in (0, 1)]
