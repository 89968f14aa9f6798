"""Nodes with kept weights over real sockets, a gateway's answers, and what the log says of them.
For the tests and the benchmark of weights that travel from node to node.

Everything runs in one process: the links, stores and fetches of agents, and `WeightAnswers` of a
gateway. The test plays the scheduler, and `Nodes.record` the fold.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import nkeys
from msgspec.structs import replace

from libs.common.life import kept_life
from libs.common.messages import KeepOrder, Roster, RosterEntry
from libs.common.messages.file_messages import MISSING, FilePart
from libs.common.model import NodeId, TenantId
from libs.common.state.cluster import Cluster, Node
from libs.common.state.kept import Kept, KeptEntry, kept_key
from libs.common.transport.bus_memory import MemoryBus
from services.api_gateway.agents.weight_answers import WeightAnswers
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.observations import KeepSeen, Observation
from services.node_agent.fabric.tokens import LinkKey
from services.node_agent.links.kept_weights import KeptWeights
from services.node_agent.links.links import Links
from services.node_agent.links.members import Members
from services.node_agent.resident.from_peers import PeerWeights
from services.node_agent.resident.reports import seen_of
from services.node_agent.resident.weights import HostWeights

MODEL, TENANT, REQUEST = "chat", "red", 7
FILES = {
    "config.json": b"{}",
    "shards/one.bin": bytes(range(256)) * 4_000,
    "shards/two.bin": b"two" * 300_000,
}


def order(**fields: object) -> KeepOrder:
    plain = KeepOrder(
        model=MODEL,
        tier=kept_life.HOST,
        tenant=TENANT,
        request=REQUEST,
        number=1,
        state=kept_life.FILLING,
        weights="/models/chat",
    )
    return replace(plain, **fields)


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())}


class KeepingNode:
    """One node: its store of weights below `root`, its links, and its fetches."""

    def __init__(
        self, key: LinkKey, root: Path, nodes: "Nodes", answer_s: float, bytes_per_s: int
    ) -> None:
        self.key, self.nodes = key, nodes
        self.weights = HostWeights(root)
        self.keeps = Keeps()
        self.told: list[KeepSeen] = []
        self.fills = ThreadPoolExecutor(1)
        members = Members(key.node_id, lambda: nodes.roster, known_s=0)
        self.links = Links(
            key=key,
            members=members,
            wall_ns=time.time_ns,
            tenant_of=lambda ref: "",
            part=lambda ask: FilePart(fault=MISSING),
            host="127.0.0.1",
            bytes_per_s=bytes_per_s,
        )
        self.links.weights = KeptWeights(key.node_id, self.weights, lambda: self.keeps)
        self.peers = PeerWeights(
            key=key,
            members=members,
            bus=nodes.bus,
            wall_ns=time.time_ns,
            weights=self.weights,
            answer_s=answer_s,
        )
        self.peers.tell, self.peers.keeps = self._told, lambda: self.keeps

    def _told(self, seen: Observation) -> None:
        assert isinstance(seen, KeepSeen)
        self.told.append(seen)

    def want(self, wanted: KeepOrder) -> KeepOrder:
        """Let the node keep what the order says."""
        self.keeps.wanted[kept_key(wanted.model, wanted.tier)] = wanted
        return wanted

    def fill(self, files: Mapping[str, bytes] = FILES, **fields: object) -> None:
        """Let the node have the weights, as if it had read them from a folder of its own."""
        size = sum(map(len, files.values()))
        wanted = self.want(order(granted=size, **fields))
        self.nodes.kept.files = digests(files)
        folder = self.weights.staged(wanted, size)
        for path, data in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(data)
        self.weights.adopt(wanted, folder, size, digests(files))
        self.nodes.record(self.key.node_id, kept_life.READY, size)

    def folder(self) -> Path:
        return Path(self.weights.path_of(TENANT, MODEL))

    def files(self) -> dict[str, bytes]:
        """Return what the node keeps of the model."""
        return {path: (self.folder() / path).read_bytes() for path in FILES}

    def names(self) -> list[str]:
        """Return all folders in the node's store."""
        root = self.weights.root
        return sorted(path.name for path in root.iterdir() if path.is_dir())

    async def fetch(
        self, granted: int | None = None, record: bool = True, differs: bool = False
    ) -> KeepSeen:
        """Carry out an order whose folder this node cannot read, or that has other files."""
        size = sum(map(len, FILES.values())) if granted is None else granted
        wanted = self.want(order(granted=size))
        failed = seen_of(wanted, kept_life.FAILED, detail="no folder", differs=differs)
        self.nodes.record(self.key.node_id, kept_life.FILLING)
        seen = await self.peers.instead(wanted, failed, self.fills)
        assert seen is not None
        if record:
            self.nodes.record(self.key.node_id, seen.state, seen.size_bytes)
        return seen

    async def stop(self) -> None:
        self.peers.close()
        await self.links.close()
        self.fills.shutdown()


class Nodes:
    """The nodes by name, and the state that the gateway's fold has."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.roster = Roster()
        self.by_name: dict[str, KeepingNode] = {}
        self.kept = Kept(
            model=MODEL,
            tier=kept_life.HOST,
            tenant=TenantId(TENANT),
            user="ada",
            request=REQUEST,
            files=digests(FILES),
        )
        self.cluster = Cluster(kept={self.kept.key: self.kept})
        self.answers = WeightAnswers(lambda: self.cluster, self.bus)

    def __getitem__(self, name: str) -> KeepingNode:
        return self.by_name[name]

    def record(self, node_id: NodeId, state: str, size: int = 0) -> None:
        self.kept.entries[node_id] = KeptEntry(node_id, 1, state, size_bytes=size)

    async def add(
        self, name: str, folder: Path, answer_s: float = 2.0, bytes_per_s: int = 0
    ) -> None:
        """Add a node that the roster has, and that answers on the bus."""
        number = len(self.by_name) + 1
        seed = bytes(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))  # type: ignore[no-untyped-call]
        key = LinkKey(NodeId(name), seed)
        entry = RosterEntry(key.node_id, "", key.public, 1)
        self.roster = Roster(cluster_id="cluster", nodes=(*self.roster.nodes, entry))
        node = self.by_name[name] = KeepingNode(key, folder / name, self, answer_s, bytes_per_s)
        self.cluster.nodes[key.node_id] = Node(
            key.node_id, "healthy", link_address=node.links.address
        )
        await node.links.listen(self.bus)


@asynccontextmanager
async def nodes_at(
    folder: Path, *names: str, answer_s: float = 2.0, bytes_per_s: int = 0
) -> AsyncIterator[Nodes]:
    """Yield nodes of which none has weights yet."""
    nodes = Nodes()
    await nodes.answers.listen()
    try:
        for name in names:
            await nodes.add(name, folder, answer_s, bytes_per_s)
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.by_name.values()))
