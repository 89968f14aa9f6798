"""The agent's side of a supervisor's control socket (`control.py`): one connection per request, and
one for the life of an exec.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from libs.common.errors import Refused, Unavailable
from services.node_agent.supervisor import control, records

EXEC_TIMEOUT_S = 5.0
SIGNAL_TIMEOUT_S = 5.0
# A supervisor listens a moment after its fork.
CONNECT_TRIES: Final = 200
CONNECT_AGAIN_S: Final = 0.01
# The exit code if the end was not seen: as if by SIGKILL.
GONE = 137


class NotListening(Exception):
    """The supervisor does not listen yet or any more, or has too many waiting connections."""


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn a request that fails on this machine into Unavailable: no descriptor is free, or half of
    a reply came.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise Unavailable(f"its supervisor cannot be asked: {error}") from error


async def ask_until_listening(
    job_dir: str, request: dict[str, Any], timeout_s: float | None, is_over: Callable[[], bool]
) -> dict[str, Any] | None:
    """Ask again while the supervisor does not listen: it begins a moment after its fork.

    Return the reply; None if the job `is_over`, or if the supervisor ended or did not answer in
    time. Raises Refused for a bad request, and Unavailable if the supervisor cannot be asked.
    """
    with failures():
        for _ in range(CONNECT_TRIES):
            if is_over():
                return None
            try:
                return await ask(job_dir, request, timeout_s)
            except NotListening:
                await asyncio.sleep(CONNECT_AGAIN_S)
    return None


async def ask(
    job_dir: str, request: dict[str, Any], timeout_s: float | None
) -> dict[str, Any] | None:
    """Return the reply; None if the supervisor ended or did not answer in time.

    Raises Refused for a bad request.
    """
    body = json.dumps({"job": os.path.basename(job_dir), **request}).encode() + b"\n"
    try:
        async with asyncio.timeout(timeout_s):
            line = await _exchange(job_dir, body)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        raise NotListening from None
    except (TimeoutError, ConnectionError):
        return None
    if not line:
        return None
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise Refused(
            f"the supervisor of {os.path.basename(job_dir)} refused {request.get('op')}: "
            f"{reply['error']}"
        )
    return reply


async def _exchange(job_dir: str, body: bytes) -> bytes:
    connection = _connected(job_dir)
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        writer.write(body)
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _connected(job_dir: str) -> socket.socket:
    """Connect and check who listens: another process may have the name since the
    supervisor ended.
    """
    identity = records.read_identity(job_dir)
    if identity is None or not identity["control"]:
        raise NotListening
    # Connected here and without waiting, because uvloop takes no abstract name.
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.connect("\0" + identity["control"])
        if control.peer(connection)[0] != identity["pid"]:
            raise NotListening
    except (OSError, NotListening):
        connection.close()
        raise
    return connection


class Exec:
    """A process beside the job (`execs.py`). It ends when this is closed."""

    def __init__(
        self, job_dir: str, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._job_dir = job_dir
        self._number = number
        self._reader = reader
        self._writer = writer

    async def wait(self) -> tuple[int, str]:
        """Return its exit code (128 + the signal that ended it) and a text about its end."""
        try:
            self._writer.write(
                json.dumps({"op": "exec_wait", "exec": self._number}).encode() + b"\n"
            )
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line:
            return GONE, "it was ended with its job"
        reply: dict[str, Any] = json.loads(line)
        return reply["exit_code"], reply["detail"]

    async def send_signal(self, number: int) -> None:
        """Send it a signal. Harmless after its end."""
        with contextlib.suppress(NotListening, Refused):
            await ask(
                self._job_dir,
                {"op": "exec_signal", "exec": self._number, "signal": number},
                SIGNAL_TIMEOUT_S,
            )

    def close(self) -> None:
        self._writer.close()


async def begin_exec(job_dir: str, request: dict[str, Any], descriptors: Sequence[int]) -> Exec:
    """Start a process beside the job; `descriptors` are its streams or its terminal, and stay the
    caller's.

    Raises Refused, also for a job that has ended.
    """
    try:
        async with asyncio.timeout(EXEC_TIMEOUT_S):
            return await _begun(job_dir, request, descriptors)
    except (NotListening, OSError, TimeoutError) as error:
        raise Refused(
            f"the supervisor of {os.path.basename(job_dir)} does not answer: has the job "
            "just ended?"
        ) from error


async def _begun(job_dir: str, request: dict[str, Any], descriptors: Sequence[int]) -> Exec:
    """Send the request. The descriptors go with the first byte; a long request may have to wait for
    room.
    """
    body = json.dumps({"job": os.path.basename(job_dir), "op": "exec", **request}).encode() + b"\n"
    connection = _connected(job_dir)
    sent = socket.send_fds(connection, [body], list(descriptors))
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    with contextlib.ExitStack() as undo:
        undo.callback(writer.close)
        writer.write(body[sent:])
        reply = json.loads(await reader.readline() or b"{}")
        if "exec" not in reply:
            raise Refused(reply.get("error", "the job has just ended"))
        undo.pop_all()
    return Exec(job_dir, reply["exec"], reader, writer)
