"""Opens channels into this node's jobs for gateways, and closes those that no gateway uses.

The job's supervisor starts the process of `muster exec`, so it ends with the job and with the lease
(`supervisor/execs.py`). The agent holds its pipes or terminal, so it also ends when the agent ends.
A port is forwarded only if the job itself listens on it (`libs/common/process/listening.py`). A
channel is closed when its gateway was silent for SILENCE_S. Tests:
tests/integration/test_channels.py.
"""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.messages import OutputAsk, OutputChunk, StdinPut, StdinTaken
from libs.common.messages.channel_messages import (
    COMMAND_BYTES_MAX,
    SILENCE_S,
    ChannelAnswer,
    ChannelAsk,
    ChannelClose,
    ChannelOpen,
    ChannelSignal,
    ChannelSize,
    Exec,
    Forward,
)
from libs.common.model import AttemptRef, JobId
from libs.common.process.listening import is_listened_on_by
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.channels.channel import Channel, Input, Output
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.supervision.control_client import Exec as Process

# Per node. A channel has at most two requests for output open, so all of them take at most half of
# the requests that `answers.py` serves at once.
CHANNELS_MAX: Final = 128
CHANNELS_PER_JOB: Final = 32
CONNECT_S: Final = 5.0
LOOPBACK: Final = "127.0.0.1"
# SO_LINGER: a close within 0 s is a reset.
RESET: Final = struct.pack("ii", 1, 0)
STREAMS: Final = ("stdout", "stderr")

_ask = msgspec.msgpack.Decoder(ChannelAsk)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Channels:
    """The open channels of one node, by the ids that gateways chose."""

    def __init__(self, node_id: str, bus: Bus, jobs: JobDirectories, execs_per_job: int) -> None:
        self.node_id = node_id
        self.bus = bus
        self.jobs = jobs
        self.execs_per_job = execs_per_job
        self.open: dict[str, Channel] = {}
        self._heard: dict[str, float] = {}
        self._job_of: dict[str, JobId] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = 0
        self._closed = False

    async def listen(self) -> None:
        await self.bus.subscribe(ask_node(self.node_id, "channel"), self._on_ask, concurrent=True)

    async def close(self) -> None:
        """Close all channels for good, because this process ends."""
        self._closed = True
        for channel_id in list(self.open):
            self._close(channel_id)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Bytes, for `answers.py`.

    async def output(self, ask: OutputAsk, wait_ms: int) -> OutputChunk:
        channel = self.open.get(ask.channel)
        if channel is None or ask.stream not in channel.outputs:
            return OutputChunk(ask.offset, b"", True, self._unknown())
        try:
            piece = await channel.outputs[ask.stream].read(
                ask.offset, max(1, ask.max_bytes), wait_ms / 1_000
            )
        except Refused as error:
            return OutputChunk(ask.offset, b"", True, str(error))
        if channel.closed:
            return OutputChunk(ask.offset, b"", True, self._unknown())
        return OutputChunk(
            offset=piece.offset,
            data=piece.data,
            end=piece.end,
            error="",
            exit_code=channel.exit_code,
            detail=channel.detail,
        )

    async def input(self, put: StdinPut) -> StdinTaken:
        channel = self.open.get(put.channel)
        if channel is None:
            return StdinTaken(put.offset, self._unknown())
        self._heard[put.channel] = asyncio.get_running_loop().time()
        try:
            taken = await channel.input.write(put.offset, put.data, put.eof)
        except Refused as error:
            return StdinTaken(put.offset, str(error))
        return StdinTaken(taken.next_offset, closed=taken.closed)

    def _unknown(self) -> str:
        return (
            f"node {self.node_id} does not hold this channel any more: its agent restarted, or "
            f"the gateway was silent for {SILENCE_S:.0f} s. Open a new channel"
        )

    # The verb.

    async def _on_ask(self, subject: str, data: bytes) -> bytes | None:
        if self._closed:
            return None
        try:
            return _encode(await self._do(_ask.decode(data)))
        except msgspec.DecodeError as error:
            return _encode(ChannelAnswer(f"the request cannot be decoded as ChannelAsk: {error}"))
        except Refused as error:
            return _encode(ChannelAnswer(str(error)))

    async def _do(self, ask: ChannelAsk) -> ChannelAnswer:
        if isinstance(ask, ChannelOpen):
            await self._open(ask)
        elif isinstance(ask, ChannelClose):
            self._close(ask.channel)
        elif (channel := self.open.get(ask.channel)) is None:
            return ChannelAnswer(self._unknown())
        elif isinstance(ask, ChannelSignal) and channel.signal is not None:
            await channel.signal(ask.signal)
        elif isinstance(ask, ChannelSize) and channel.size is not None:
            channel.size(ask.rows, ask.columns)
        return ChannelAnswer()

    async def _open(self, ask: ChannelOpen) -> None:
        """Open a channel; a repetition changes nothing. Raises Refused."""
        if ask.channel in self.open:
            return
        if len(self.open) + self._opening >= CHANNELS_MAX:
            raise Refused(
                f"node {self.node_id} has {CHANNELS_MAX} open channels, which is the maximum: "
                "close one"
            )
        if sum(job_id == ask.job_id for job_id in self._job_of.values()) >= CHANNELS_PER_JOB:
            raise Refused(
                f"job {ask.job_id} has {CHANNELS_PER_JOB} open channels on node {self.node_id}, "
                "which is the maximum: close one"
            )
        ref = AttemptRef(ask.job_id, ask.attempt)
        self._job_of[ask.channel] = ask.job_id
        self._opening += 1
        try:
            wish = ask.wish
            channel = await (
                self._exec(ref, wish) if isinstance(wish, Exec) else self._forward(ref, wish)
            )
            self.open[ask.channel] = channel
        finally:
            self._opening -= 1
            if ask.channel not in self.open:
                del self._job_of[ask.channel]
        self._heard[ask.channel] = asyncio.get_running_loop().time()
        self._end_if_silent(ask.channel)

    def _close(self, channel_id: str) -> None:
        channel = self.open.pop(channel_id, None)
        self._heard.pop(channel_id, None)
        self._job_of.pop(channel_id, None)
        if channel is not None:
            channel.close()

    def _end_if_silent(self, channel_id: str) -> None:
        """Close the channel if its gateway is silent; otherwise check again when it may be."""
        if channel_id not in self.open:
            return
        loop = asyncio.get_running_loop()
        left_s = self._heard[channel_id] + SILENCE_S - loop.time()
        if left_s > 0:
            loop.call_later(left_s, self._end_if_silent, channel_id)
        else:
            logger.warning(
                "channel %s is closed: its gateway was silent for %.0f s", channel_id, SILENCE_S
            )
            self._close(channel_id)

    # The process or connection behind a channel.

    async def _exec(self, ref: AttemptRef, wish: Exec) -> Channel:
        size = sum(map(len, map(os.fsencode, wish.command)))
        if not wish.command or size > COMMAND_BYTES_MAX:
            raise Refused(
                f"command: {len(wish.command)} words with {size} bytes: give at least one word "
                f"and at most {COMMAND_BYTES_MAX} bytes"
            )
        request = {
            "argv": wish.command,
            "env": {"TERM": wish.term} if wish.tty and wish.term else {},
            "limit": self.execs_per_job,
        }
        with contextlib.ExitStack() as undo:
            ours, theirs = _terminal(wish) if wish.tty else _pipes(wish.stdin)
            for descriptor in ours:
                undo.callback(_close, descriptor)
            try:
                process = await self.jobs.begin_exec(ref, request, theirs)
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            undo.pop_all()
        channel = _channel_to(process, ours, wish.tty)
        task = asyncio.create_task(_until_ended(process, channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return channel

    async def _forward(self, ref: AttemptRef, wish: Forward) -> Channel:
        """Connect to a port of the job. Raises Refused if another process listens there.

        The listener is checked after the connection, so that the check is about the process that
        accepted it.
        """
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(
                socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            )
            try:
                async with asyncio.timeout(CONNECT_S):
                    await asyncio.get_running_loop().sock_connect(connection, (LOOPBACK, wish.port))
            except (OSError, OverflowError, TimeoutError) as error:
                why = error.strerror if isinstance(error, OSError) else "no answer in time"
                raise Refused(
                    f"nothing listens on port {wish.port} of node {self.node_id}: {why}"
                ) from error
            if not await asyncio.to_thread(self._is_own, ref, wish.port):
                raise Refused(
                    f"port {wish.port} of node {self.node_id} is not the job's: another process "
                    "listens there. Use a port on which the job listens"
                )
            undo.pop_all()
        return Channel(
            {"stdout": Output(os.dup(connection.fileno()), waits_for_end=False)},
            Input(os.dup(connection.fileno()), functools.partial(_shut, connection)),
            functools.partial(_leave, connection),
        )

    def _is_own(self, ref: AttemptRef, port: int) -> bool:
        """Return whether the job listens on a port. Blocks: it reads many small files."""
        return is_listened_on_by(self.jobs.processes(ref), port)


def _channel_to(process: Process, ours: Sequence[int], tty: bool) -> Channel:
    """Return a channel to a process.

    `ours` are the descriptors of its input and then its streams; for a terminal, its master twice.
    """
    outputs = {
        name: Output(descriptor, waits_for_end=True)
        for name, descriptor in zip(STREAMS, ours[1:], strict=False)
    }
    size = functools.partial(_resize, outputs["stdout"]) if tty else None
    return Channel(
        outputs,
        taken_in=Input(ours[0], (lambda: None) if tty else None),
        release=lambda _: process.close(),
        signal=process.send_signal,
        size=size,
    )


async def _until_ended(process: Process, channel: Channel) -> None:
    channel.process_ended(*await process.wait())


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _terminal(wish: Exec) -> tuple[list[int], list[int]]:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (wish.rows, wish.columns))
    return [os.dup(master), master], [slave]


def _pipes(stdin: bool) -> tuple[list[int], list[int]]:
    """Return our ends and the process's ends of its pipes."""
    reader, writer = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), -1)
    out, err = os.pipe(), os.pipe()
    return [writer, out[0], err[0]], [reader, out[1], err[1]]


def _resize(terminal: Output, rows: int, columns: int) -> None:
    """Set the terminal's size; the kernel signals its foreground processes (SIGWINCH)."""
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(terminal.descriptor, (rows, columns))


def _leave(connection: socket.socket, whole: bool) -> None:
    """Close a connection; reset it if it was cut off, so that the job does not take the data so far
    for all of it.
    """
    if not whole:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
