"""Nodes that start jobs with one upload over real sockets, and a gateway's answers.

Everything runs in one process: caches, links and fetches of agents, and `UploadAnswers` of a
gateway with its store. The test plays the scheduler and the fold. For tests of uploads that travel
from node to node.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import nkeys

from libs.common.life import job_life
from libs.common.messages import Roster, RosterEntry, StartOrder
from libs.common.messages.file_messages import MISSING, FilePart
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Cluster, Node
from libs.common.state.job import Job, MemberView
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.uploads import SMALL_BYTES, MemoryUploads, Piece
from services.api_gateway.agents.upload_answers import UploadAnswers
from services.node_agent.fabric.tokens import LinkKey
from services.node_agent.links.links import Links
from services.node_agent.links.members import Members
from services.node_agent.links.shared_uploads import SharedUploads
from services.node_agent.uploads.cache import UploadCache
from services.node_agent.uploads.fetching import Uploads

DATA = os.urandom(SMALL_BYTES + (1 << 20) + 7)
SHA = sha256(DATA).hexdigest()
BOUND = 64 << 20


def start_order(job: str, tenant: str = "red", upload: str = SHA) -> StartOrder:
    return StartOrder(
        job_id=JobId(job),
        attempt=1,
        incarnation=1,
        seq=1,
        rank=0,
        gpus=(),
        spec=JobSpec(command=("true",), upload=upload),
        tenant=tenant,
        user="ada",
        peers=(),
        port=0,
    )


class UploadingNode:
    """One node: its cache below `root`, its links, and its fetches."""

    def __init__(
        self, key: LinkKey, root: Path, nodes: "Nodes", answer_s: float, bytes_per_s: int
    ) -> None:
        self.key, self.nodes = key, nodes
        members = Members(key.node_id, lambda: nodes.roster, known_s=0)
        self.cache = UploadCache(root / "uploads", BOUND)
        self.links = Links(
            key=key,
            members=members,
            wall_ns=time.time_ns,
            tenant_of=lambda ref: "",
            part=lambda ask: FilePart(fault=MISSING),
            host="127.0.0.1",
            bytes_per_s=bytes_per_s,
        )
        self.links.uploads = SharedUploads(key.node_id, self.cache)
        self.uploads = Uploads(
            key=key,
            members=members,
            bus=nodes.bus,
            wall_ns=time.time_ns,
            cache=self.cache,
            bytes_max=BOUND,
            answer_s=answer_s,
        )

    async def archive(self, job: str = "j1", tenant: str = "red", upload: str = SHA) -> bytes:
        """Return the archive of a job that the node is about to start."""
        order = start_order(job, tenant, upload)
        async with self.uploads.opened(order, lambda: True) as pieces:
            return b"".join([data async for data in pieces])

    async def start(self, job: str = "j1") -> None:
        """Fetch the archive, and let the log know that the job started here."""
        assert await self.archive(job) == DATA
        self.nodes.member(job, self.key.node_id).state = job_life.STARTED

    def has(self, tenant: str = "red", upload: str = SHA) -> bool:
        found = self.cache.opened(tenant, upload)
        if found is not None:
            found.close()
        return found is not None

    async def stop(self) -> None:
        self.uploads.close()
        await self.links.close()


class Store(MemoryUploads):
    """The store of gateways. `firsts` counts how often an archive was read from its beginning."""

    firsts = 0

    async def piece(self, tenant: str, sha256: str, mark: int) -> Piece | None:
        self.firsts += not mark
        return await super().piece(tenant, sha256, mark)


class Nodes:
    """The nodes by name, and the state that the gateway's fold has."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.roster = Roster()
        self.by_name: dict[str, UploadingNode] = {}
        self.cluster = Cluster()
        self.store = Store()
        self.answers = UploadAnswers(lambda: self.cluster, self.bus, self.store)

    def __getitem__(self, name: str) -> UploadingNode:
        return self.by_name[name]

    def place(self, job: str, *names: str, tenant: str = "red", upload: str = SHA) -> None:
        """Place a job on nodes, as the scheduler does."""
        spec = JobSpec(command=("true",), upload=upload)
        made = Job(JobId(job), spec, TenantId(tenant), "ada", 1, state=job_life.PLACED)
        made.members = {
            NodeId(name): MemberView(NodeId(name), 1, rank, (), 1)
            for rank, name in enumerate(names)
        }
        self.cluster.jobs[made.job_id] = made

    def member(self, job: str, node_id: NodeId) -> MemberView:
        return self.cluster.jobs[JobId(job)].members[node_id]

    async def add(self, name: str, folder: Path, answer_s: float, bytes_per_s: int) -> None:
        """Add a node that the roster has, and that answers on the bus."""
        number = len(self.by_name) + 1
        seed = bytes(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))
        key = LinkKey(NodeId(name), seed)
        entry = RosterEntry(key.node_id, "", key.public, 1)
        self.roster = Roster(cluster_id="cluster", nodes=(*self.roster.nodes, entry))
        node = UploadingNode(key, folder / name, self, answer_s, bytes_per_s)
        self.by_name[name] = node
        self.cluster.nodes[key.node_id] = Node(
            key.node_id, "healthy", link_address=node.links.address
        )
        await node.links.listen(self.bus)


@asynccontextmanager
async def nodes_at(
    folder: Path, *names: str, answer_s: float = 2.0, bytes_per_s: int = 0
) -> AsyncIterator[Nodes]:
    """Yield nodes of which none has the upload yet; a gateway has it."""
    nodes = Nodes()
    await nodes.store.put("red", SHA, BytesIO(DATA))  # type: ignore[arg-type]
    await nodes.answers.listen()
    try:
        for name in names:
            await nodes.add(name, folder, answer_s, bytes_per_s)
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.by_name.values()))
