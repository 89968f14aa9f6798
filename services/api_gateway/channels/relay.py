"""Reads a member's output from its node with long questions over the bus, or from its stored tail
when the node is silent and the attempt over.

One reader follows one stream of one attempt. It asks again at once while bytes come, so a byte
reaches the client within the bus's own delay.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

import msgspec

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.life import job_life
from libs.common.messages import OutputAsk, OutputChunk, StdinPut, StdinTaken
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from libs.common.transport.kv import earlier_output_key, output_key
from services.api_gateway.access.slots import OUTPUT
from services.api_gateway.gateway import Gateway, OutputKey

STREAMS: Final = ("stdout", "stderr")
CHUNK_BYTES: Final = 256 << 10
WAIT_MS: Final = 10_000
# Pauses before the gateway asks a node again that did not answer or does not know the attempt yet.
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0
UNPLACED_WAIT_S: Final = 30.0
# The node did not wait if an empty answer comes sooner than this.
SOON_NS: Final = 1_000_000_000
PROBE_FIRST_BYTES: Final = 64 << 10
OFFSET_MAX: Final = 1 << 50

NODE: Final = "node"
TAIL: Final = "tail"

_encode = msgspec.msgpack.Encoder().encode
_chunk = msgspec.msgpack.Decoder(OutputChunk)
_taken = msgspec.msgpack.Decoder(StdinTaken)


class Piece(NamedTuple):
    """Bytes from `offset` on; `source` says whether they came from the node or the stored tail."""

    offset: int
    data: bytes
    source: str


class Reader:
    """One stream of one member of one attempt.

    The reader remembers the node, because a later attempt may run on another one. For an earlier
    attempt, `find` reads the node from the log. `gone`: output was written, or may have been, but
    neither the node nor the store has any of it. `pruned`: the node has removed its copy.
    """

    def __init__(self, gateway: Gateway, job: Job, attempt: int, rank: int, stream: str) -> None:
        self.gateway = gateway
        self.job = job
        self.attempt = attempt
        self.rank = rank
        self.stream = stream
        self.node_id: NodeId | None = None
        self.gone = False
        self.pruned = False
        self._find_node()

    def _find_node(self) -> None:
        if self.node_id is None and self.job.attempt == self.attempt:
            self.node_id = next(
                (m.node_id for m in self.job.members.values() if m.rank == self.rank), None
            )

    async def find(self) -> None:
        """Find the node of an earlier attempt in the log, if the log still has it.

        Raises Unavailable.
        """
        if self.node_id is not None or self.attempt >= self.job.attempt:
            return
        async for fact in self._history():
            if isinstance(fact, f.JobPlaced) and fact.attempt == self.attempt:
                self.node_id = next(
                    (member.node_id for member in fact.members if member.rank == self.rank), None
                )
                return

    async def _history(self) -> AsyncGenerator[f.AnyFact | f.Unknown, None]:
        """Yield the job's facts in the log, the latest first."""
        for seq in reversed(self.gateway.history.of(self.job.job_id)):
            entry = await self.gateway.entries.get(seq)
            for fact in (
                reading.read_alone(entry.subject, entry.data).facts if entry is not None else ()
            ):
                if getattr(fact, "job_id", "") == self.job.job_id:
                    yield fact

    @property
    def over(self) -> bool:
        """True if nothing of this member can write any more."""
        if self.job.attempt != self.attempt or self.job.state in job_life.ENDED:
            return True
        member = self.job.members.get(self.node_id) if self.node_id is not None else None
        return member is not None and member.state in job_life.MEMBER_OVER

    async def pieces(self, offset: int, follow: bool) -> AsyncGenerator[Piece, None]:
        """Yield the output from `offset` on. With `follow`, go on with new output until the member
        can write no more.

        Without `follow`, raises Unavailable if the node does not answer and the attempt is not
        over.
        """
        await self.find()
        if follow:
            await self._placed()
        if self.node_id is None and self.attempt < self.job.attempt:
            async for piece in self._tail(offset):
                yield piece
        pause_s = RETRY_FIRST_S
        while self.node_id is not None:
            over = self.over
            asked_ns = self.gateway.clock.boot_ns()
            chunk = await self._chunk_or_none(
                offset, WAIT_MS if follow and not over else 0, follow or over
            )
            if chunk is not None and not chunk.error:
                if chunk.data:
                    yield Piece(chunk.offset, chunk.data, NODE)
                    offset, pause_s = chunk.offset + len(chunk.data), RETRY_FIRST_S
                elif over or not follow:
                    return
                if chunk.end:
                    return
                if not chunk.data and self.gateway.clock.boot_ns() - asked_ns < SOON_NS:
                    # The node has no place for another waiting question, so the gateway polls it.
                    await self.gateway.waiting.job(self.job.job_id, pause_s)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
            elif over:
                self.pruned = chunk is not None
                async for piece in self._tail(offset):
                    yield piece
                return
            elif not follow:
                return
            else:
                await self.gateway.waiting.job(self.job.job_id, pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _placed(self) -> None:
        """Wait until the attempt has a node, or can never have one."""
        while self.node_id is None and not self.over:
            await self.gateway.waiting.job(self.job.job_id, UNPLACED_WAIT_S)
            self._find_node()

    async def _chunk_or_none(self, offset: int, wait_ms: int, may_fail: bool) -> OutputChunk | None:
        """Return a chunk; None if the node does not answer and `may_fail`."""
        try:
            return await (
                self._shared_chunk(offset, wait_ms) if wait_ms else self.ask(offset, CHUNK_BYTES, 0)
            )
        except Unavailable:
            if may_fail:
                return None
            raise

    async def _shared_chunk(self, offset: int, wait_ms: int) -> OutputChunk:
        """Ask the node once for all followers of this gateway that wait for the same bytes.

        An idle follower costs the node nothing.

        The ask goes on when one of them leaves; it ends with its time.
        """
        assert self.node_id is not None
        asks = self.gateway.output_asks
        key = (self.node_id, self.job.job_id, self.attempt, self.stream, offset)
        task = asks.get(key)
        if task is None:
            task = asks[key] = asyncio.create_task(self.ask(offset, CHUNK_BYTES, wait_ms))
            task.add_done_callback(lambda done: _answered(asks, key, done))
        return await asyncio.shield(task)

    async def ask(self, offset: int, max_bytes: int, wait_ms: int) -> OutputChunk:
        """Ask the member's node once. Raises Unavailable."""
        assert self.node_id is not None
        ask = OutputAsk(
            job_id=self.job.job_id,
            attempt=self.attempt,
            stream=self.stream,
            offset=offset,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
        )
        if wait_ms:
            return await ask_output(self.gateway, self.node_id, ask)
        async with self.gateway.slots.of(OUTPUT, self.job.tenant):
            return await ask_output(self.gateway, self.node_id, ask)

    async def _tail(self, offset: int) -> AsyncGenerator[Piece, None]:
        """Return the tail that was stored off the node, from `offset` on."""
        try:
            data = await self._stored()
        except Unavailable:
            data = None
        written = await self._written()
        self.gone = not data and written != 0
        if data:
            begin = max(0, (written or 0) - len(data))
            fresh = data[max(0, offset - begin) :]
            if fresh:
                yield Piece(max(offset, begin), fresh, TAIL)

    async def _stored(self) -> bytes | None:
        """Return the bytes that this member's own node, or an agent of an earlier version, stored.

        Raises Unavailable.
        """
        member = (self.job.job_id, self.attempt, self.rank, self.stream)
        keys = (
            [earlier_output_key(*member)]
            if self.node_id is None
            else [output_key(self.node_id, *member), earlier_output_key(*member)]
        )
        for key in keys:
            if data := await self.gateway.outputs.get(key):
                return data
        return None

    async def _written(self) -> int | None:
        """Return how many bytes the member wrote, by its JobFinished; None if unknown."""
        async for fact in self._history():
            if isinstance(fact, f.JobFinished) and (fact.attempt, fact.node_id) == (
                self.attempt,
                self.node_id,
            ):
                return fact.stdout_bytes if self.stream == "stdout" else fact.stderr_bytes
        return None

    async def end_offset(self) -> int:
        """Return the present number of bytes: from the node by bisection, else from the log."""
        try:
            low, high = 0, PROBE_FIRST_BYTES
            while high < OFFSET_MAX and await self._is_stored(high):
                low, high = high, 2 * high
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if await self._is_stored(middle) else (low, middle)
            return low
        except Unavailable:
            return await self._written() or 0

    async def _is_stored(self, offset: int) -> bool:
        chunk = await self.ask(offset, 1, 0)
        if chunk.error and self.over:
            raise Unavailable(chunk.error)
        return bool(chunk.data)


def _answered(
    asks: dict[OutputKey, asyncio.Task[OutputChunk]],
    key: OutputKey,
    done: asyncio.Task[OutputChunk],
) -> None:
    """Forget the shared question. If all askers have left, mark its error as seen."""
    asks.pop(key, None)
    if not done.cancelled():
        done.exception()


async def ask_output(gateway: Gateway, node_id: NodeId, ask: OutputAsk) -> OutputChunk:
    """Ask a node for output. Raises Unavailable."""
    subject = subjects.ask_node(node_id, "output")
    answer = await gateway.bus.request(
        subject, _encode(ask), (ask.wait_ms + gateway.settings.ask_ms) / 1_000
    )
    try:
        return _chunk.decode(answer)
    except UNDECODABLE as error:
        raise Unavailable(
            f"node {node_id} sent an answer that is not an OutputChunk ({error}): check whether "
            "its agent is older"
        ) from error


async def put_stdin(gateway: Gateway, job: Job, offset: int, data: bytes, eof: bool) -> StdinTaken:
    """Offer input to the first member. Raises Unavailable."""
    node_id = next(member.node_id for member in job.members.values() if member.rank == 0)
    return await put_input(
        gateway,
        node_id,
        StdinPut(job_id=job.job_id, attempt=job.attempt, offset=offset, data=data, eof=eof),
    )


async def put_input(gateway: Gateway, node_id: NodeId, put: StdinPut) -> StdinTaken:
    """Offer input to a node. Raises Unavailable."""
    answer = await gateway.bus.request(
        subjects.ask_node(node_id, "stdin"), _encode(put), gateway.settings.stdin_ms / 1_000
    )
    try:
        return _taken.decode(answer)
    except UNDECODABLE as error:
        raise Unavailable(
            f"node {node_id} sent an answer that is not a StdinTaken ({error}): check whether its "
            "agent is older"
        ) from error
