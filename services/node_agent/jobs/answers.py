"""Answers to the gateway: output as it grows, input, channels into jobs, and pruning.

Output and input requests may wait, within the bounds below. Each request has a task of its own.
Tests: tests/integration/test_agent.py.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.errors import Refused, Unavailable
from libs.common.messages import OutputAsk, OutputChunk, PruneAsk, PruneDone, StdinPut, StdinTaken
from libs.common.messages.outstanding import decode_answered
from libs.common.model import AttemptRef, JobId
from libs.common.process.clock import Clock
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.channels.channels import Channels
from services.node_agent.directories.protocol import JobSupervisors, Piece
from services.node_agent.directories.retention import Keep

STREAMS: Final = ("stdout", "stderr")
CHUNK_BYTES_MAX: Final = 256 << 10
WAIT_MS_MAX: Final = 30_000
LOOK_FIRST_S: Final = 0.005
LOOK_MAX_S: Final = 0.1
STDIN_WAIT_S: Final = 5.0
# A request may overtake the order of its attempt, so an unknown attempt is awaited for this time.
UNKNOWN_WAIT_MS: Final = 1_000
# Requests of each kind at once: followers of jobs, and open channels (`channels.CHANNELS_MAX`).
ASKS_AT_ONCE: Final = 512
# Replicas of this node in one message of a gateway; far more than a node has.
ANSWERED_MAX: Final = 1_024
# Requests that may wait for output: of all jobs, and of one. Further ones are answered at once, so
# that channels always have places.
WAITING_MAX: Final = 128
WAITING_PER_JOB: Final = 16
MS: Final = 1_000_000

_output_ask = msgspec.msgpack.Decoder(OutputAsk)
_stdin_put = msgspec.msgpack.Decoder(StdinPut)
_prune_ask = msgspec.msgpack.Decoder(PruneAsk)
_encode = msgspec.msgpack.Encoder().encode


class Answers:
    """The answers of one agent.

    `expected` says whether the agent knows an attempt of which nothing is on disk yet. `served` is
    called with the attempt key of each replica that answered a gateway's requests.
    """

    def __init__(
        self,
        node_id: str,
        bus: Bus,
        clock: Clock,
        jobs: JobSupervisors,
        expected: Callable[[AttemptRef], bool],
        channels: Channels | None = None,
        served: Callable[[str], None] = lambda key: None,
    ) -> None:
        self.node_id = node_id
        self.bus = bus
        self.clock = clock
        self.jobs = jobs
        self.expected = expected
        self.channels = channels
        self.served = served
        self.closed = False
        self.waiting: Counter[JobId] = Counter()

    async def listen(self) -> None:
        await self.bus.subscribe(
            ask_node(self.node_id, "output"), self._on_output, concurrent=True, places=ASKS_AT_ONCE
        )
        await self.bus.subscribe(
            ask_node(self.node_id, "stdin"), self._on_stdin, concurrent=True, places=ASKS_AT_ONCE
        )
        await self.bus.subscribe(ask_node(self.node_id, "prune"), self._on_prune, concurrent=True)
        await self.bus.subscribe(ask_node(self.node_id, "answered"), self._on_answered)
        if self.channels is not None:
            await self.channels.listen()

    async def _on_output(self, subject: str, data: bytes) -> bytes | None:
        if self.closed:
            return None
        try:
            ask = _output_ask.decode(data)
        except msgspec.DecodeError as error:
            return _encode(OutputChunk(0, b"", True, f"not an OutputAsk: {error}"))
        if ask.stream not in STREAMS or ask.offset < 0:
            return _encode(
                OutputChunk(
                    ask.offset,
                    b"",
                    True,
                    f"the stream must be one of {', '.join(STREAMS)}, and the offset 0 or more",
                )
            )
        if ask.channel and self.channels is not None:
            return _encode(await self.channels.output(ask, min(ask.wait_ms, WAIT_MS_MAX)))
        return _encode(await self._in_place(ask))

    async def _in_place(self, ask: OutputAsk) -> OutputChunk:
        """Answer an output request; let it wait only if there is a place to wait."""
        if self.waiting[ask.job_id] >= WAITING_PER_JOB or self.waiting.total() >= WAITING_MAX:
            return await self._output(msgspec.structs.replace(ask, wait_ms=0))
        self.waiting[ask.job_id] += 1
        try:
            return await self._output(ask)
        finally:
            self.waiting[ask.job_id] -= 1
            if not self.waiting[ask.job_id]:
                del self.waiting[ask.job_id]

    async def _output(self, ask: OutputAsk) -> OutputChunk:
        """Answer at once if there is output, else as soon as there is some, within `wait_ms`."""
        ref, began_ns, look_s = (
            AttemptRef(ask.job_id, ask.attempt),
            self.clock.boot_ns(),
            LOOK_FIRST_S,
        )
        wait_ms = min(ask.wait_ms, WAIT_MS_MAX)
        while True:
            piece = await self._piece(ref, ask)
            waited_ms = (self.clock.boot_ns() - began_ns) // MS
            over = self.closed or waited_ms >= (
                wait_ms if piece is not None else min(wait_ms, UNKNOWN_WAIT_MS)
            )
            if piece is None and over:
                return OutputChunk(
                    ask.offset,
                    b"",
                    True,
                    f"no output of {ask.job_id} attempt {ask.attempt} on node {self.node_id}",
                )
            if piece is not None and (piece.data or piece.end or over):
                return OutputChunk(piece.offset, piece.data, piece.end)
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, LOOK_MAX_S)

    async def _piece(self, ref: AttemptRef, ask: OutputAsk) -> Piece | None:
        """Return a piece of output; an empty one for an attempt that has not started yet."""
        waiting = self.expected(ref)
        piece = await self.jobs.read_output(
            ref, ask.stream, ask.offset, max(1, min(ask.max_bytes, CHUNK_BYTES_MAX))
        )
        return Piece(ask.offset, b"", False) if piece is None and waiting else piece

    async def _on_stdin(self, subject: str, data: bytes) -> bytes | None:
        if self.closed:
            return None
        try:
            put = _stdin_put.decode(data)
        except msgspec.DecodeError as error:
            return _encode(StdinTaken(0, f"not a StdinPut: {error}"))
        if put.channel and self.channels is not None:
            return _encode(await self.channels.input(put))
        return _encode(await self._stdin(put))

    async def _on_prune(self, subject: str, data: bytes) -> bytes | None:
        if self.closed:
            return None
        try:
            ask = _prune_ask.decode(data)
        except msgspec.DecodeError as error:
            return _encode(PruneDone(error=f"not a PruneAsk: {error}"))
        try:
            pruned = await self.jobs.prune(Keep(ask.older_than_s, ask.keep_bytes), ask.dry_run)
        except Unavailable as error:
            return _encode(PruneDone(error=str(error)))
        return _encode(PruneDone(*pruned))

    async def _on_answered(self, subject: str, data: bytes) -> None:
        """Note the replicas that answered requests. Unreadable messages are ignored."""
        with contextlib.suppress(msgspec.DecodeError):
            for key in decode_answered(data).keys[:ANSWERED_MAX]:
                self.served(key)

    async def _stdin(self, put: StdinPut) -> StdinTaken:
        """Pass input to the job. The sender repeats what was not taken in time, which
        is harmless.
        """
        try:
            async with asyncio.timeout(STDIN_WAIT_S):
                taken = await self.jobs.write_stdin(
                    AttemptRef(put.job_id, put.attempt), put.offset, put.data, put.eof
                )
        except TimeoutError:
            return StdinTaken(put.offset)
        except Refused as error:
            waiting = self.expected(AttemptRef(put.job_id, put.attempt))
            return StdinTaken(put.offset, "" if waiting else str(error))
        return StdinTaken(taken.next_offset, closed=taken.closed)
