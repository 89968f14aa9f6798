"""The agent's side of a supervisor's control socket (`control.py`): one connection per request."""

import asyncio
import contextlib
import json
import os
import socket
from typing import Any

from libs.common.errors import Refused
from services.node_agent.supervision import control, records


class NotListening(Exception):
    """The supervisor does not listen yet, listens no more, or has too many connections waiting."""


async def ask(job_dir: str, request: dict[str, Any], timeout_s: float | None) -> dict[str, Any] | None:
    """The reply, or None when the supervisor ended over it or did not answer in time. Raises Refused for a bad request."""
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
        raise Refused(f"the supervisor of {os.path.basename(job_dir)} refused {request.get('op')}: {reply['error']}")
    return reply


async def _exchange(job_dir: str, body: bytes) -> bytes:
    """The name may be another process's since the supervisor ended, so who listens is looked at first."""
    identity = records.read_identity(job_dir)
    if identity is None or not identity["control"]:
        raise NotListening
    # Connected here, at once or not at all: uvloop takes no abstract name.
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.connect("\0" + identity["control"])
    except OSError:
        connection.close()
        raise
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        if control.peer(writer.get_extra_info("socket"))[0] != identity["pid"]:
            raise NotListening
        writer.write(body)
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
