"""`muster port-forward`: relays connections from a local port to a port of a running job.

Each connection has its own channel. When one direction ends, the other continues. A refused
connection prints one line. The command ends with the job. Tests:
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
from libs.cli.terminal.output import complain
from libs.client.profile import Profile
from libs.common.errors import MusterError, Refused
from libs.common.messages.channel_messages import CHUNK_BYTES, Forward

HOST: Final = "127.0.0.1"
# The limit of one command; the node has its own limit.
CONNECTIONS_MAX: Final = 128
# Time for the last bytes of a job that has ended.
END_S: Final = 2.0
# SO_LINGER with 0 s: closing resets the connection.
RESET: Final = struct.pack("ii", 1, 0)


class Ports(NamedTuple):
    """A port of the job and a local port; `local` 0 means any free port."""

    remote: int
    local: int


class Forwarding:
    """The forwarded ports of one job."""

    def __init__(self, profile: Profile, job_id: str, node: str) -> None:
        self.profile = profile
        self.job_id = job_id
        self.node = node
        self.connections: set[asyncio.Task[None]] = set()

    async def run(self, ports: Sequence[Ports]) -> str:
        """Forward until the job ends, and return its state.

        Raises OSError if a local port is in use, and the errors of `wait_for_end`.
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
        """Serve a connection in a task of its own.

        asyncio would log the cancellation of a coroutine callback at every Ctrl-C.
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
            complain(f"a connection to port {remote} of the job failed: {error}")
        finally:
            writer.close() if whole else _reset(writer)

    async def _served(
        self, remote: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Relay one connection. Return True if both directions ended normally.

        Raises Declined, Unreachable, Cut or Refused.
        """
        if len(self.connections) > CONNECTIONS_MAX:
            raise Refused(f"{CONNECTIONS_MAX} connections are open already; close some first")
        async with opened(
            self.profile, job_path(self.job_id, "forward"), Forward(remote), self.node
        ) as channel:
            try:
                await _relay(channel, reader, writer)
            except ConnectionError:
                return False  # the local client has disconnected; closing the channel tells the job
            return True


def _end_of(profile: Profile, job_id: str) -> "asyncio.Future[str]":
    """Return a future with the job's end state, set by a daemon thread.

    A daemon thread does not delay Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def wait() -> None:
        try:
            settle = functools.partial(
                ended.set_result, str(wait_for_end(profile, job_id)["state"])
            )
        except MusterError as error:
            settle = functools.partial(ended.set_exception, error)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=wait, name="end", daemon=True).start()
    return ended


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection: a normal close would look like complete data."""
    with suppress(OSError):  # the socket is closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


async def _relay(
    channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async def down(_stream: str, data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    upward = asyncio.create_task(_relay_upward(channel, reader))
    try:
        await channel.follow(down, lambda _: writer.write_eof())
    finally:
        upward.cancel()


async def _relay_upward(channel: Channel, reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            if not await channel.write(data):
                return
    await channel.tell(eof=True)
