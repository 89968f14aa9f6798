"""Fetches the archive that a job brings along: from this node's cache, another node or a gateway.

A gateway names the node and brings its token, or gives the first piece itself: of a small archive,
to the first nodes of many, and when other nodes fail. What came stays when a node fails, and the
next one gives the rest. The whole must have the SHA-256 of the job's spec, so a node that lies is
avoided and gains nothing. Tests: tests/integration/test_peer_uploads.py,
tests/attack/test_peer_uploads.py.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from typing import BinaryIO, Final, TypeVar
from weakref import WeakValueDictionary

from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.messages.file_messages import BROKEN, FILE
from libs.common.model import NodeId
from libs.common.subjects import ask_uploads
from libs.common.transport.bus import Bus
from libs.common.transport.uploads import (
    PIECE_BYTES,
    SHA256,
    SMALL_BYTES,
    UploadAsk,
    UploadPiece,
)
from services.node_agent.fabric.choice import Choices
from services.node_agent.fabric.tokens import LinkKey, NodeAccess
from services.node_agent.jobs.files import Fault
from services.node_agent.jobs.gateways import ask
from services.node_agent.jobs.uploads import fetched
from services.node_agent.links.dialling import peer_at
from services.node_agent.links.members import Members
from services.node_agent.links.shared_uploads import ARCHIVE
from services.node_agent.resident.avoided import Avoided
from services.node_agent.uploads.cache import Stage, UploadCache

# Threads that fetch from other nodes; more archives wait. Files have threads of their own, so that
# a node that stalls keeps no other job from its archive.
FETCHES_MAX: Final = 4
FILES_MAX: Final = 2
# Jobs that fetch, open or unpack an archive at once: each has a file and a descriptor.
STARTS_MAX: Final = 8
# An answer of a serving node must come within this time.
ANSWER_S: Final = 5.0
# A serving node must give so many bytes per second on average, after a time to begin: one that
# drips must not use up the job's time to start.
RATE_MIN_BYTES: Final = 4 << 20
SLOW_S: Final = 3.0
# Other nodes are asked so long after the last one that had room, and so often after failures. Both
# together must leave the job a part of its time limit to start, which is 30 s by default.
WAIT_S: Final = 15.0
FAULTS_MAX: Final = 3
LOOK_S: Final = 0.2

Wanted = Callable[[], bool]
Made = TypeVar("Made")

logger = logging.getLogger(__name__)


class Uploads:
    """The archives for jobs of one agent. `bytes_max` is MUSTER_UPLOAD_BYTES.

    `answer_s` is the deadline of each answer of a serving node.
    """

    def __init__(
        self,
        key: LinkKey,
        members: Members,
        bus: Bus,
        wall_ns: Callable[[], int],
        cache: UploadCache,
        bytes_max: int,
        choices: Choices | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.key, self.members, self.bus, self.wall_ns = key, members, bus, wall_ns
        self.cache, self.bytes_max = cache, bytes_max
        self.choices, self.answer_s = choices, answer_s
        self.avoided = Avoided()
        self.fetches = ThreadPoolExecutor(FETCHES_MAX, "fetches")
        self.places = asyncio.Semaphore(STARTS_MAX)
        self.files = ThreadPoolExecutor(FILES_MAX, "archives")
        self._closed = threading.Event()
        self._fetch_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            WeakValueDictionary()
        )

    def close(self) -> None:
        """End all fetches."""
        self._closed.set()
        for threads in (self.fetches, self.files):
            threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def opened(
        self, order: StartOrder, wanted: Wanted
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the archive in pieces, once this node has it. Raises Refused.

        The block unpacks it. Jobs with the same archive wait for one fetch.
        """
        async with self.places:
            found = await self._archive(order, wanted)
            if isinstance(found, UploadPiece):
                yield fetched(order, self.key.node_id, self.bus, found)
                return
            with closing(found):
                yield self._read(found)

    async def _archive(self, order: StartOrder, wanted: Wanted) -> BinaryIO | UploadPiece:
        """Return the archive, open; or the first piece of a small one."""
        owner = order.tenant, order.spec.upload
        lock = self._fetch_locks.get(owner)
        if lock is None:
            lock = self._fetch_locks[owner] = asyncio.Lock()
        async with lock:
            stream = await self._run(self.cache.opened, *owner)
            if stream is None:
                first = await self._fetched_archive(order, wanted)
                if first is not None:
                    return first
                stream = await self._run(self.cache.opened, *owner)
        if stream is None:
            raise Refused("its upload left this node's cache at once: try again")
        return stream

    async def _read(self, stream: BinaryIO) -> AsyncIterator[bytes]:
        while data := await self._run(stream.read, PIECE_BYTES):
            yield data

    async def _fetched_archive(self, order: StartOrder, wanted: Wanted) -> UploadPiece | None:
        """Bring the archive into the cache; return the first piece of a small one instead."""
        if SHA256.fullmatch(order.spec.upload) is None:
            raise Refused(f"its upload {order.spec.upload[:64]!r} is not a SHA-256")
        try:
            with self.cache.staged(self.bytes_max) as stage:
                return await self._fill_stage(stage, order, wanted)
        except OSError as error:
            raise Refused(
                f"its upload cannot be kept on this node: {error.strerror or error}"
            ) from error

    async def _fill_stage(
        self, stage: Stage, order: StartOrder, wanted: Wanted
    ) -> UploadPiece | None:
        deadline_s, faults = time.monotonic() + WAIT_S, 0
        while wanted():
            peers = faults < FAULTS_MAX and time.monotonic() < deadline_s
            answer = await self._ask(order, peers)
            if answer.token and peers:
                deadline_s = time.monotonic() + WAIT_S
                if await self._is_fetched_from_node(stage, order, answer, wanted):
                    return None
                faults += 1
            elif answer.waits and peers:
                await asyncio.sleep(LOOK_S)
            elif answer.size_bytes <= SMALL_BYTES:
                return answer
            else:
                await self._from_gateway(stage, order, answer, wanted)
                return None
        raise Refused("it was stopped before it started")

    async def _ask(self, order: StartOrder, peers: bool) -> UploadPiece:
        """Return a gateway's answer. Raises Refused."""
        avoided = self.avoided.nodes(order.spec.upload, time.monotonic())
        question = UploadAsk(order.job_id, order.attempt, peers=peers, avoided=avoided)
        found = await ask(ask_uploads(self.key.node_id), question, UploadPiece, self.bus)
        if found.refused:
            raise Refused(found.refused)
        for node_id in found.silent:
            self._note(order, node_id)
        return found

    def _is_going_on(self, wanted: Wanted) -> bool:
        return not self._closed.is_set() and wanted()

    def _note(self, order: StartOrder, node_id: NodeId) -> None:
        self.avoided.note(order.spec.upload, node_id, time.monotonic())

    async def _is_fetched_from_node(
        self, stage: Stage, order: StartOrder, answer: UploadPiece, wanted: Wanted
    ) -> bool:
        """Fetch what is missing from a node; return whether the cache has the archive now.

        If the whole is wrong, all nodes that gave a part of it are avoided.
        """
        await self.members.wait_for(answer.node_id)
        stage.nodes[answer.node_id] = None
        try:
            await asyncio.get_running_loop().run_in_executor(
                self.fetches, self._read_from_node, stage, order, answer, wanted
            )
        except Fault as fault:
            logger.warning("upload %s of %s: %s", order.spec.upload[:12], order.job_id, fault)
            if self._is_going_on(wanted):  # else the node is not to blame
                self._note(order, answer.node_id)
            return False
        if await self._run(self.cache.adopt, order.tenant, order.spec.upload, stage):
            logger.info("upload %s came from %s", order.spec.upload[:12], ", ".join(stage.nodes))
            return True
        for node_id in stage.nodes:
            self._note(order, node_id)
        logger.warning(
            "upload %s: what came from %s has another SHA-256",
            order.spec.upload[:12],
            ", ".join(stage.nodes),
        )
        stage.restart()
        return False

    def _read_from_node(
        self, stage: Stage, order: StartOrder, answer: UploadPiece, wanted: Wanted
    ) -> None:
        """Fetch the rest of an archive over one link, in a thread. Raises Fault, OSError."""
        began_s, before = time.monotonic(), stage.size

        def go_on() -> None:
            if not self._is_going_on(wanted):
                raise Fault(BROKEN, "the job is not wanted any more")
            counted_s = time.monotonic() - began_s - SLOW_S
            if stage.size - before < counted_s * RATE_MIN_BYTES:
                raise Fault(
                    BROKEN,
                    f"node {answer.node_id} gave {stage.size - before} bytes in "
                    f"{counted_s + SLOW_S:.1f} s, and {RATE_MIN_BYTES} per second are the least",
                )

        access = NodeAccess(self.key, self.members.roster, self.wall_ns, answer.token)
        with peer_at(
            access,
            answer.address,
            answer.node_id,
            go_on=go_on,
            answer_s=self.answer_s,
            choices=self.choices,
            offered=answer.offer,
        ) as peer:
            first = peer.part(ARCHIVE, offset=stage.size)
            if (first.kind, first.size_bytes) != (FILE, answer.size_bytes):
                raise Fault(
                    BROKEN,
                    f"node {answer.node_id} has an archive of {first.size_bytes} bytes, and "
                    f"{answer.size_bytes} are stored",
                )
            for data in peer.parts(ARCHIVE, first, at=stage.size):
                stage.write(data[: answer.size_bytes - stage.size])

    async def _from_gateway(
        self, stage: Stage, order: StartOrder, first: UploadPiece, wanted: Wanted
    ) -> None:
        """Bring the whole archive into the cache from gateways. Raises Refused."""
        stage.restart()
        async for data in fetched(order, self.key.node_id, self.bus, first):
            if not wanted():
                raise Refused("it was stopped before it started")
            await self._run(stage.write, data)
        if not await self._run(self.cache.adopt, order.tenant, order.spec.upload, stage):
            raise Refused(
                f"its upload is broken: the {stage.size} bytes that came have another SHA-256 than "
                f"{order.spec.upload[:12]}"
            )

    async def _run(self, work: Callable[..., Made], *arguments: object) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self.files, work, *arguments)
