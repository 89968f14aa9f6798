"""Requests to a replica over the connections of the HTTP client's pool, against real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from multidict import CIMultiDict

from libs.common.model import JobId
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai import upstream
from services.api_gateway.openai.upstream import Upstream

HEADERS = CIMultiDict({"content-type": "application/json", "x-request-id": "r1"})
OK = (
    b"HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream; charset=utf-8\r\n"
    b"content-length: 2\r\n\r\n"
)


class Replica:
    """Answers each request with the next of `answers`; an empty one closes the connection."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.heard: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.heard.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if not answer:
                    break
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def asking(replica: Replica, attempt: int = 0) -> AsyncIterator[tuple[Upstream, Endpoint]]:
    server = await asyncio.start_server(replica.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = Upstream(Settings(), lambda job_id, number: f"key-{number}")
    try:
        yield found, Endpoint(JobId("j1"), "127.0.0.1", port, keyed_attempt=attempt)
    finally:
        await found.close()
        server.close()


async def test_request_is_written_whole_and_the_connection_is_used_again() -> None:
    replica = Replica(b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"ab", OK + b"cd")
    async with asking(replica, attempt=7) as (found, endpoint):
        for text in (b"ab", b"cd"):
            answer = await found.post(endpoint, "/v1/x", HEADERS, b'{"a":1}')
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            assert await answer.content.read() == text
            answer.close()
    assert replica.connections == 1
    head = replica.heard[0].decode()
    assert head.startswith(f"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\n")
    assert "x-request-id: r1\r\n" in head and "authorization: Bearer key-7\r\n" in head
    assert head.endswith('Content-Length: 7\r\n\r\n{"a":1}') and "authorization" not in HEADERS


async def test_answer_that_is_not_read_to_its_end_closes_its_connection() -> None:
    replica = Replica(OK + b"a", OK + b"cd")
    async with asking(replica) as (found, endpoint):
        answer = await found.post(endpoint, "/v1/x", HEADERS, b"{}")
        answer.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await answer.content.read()
        again = await found.post(endpoint, "/v1/x", HEADERS, b"{}")
        assert await again.content.read() == b"cd"
    assert replica.connections == 2


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
async def test_bytes_after_an_answer_are_never_the_answer_to_the_next_request(
    pause_s: float,
) -> None:
    heard = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await reader.readuntil(b"{}")
        heard += 1
        if heard > 1:
            writer.write(OK + b"cd")
            return
        writer.write(OK + b"ab")
        await asyncio.sleep(pause_s)
        writer.write(OK + b"!!")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    found = Upstream(Settings(), lambda job_id, number: "key")
    endpoint = Endpoint(JobId("j1"), "127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        first = await found.post(endpoint, "/v1/x", HEADERS, b"{}")
        assert await first.content.read() == b"ab"
        await asyncio.sleep(2 * pause_s)
        try:
            again = await found.post(endpoint, "/v1/x", HEADERS, b"{}")
        except aiohttp.ClientConnectionResetError:
            again = await found.post(endpoint, "/v1/x", HEADERS, b"{}")
        assert await again.content.read() == b"cd"
    finally:
        await found.close()
        server.close()


async def test_connection_of_a_replica_that_answers_before_it_has_the_request_is_closed() -> None:
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await asyncio.sleep(0.5)  # and reads no more
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1 << 12)
    found = Upstream(Settings(), lambda job_id, number: "key")
    endpoint = Endpoint(JobId("j1"), "127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        for _ in range(2):
            answer = await found.post(endpoint, "/v1/x", HEADERS, bytes(32 << 20))
            assert (answer.status, answer.headers.get("content-type")) == (413, None)
            assert await answer.content.read() == b""
    finally:
        await found.close()
        server.close()
    assert connections == 2


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2", b"not HTTP\r\n\r\n"])
async def test_replica_that_breaks_off_is_a_failure(answer: bytes) -> None:
    replica = Replica(answer, b"")
    async with asking(replica) as (found, endpoint):
        task = asyncio.create_task(found.post(endpoint, "/v1/x", HEADERS, b"{}"))
        while not replica.heard:
            await asyncio.sleep(0.01)
        if answer == b"HTTP/1.1 2":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return
        with pytest.raises(upstream.FAILURES) as caught:
            await task
        assert not upstream.unprocessed(caught.value)


async def test_replica_that_does_not_listen_has_not_seen_the_request() -> None:
    async with asking(Replica()) as (found, endpoint):
        pass
    found = Upstream(Settings(), lambda job_id, number: "")
    with pytest.raises(upstream.FAILURES) as caught:
        await found.post(endpoint, "/v1/x", HEADERS, b"{}")
    assert upstream.unprocessed(caught.value)
    await found.close()


@pytest.mark.attack
@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nx: y", "a\0"])
async def test_header_cannot_add_another_header(value: str) -> None:
    replica = Replica(OK + b"ab")
    async with asking(replica) as (found, endpoint):
        with pytest.raises(ValueError, match="line break"):
            await found.post(endpoint, "/v1/x", CIMultiDict({"traceparent": value}), b"{}")
    assert not replica.heard
