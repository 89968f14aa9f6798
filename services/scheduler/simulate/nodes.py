"""The nodes of a simulated cluster: `64x8` (64 nodes of 8 GPUs), or a CSV list such as openb's.

Columns: `gpu`, and optionally `sn` (name), `cpu_milli`, `memory_mib`, `model`, `rack`, `spine`.
Nodes of the short form have 16 CPUs and 128 GiB for each GPU.
"""

import csv
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.facts import NodeRegistered
from libs.common.model import GPUS_PER_NODE_MAX, Gpu, GpuId, NodeId
from services.scheduler.simulate.trace import MIB

SHORT: Final = re.compile(r"(\d{1,5})x(\d{1,2})")
CPUS_PER_GPU: Final = 16
GIB_PER_GPU: Final = 128
GPU_MEMORY: Final = 80 << 30


def nodes_of(text: str, found: Callable[[str], Path] = Path) -> list[NodeRegistered]:
    """Return the nodes. `found` returns the path of a file. Raises Refused if the text has neither
    form.
    """
    short = SHORT.fullmatch(text)
    if short:
        return _equal_nodes(int(short[1]), int(short[2]))
    try:
        path = found(text)
    except Refused as error:
        raise Refused(f"{error}; for a size, write 64x8 (64 nodes of 8 GPUs)") from error
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if "gpu" not in (lines.fieldnames or ()):
            raise Refused(
                f"{text} is no list of nodes: its first line must name a column gpu (write "
                "64x8 for 64 nodes of 8 GPUs)"
            )
        try:
            nodes = [_node(number, line) for number, line in enumerate(lines)]
        except (ValueError, TypeError) as error:
            raise Refused(f"{text}: {error}") from error
    return _checked(text, nodes)


def _equal_nodes(nodes: int, gpus: int) -> list[NodeRegistered]:
    line = {
        "gpu": str(gpus),
        "cpu_milli": str(1_000 * CPUS_PER_GPU * gpus),
        "memory_mib": str(1_024 * GIB_PER_GPU * gpus),
    }
    return _checked(f"{nodes}x{gpus}", [_node(number, line) for number in range(nodes)])


def _checked(text: str, nodes: list[NodeRegistered]) -> list[NodeRegistered]:
    largest = max((len(node.gpus) for node in nodes), default=0)
    if not 0 < largest <= GPUS_PER_NODE_MAX:
        raise Refused(f"{text}: a cluster needs nodes with 1 to {GPUS_PER_NODE_MAX} GPUs")
    if len({node.node_id for node in nodes}) < len(nodes):
        raise Refused(f"{text} names a node twice")
    return nodes


def _node(number: int, line: Mapping[str, str]) -> NodeRegistered:
    name = line.get("sn") or f"n{number}"
    model = line.get("model") or "GPU"
    gpus = tuple(
        Gpu(
            uuid=GpuId(f"{name}-{index}"),
            index=index,
            vendor="simulated",
            model=model,
            memory_bytes=GPU_MEMORY,
        )
        for index in range(int(line["gpu"]))
    )
    return NodeRegistered(
        node_id=NodeId(name),
        incarnation=1,
        address=name,
        gpus=gpus,
        simulated=True,
        cpus_milli=int(line.get("cpu_milli") or 0),
        memory_bytes=int(line.get("memory_mib") or 0) * MIB,
        rack=line.get("rack") or "",
        spine=line.get("spine") or "",
    )
