"""`muster port-forward`: connections to a port of this machine go on to a port of a running job,
each over a channel of its own.

A direction that ends is ended at the other side, and the other direction goes on. A connection that
is refused costs one line, and nothing else; when the job has ended, so does this. Tests:
tests/integration/test_cli_port_forward.py.
"""

import asyncio
import functools
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final, NamedTuple

from libs.cli.following.channel import Channel, opened
from libs.cli.following.waiting import wait_for_end
from libs.cli.gateway import job_path
from libs.cli.profile import Profile
from libs.cli.terminal.output import complain
from libs.common.errors import MusterError, Refused
from libs.common.messages.channel_messages import CHUNK_BYTES, Forward

HOST: Final = "127.0.0.1"
# Of one command; the node has a bound of its own.
CONNECTIONS_MAX: Final = 128
# What the job wrote last is on its way still when its end is known.
END_S: Final = 2.0
# SO_LINGER: a close within 0 s is a reset.
RESET: Final = struct.pack("ii", 1, 0)


class Ports(NamedTuple):
    """`local` 0 is any free one."""

    remote: int
    local: int


class Forwarding:
    """Of one job. `run` serves until that has ended."""

    def __init__(self, profile: Profile, job_id: str, node: str) -> None:
        self.profile = profile
        self.job_id = job_id
        self.node = node
        self.connections: set[asyncio.Task[None]] = set()

    async def run(self, ports: Sequence[Ports]) -> str:
        """The state in which the job has ended.

        Raises OSError for a port that is taken, and what `wait_for_end` raises.
        """
        ended = _end_of(self.profile, self.job_id)
        async with AsyncExitStack() as servers:
            for remote, local in ports:
                server = await asyncio.start_server(
                    functools.partial(self._accepted, remote), HOST, local, limit=CHUNK_BYTES
                )
                servers.callback(server.close)
                print(
                    (
                        f"{HOST}:{server.sockets[0].getsockname()[1]} is port {remote} of job "
                        f"{self.job_id}"
                    ),
                    flush=True,
                )
            state = await ended
        if self.connections:
            await asyncio.wait(self.connections, timeout=END_S)
        return state

    def _accepted(
        self, remote: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """In a task of its own: of a coroutine given to it the streams module logs each
        cancellation, as one Ctrl-C is.
        """
        task = asyncio.create_task(self._connected(remote, reader, writer))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def _connected(
        self, remote: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        whole = False
        try:
            whole = await self._served(remote, reader, writer)
        except MusterError as error:
            complain(f"a connection to port {remote} was refused or broke: {error}")
        finally:
            writer.close() if whole else _reset(writer)

    async def _served(
        self, remote: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """One connection, until both directions have ended; whether they have.

        Raises what the gateway's answer may be.
        """
        if len(self.connections) > CONNECTIONS_MAX:
            raise Refused(f"{CONNECTIONS_MAX} are open")
        async with opened(
            self.profile, job_path(self.job_id, "forward"), Forward(remote), self.node
        ) as channel:
            try:
                await _relay(channel, reader, writer)
            except ConnectionError:
                return False  # whoever connected here has left, and the other end hears of it
            return True


def _end_of(profile: Profile, job_id: str) -> "asyncio.Future[str]":
    """Waited for on a daemon thread, so that Ctrl-C need not wait for it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def wait() -> None:
        try:
            settle = functools.partial(
                ended.set_result, str(wait_for_end(profile, job_id)["state"])
            )
        except MusterError as error:
            settle = functools.partial(ended.set_exception, error)
        with suppress(RuntimeError):  # this command has ended meanwhile
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=wait, name="end", daemon=True).start()
    return ended


def _reset(writer: asyncio.StreamWriter) -> None:
    """Not an end, which would pass for the whole."""
    with suppress(OSError):  # it is gone already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


async def _relay(
    channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async def down(_stream: str, data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    upward = asyncio.create_task(_upward(channel, reader))
    try:
        await channel.follow(down, lambda _: writer.write_eof())
    finally:
        upward.cancel()


async def _upward(channel: Channel, reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            if not await channel.write(data):
                return
    await channel.tell(eof=True)
