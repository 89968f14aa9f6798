"""The gateway's connections send the same bytes as uvicorn's own, and refuse the same headers."""

import asyncio
import re
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.api_gateway.http.connection import Connection
from services.api_gateway.http.places import Places

DATE = re.compile(rb"date: [^\r]*\r\n")
TEXT = (b"content-type", b"text/plain")
FIVE = (b"content-length", b"5")
# Status and headers of an answer whose body is "hello", and the method of its request.
ANSWERS: dict[str, tuple[int, list[tuple[bytes, bytes]], str]] = {
    "with its length": (200, [TEXT, FIVE], "GET"),
    "without a length": (200, [TEXT], "GET"),
    "to a HEAD": (200, [TEXT], "HEAD"),
    "to a HEAD, with its length": (200, [TEXT, FIVE], "HEAD"),
    "of an unknown status": (299, [FIVE], "GET"),
    "that ends the connection": (
        400,
        [FIVE, (b"connection", b"close")],
        "GET",
    ),
    "in chunks": (200, [(b"transfer-encoding", b"chunked")], "GET"),
    "with a header twice": (200, [FIVE, (b"a", b"1"), (b"a", b"2")], "GET"),
    "with a line break in a header": (
        200,
        [(b"a", b"1\r\nb: 2"), FIVE],
        "GET",
    ),
    "with a zero byte in a header": (200, [(b"a", b"1\0"), FIVE], "GET"),
    "that is longer than it says": (200, [(b"content-length", b"4")], "GET"),
}


async def said(protocol: Any, answer: tuple[int, list[tuple[bytes, bytes]], str]) -> bytes:
    """Return what a client gets to two requests on one connection, without the date."""
    status, headers, method = answer

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello", "more_body": False})

    config = uvicorn.Config(
        app, port=0, loop="none", lifespan="off", http=protocol, log_level="critical"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"{method} / HTTP/1.1\r\nhost: x\r\n".encode()
    writer.write(request + b"\r\n" + request + b"connection: close\r\n\r\n")
    heard = await reader.read(-1)
    writer.close()
    server.should_exit = True
    await serving
    return DATE.sub(b"", heard)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_what_uvicorn_would_send(
    answer: tuple[int, list[tuple[bytes, bytes]], str],
) -> None:
    own = partial(Connection, head_s=5.0, unread_s=5.0, places=Places(8))
    assert asyncio.run(said(own, answer)) == asyncio.run(said(HttpToolsProtocol, answer))
