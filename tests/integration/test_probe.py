"""The probe of replicas against real sockets: when a replica is ready, and the reasons if not."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from services.node_agent.jobs.probe import PROBE_S, probe
from services.node_agent.machine.ports import is_free

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def asked(
    reply: bytes, hold_s: float = 0.0, within_s: float = PROBE_S, key: str | None = ""
) -> tuple[str, bytes]:
    """Return the probe's result for a server that answers so, and the request that it got."""
    heard = b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard = await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(hold_s)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        said = await probe("127.0.0.1", port, "/healthz?deep=1", within_s, key)
    return said, heard


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 204 No Content\r\ncontent-length: 0\r\n\r\n", ""),
        (b"HTTP/1.1 503 Loading model\r\n\r\n", "status 503"),
        (b"HTTP/1.1 302 Found\r\nlocation: /\r\n\r\n", "status 302"),
        (b"SSH-2.0-OpenSSH\r\n", "its answer is not HTTP"),
        (b"x" * 100_000, "its answer is not HTTP"),
        (b"", "its answer is not HTTP"),
    ],
)
async def test_only_2xx_is_ready(reply: bytes, said: str) -> None:
    assert (await asked(reply))[0] == said


async def test_probe_requests_the_health_path() -> None:
    _, heard = await asked(b"HTTP/1.1 200 OK\r\n\r\n")
    assert heard.startswith(b"GET /healthz?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization" not in heard


async def test_probe_carries_the_key_of_the_replica() -> None:
    _, heard = await asked(b"HTTP/1.1 200 OK\r\n\r\n", key="k1")
    assert b"\r\nAuthorization: Bearer k1\r\n" in heard


@pytest.mark.parametrize("status", [401, 403])
async def test_a_demand_for_the_key_is_an_answer_only_while_the_key_is_unknown(status: int) -> None:
    reply = b"HTTP/1.1 %d No\r\n\r\n" % status
    assert [(await asked(reply, key=key))[0] for key in ("", "k1", None)] == [
        f"status {status}",
        f"status {status}",
        "",
    ]
    assert (await asked(b"HTTP/1.1 500 No\r\n\r\n", key=None))[0] == "status 500"


async def test_probe_reports_a_port_without_a_listener() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert (await probe("127.0.0.1", port, "/")).startswith("no connection: ")


async def test_a_server_that_hangs_is_not_waited_for() -> None:
    assert (await asked(b"HTTP/1.1 200 OK\r\n\r\n", hold_s=1.0, within_s=0.2))[
        0
    ] == "no answer within 0.2 s"


def test_a_port_is_free_when_no_process_listens_on_any_address() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)
