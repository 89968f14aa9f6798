"""A replica's port: whether it is free before the start, and whether the replica answers on it: one
GET of its health path, in time.

Only the status line is read. It goes to the address that requests will come to, so that a server
which listens on the loopback alone is not called ready on a machine that others must reach. Twin:
the simulation's machines. Test: tests/integration/test_probe.py.
"""

import asyncio
import contextlib
import socket
from typing import Final

PROBE_S: Final = 2.0
STATUS_LINE_BYTES_MAX: Final = 256


def is_free(port: int) -> bool:
    """Whether nobody listens there, on any address of this machine.

    Another's server would answer the probes of ours.
    """
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is only closing is free
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


async def probe(
    address: str, port: int, path: str, within_s: float = 0, default_s: float = PROBE_S
) -> str:
    """Empty when the answer is 2xx, else what is wrong, in a few words.

    Without `within_s` the answer has `default_s`.
    """
    within_s = within_s or default_s
    try:
        async with asyncio.timeout(within_s):
            return _verdict(await _status_line(address, port, path))
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except OSError as error:
        return f"no connection: {error.strerror or error}"


async def _status_line(address: str, port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(address, port, limit=STATUS_LINE_BYTES_MAX)
    try:
        host = f"[{address}]" if ":" in address else address
        writer.write(
            (
                f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: "
                "muster-probe\r\nConnection: close\r\n\r\n"
            ).encode()
        )
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _verdict(line: bytes) -> str:
    words = line.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return "its answer is not HTTP"
    return "" if 200 <= int(words[1]) < 300 else f"status {int(words[1])}"
