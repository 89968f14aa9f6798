"""Time until 8 nodes have the weights of a model that one node keeps, with and without peers.

With peers each node that is ready becomes a source, as always. Without them, all nodes read from
the first one at once. Stores, links and the gateway's answers are the real ones, in one process:
on loopback all nodes share one machine and one Python, which copy, hash and send every byte. So the
unbounded runs show the cost of the copies, and no network. In the bounded runs each node sends at
most so many bytes per second (MUSTER_LINK_TENANT_BYTES_PER_S), as a network card would; there the
ratio shows what the sources save. `largest_source` is the part of all bytes that the busiest node
sent.
"""

import asyncio
import os
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from bench.cluster import QUICK, say
from libs.common.life import kept_life
from libs.common.messages.file_messages import FilePart
from libs.common.messages.link_messages import LinkAsk
from services.node_agent.links import grants
from services.node_agent.links.kept_weights import KeptWeights
from tests.integration.peer_weights_world import KeepingNode, nodes_at

MIB: Final = 1 << 20
SIZE: Final = (64 if QUICK else 1_024) * MIB
SHARDS: Final = 4
NODES: Final = 8
BOUND: Final = (32 if QUICK else 48) * MIB
MEMORY: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
ANSWER_S: Final = 30.0
THREADS: Final = 64


class Counted(KeptWeights):
    """Kept weights that count the bytes that they gave."""

    def __init__(self, node: KeepingNode) -> None:
        super().__init__(node.key.node_id, node.weights, lambda: node.keeps)
        self.given = 0

    def part(self, ask: LinkAsk, path: bytes, offset: int) -> FilePart:
        found = super().part(ask, path, offset)
        self.given += len(found.data)
        return found


async def spread(files: dict[str, bytes], with_peers: bool, bytes_per_s: int) -> tuple[float, int]:
    """Return the seconds until all nodes are ready, and the bytes of the busiest source."""
    names = [f"n{number}" for number in range(NODES + 1)]
    readers = grants.READERS_MAX
    grants.READERS_MAX = readers if with_peers else NODES  # type: ignore[misc]
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        place = Path(folder)
        async with nodes_at(place, *names, answer_s=ANSWER_S, bytes_per_s=bytes_per_s) as nodes:
            counted = {name: Counted(nodes[name]) for name in names}
            for name in names:
                nodes[name].links.weights = counted[name]
            nodes["n0"].fill(files)
            began = time.perf_counter()
            found = await asyncio.gather(
                *(nodes[name].fetch(granted=SIZE, record=with_peers) for name in names[1:])
            )
            took_s = time.perf_counter() - began
            assert all(seen.state == kept_life.READY for seen in found), found
            given = Counter({name: each.given for name, each in counted.items()})
    grants.READERS_MAX = readers  # type: ignore[misc]
    for name, size in sorted(given.items()):
        setting = {"peers": with_peers, "bytes_per_s": bytes_per_s, "node": name}
        say("bytes_sent", size, "bytes", NODES, **setting)
    return took_s, max(given.values())


async def compare(files: dict[str, bytes], bytes_per_s: int) -> None:
    """Measure both ways with one bound, and print their ratio."""
    times: dict[bool, float] = {}
    for with_peers in (False, True):
        took_s, largest = await spread(files, with_peers, bytes_per_s)
        times[with_peers] = took_s
        setting = {"peers": with_peers, "bytes_per_s": bytes_per_s, "size": SIZE}
        say("until_all_ready", took_s, "s", NODES, **setting)
        say("largest_source", largest / (NODES * SIZE), "part", NODES, **setting)
    say("ratio", times[False] / times[True], "times", NODES, bytes_per_s=bytes_per_s, size=SIZE)


async def main() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    shard = SIZE // SHARDS
    files = {f"shards/{number}.bin": os.urandom(shard) for number in range(SHARDS)}
    for bytes_per_s in (0, BOUND):
        await compare(files, bytes_per_s)


if __name__ == "__main__":
    asyncio.run(main())
