"""Hostile clients and hostile replicas of the OpenAI surface: each is bounded, each is told one
clear thing, and the gateway serves on.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.api_gateway.http import connection
from services.api_gateway.openai import events
from services.api_gateway.openai.catalogue import Listed
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, Ledger, error_of, served

MIB = 1 << 20
DEEP = b"[" * 100_000 + b"]" * 100_000
SAYS_S = 10.0


@asynccontextmanager
async def connected(
    world: World,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rsplit(":", 1)[1]))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(*lines: str, path: str = CHAT, key: str = KEY) -> bytes:
    return "\r\n".join(
        (f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key}", *lines, "", "")
    ).encode()


async def said(reader: asyncio.StreamReader) -> str:
    """All until the gateway closes."""
    async with asyncio.timeout(SAYS_S):
        return (await reader.read()).decode(errors="replace")


async def flood(writer: asyncio.StreamWriter, piece: bytes, pieces: int) -> int:
    """How many pieces were taken before the connection closed."""
    for sent in range(pieces):
        try:
            writer.write(piece)
            await writer.drain()
        except ConnectionError:
            return sent
    return pieces


class TestBodies:
    @pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
    async def test_a_stated_gibibyte_is_refused_before_it_comes_and_the_connection_closes(
        self, tmp_path: Path, path: str
    ) -> None:
        async with gateway_world(tmp_path) as world, connected(world) as (reader, writer):
            writer.write(head(f"content-length: {1 << 30}", path=path) + b"x" * MIB)
            answer = await said(reader)
            assert (
                answer.startswith("HTTP/1.1 413")
                and "connection: close" in answer
                and "larger than" in answer
            )

    @pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
    async def test_a_gibibyte_in_chunks_is_refused_while_the_client_still_sends(
        self, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "LINGER_S", 0.5)
        async with (
            gateway_world(tmp_path, model_body_bytes=MIB) as world,
            connected(world) as (reader, writer),
        ):
            writer.write(head("transfer-encoding: chunked", path=path))
            chunk = b"%x\r\n%s\r\n" % (MIB, b"x" * MIB)
            answer, sent = await asyncio.gather(
                said(reader), asyncio.wait_for(flood(writer, chunk, 1 << 30), 60.0)
            )
            assert answer.startswith("HTTP/1.1 413") and sent < 1 << 30

    @pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
    async def test_a_body_that_drips_is_a_408_and_the_connection_closes(
        self, tmp_path: Path, path: str
    ) -> None:
        async with (
            gateway_world(tmp_path, model_body_ms=300) as world,
            connected(world) as (reader, writer),
        ):
            writer.write(head("content-length: 1000", path=path))
            dripping = asyncio.create_task(drip(writer, 0.05))
            answer = await said(reader)
            dripping.cancel()
            assert answer.startswith("HTTP/1.1 408") and "was not complete after 0.3 s" in answer

    @pytest.mark.parametrize(
        "body",
        [
            b'{"model":"\xff"}',
            b'{"model":"m","x":' + DEEP + b"}",
            b"[" * 1_000_000,
            b'{"model":"m","n":1e9}',
            b'{"model":"m","n":"all"}',
            b"\0",
        ],
        ids=["utf-8", "deep", "open", "float", "text", "nul"],
    )
    async def test_json_that_cannot_be_read_is_a_400(self, tmp_path: Path, body: bytes) -> None:
        async with (
            gateway_world(tmp_path) as world,
            world.session.post(world.url + CHAT, data=body) as response,
        ):
            assert (await error_of(response, 400))["type"] == "invalid_request_error"

    @pytest.mark.parametrize(
        "body", [b'{"command":["\xff"]}', b'{"command":' + DEEP + b"}", b"[" * 100_000]
    )
    async def test_neither_do_the_other_routes_break_over_it(
        self, tmp_path: Path, body: bytes
    ) -> None:
        async with (
            gateway_world(tmp_path) as world,
            world.session.post(world.url + "/v1/jobs", data=body) as response,
        ):
            assert response.status in (400, 422), await response.text()

    @pytest.mark.parametrize("count", [10**9, 10**30, -1])
    async def test_a_wish_for_a_billion_answers_is_refused_by_the_limit_and_costs_nothing(
        self, tmp_path: Path, count: int
    ) -> None:
        async with gateway_world(tmp_path) as world, running() as replica:
            world.gateway.models = Listed(served(replica.port))
            world.gateway.meter = ledger = Ledger(1_000)
            body = {"model": "m", "n": count, "max_tokens": 50}
            await world.ask("POST", CHAT, 429 if count > 0 else 200, json=body)
            assert ledger.left == 1_000 - (0 if count > 0 else 12)


async def drip(writer: asyncio.StreamWriter, every_s: float) -> None:
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(every_s)


class TestHeads:
    async def test_a_head_that_drips_is_a_408(self, tmp_path: Path) -> None:
        async with (
            gateway_world(tmp_path, gateway_head_ms=300) as world,
            connected(world) as (reader, writer),
        ):
            writer.write(b"POST / HTTP/1.1\r\nx-")
            dripping = asyncio.create_task(drip(writer, 0.05))
            answer = await said(reader)
            dripping.cancel()
            assert answer.startswith("HTTP/1.1 408") and "were not complete after 0.3 s" in answer

    async def test_a_connection_that_says_nothing_is_closed(self, tmp_path: Path) -> None:
        async with (
            gateway_world(tmp_path, gateway_head_ms=200) as world,
            connected(world) as (reader, _),
        ):
            assert await said(reader) == ""

    @pytest.mark.parametrize(
        "line", [b"x-%d: " + b"y" * 1_000 + b"\r\n", b"y" * 1_000], ids=["many", "one"]
    )
    async def test_headers_without_end_are_a_431(
        self, tmp_path: Path, line: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "LINGER_S", 0.5)
        async with gateway_world(tmp_path) as world, connected(world) as (reader, writer):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx-long: ")
            answer, sent = await asyncio.gather(
                said(reader), asyncio.wait_for(flood(writer, line, 1 << 30), 60.0)
            )
            assert answer.startswith("HTTP/1.1 431") and sent < 1 << 30

    async def test_a_long_stream_is_not_a_late_head(self, tmp_path: Path) -> None:
        async with gateway_world(tmp_path, gateway_head_ms=200) as world, running() as replica:
            world.gateway.models = Listed(served(replica.port))
            body = {"model": "m", "stream": True, "x_gap_s": 0.3}
            for _ in range(2):
                async with world.session.post(world.url + CHAT, json=body) as response:
                    assert (await response.text()).endswith("data: [DONE]\n\n")


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def answering(
    tmp_path: Path, *pieces: bytes, closes: bool = True, **changed: Any
) -> AsyncIterator[World]:
    """A gateway whose only replica says these bytes to every request, and closes or
    says no more.
    """

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and await reader.read(MIB):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with gateway_world(tmp_path, **changed) as world:
        world.gateway.models = Listed(served(server.sockets[0].getsockname()[1]))
        yield world
    server.close()


async def test_a_client_that_never_reads_its_stream_is_gone_and_its_replica_not_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.3)
    gone, lost = asyncio.Event(), connection.Connection.connection_lost

    def noted(self: connection.Connection, exc: Exception | None) -> None:
        lost(self, exc)
        gone.set()

    monkeypatch.setattr(connection.Connection, "connection_lost", noted)
    pieces = (EVENTS, *[chunk(b"data: " + b"x" * MIB + b"\n\n")] * 64)
    patience = {"model_idle_ms": 300, "gateway_unread_ms": 600}
    async with (
        answering(tmp_path, *pieces, closes=False, **patience) as world,
        connected(world) as (_, writer),
    ):
        body = b'{"model":"m","stream":true}'
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(head(f"content-length: {len(body)}") + body)
        async with asyncio.timeout(SAYS_S):
            await gone.wait()
        registry = world.gateway.telemetry.registry
        assert registry.get_sample_value("muster_model_requests_open", {"model": "m"}) == 0
        loads = world.gateway.queues.of("m").rules.router.loads
        assert [loads.of(each).avoid_since_ns for each in loads.known()] == [-1]


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\x16\x03\x01 garbage \r\n\r\n",),
        (b"",),
        (OK + b"content-length: 100\r\n\r\n{}",),
        (OK + b"content-length: -5\r\n\r\n{}",),
        (OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\n{}",),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",),
        (OK + b"x-long: " + b"y" * MIB + b"\r\n\r\n{}",),
        (b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}",),
        (b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n{}",),
        (EVENTS + b"5\r\nda",),
        (EVENTS + b"zz\r\n",),
    ],
    ids=[
        "garbage",
        "nothing",
        "short",
        "negative",
        "two lengths",
        "half a chunk",
        "no chunk",
        "head",
        "999",
        "101",
        "half event",
        "no event",
    ],
)
async def test_a_replica_that_speaks_no_http_is_a_502(
    tmp_path: Path, pieces: tuple[bytes, ...]
) -> None:
    async with answering(tmp_path, *pieces) as world:
        for stream in (False, True):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "stream": stream}
            ) as response:
                assert (await error_of(response, 502))["code"] == "upstream_error"


async def test_bytes_behind_an_answer_are_no_other_request_s_answer(tmp_path: Path) -> None:
    forged = OK + b'content-length: 10\r\n\r\n{"forged"}'
    async with answering(
        tmp_path, OK + b"content-length: 2\r\n\r\n{}" + forged, closes=False
    ) as world:
        for _ in range(4):
            async with world.session.post(world.url + CHAT, json={"model": "m"}) as response:
                assert await response.text() == "{}"


async def test_an_answer_that_never_ends_is_cut_at_its_bound(tmp_path: Path) -> None:
    endless = (OK + b"\r\n", *[b"x" * MIB] * 64)
    async with (
        answering(tmp_path, *endless, closes=False, model_answer_bytes=4 * MIB) as world,
        world.session.post(world.url + CHAT, json={"model": "m"}) as response,
    ):
        assert (await error_of(response, 502))["code"] == "answer_too_large"


async def test_an_answer_that_drips_ends_at_its_time(tmp_path: Path) -> None:
    async with (
        answering(tmp_path, OK + b"\r\n{", closes=False, model_answer_ms=300) as world,
        world.session.post(world.url + CHAT, json={"model": "m"}) as response,
    ):
        assert (await error_of(response, 504))["code"] == "timeout"


async def test_an_event_without_end_passes_in_pieces_and_the_stream_says_that_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", MIB)
    endless = (EVENTS, *[chunk(b"x" * MIB)] * 16)
    async with (
        answering(tmp_path, *endless) as world,
        world.session.post(world.url + CHAT, json={"model": "m", "stream": True}) as response,
    ):
        text = await response.text()
        assert text.count("x") >= 14 * MIB and "upstream_error" in text[-300:]


@pytest.mark.parametrize(
    "usage",
    [
        b'{"total_tokens":-1000}',
        b'{"total_tokens":1%s}' % (b"0" * 40),
        b'{"total_tokens":"many"}',
        b'{"x":%s}' % DEEP,
    ],
    ids=["negative", "huge", "text", "deep"],
)
async def test_a_replica_s_lie_about_tokens_mints_none_and_breaks_nothing(
    tmp_path: Path, usage: bytes
) -> None:
    body = b'{"usage":' + usage + b"}"
    said = (
        EVENTS
        + chunk(EVENT)
        + chunk(b'data: {"choices":[],"usage":' + usage + b"}\n\n")
        + chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )
    for stream, answer in (
        (False, OK + b"content-length: %d\r\n\r\n%s" % (len(body), body)),
        (True, said),
    ):
        async with answering(tmp_path, answer) as world:
            world.gateway.meter = ledger = Ledger(1_000)
            await ask(world, stream)
            assert ledger.left <= 1_000 and all(
                tokens is None or 0 <= tokens <= events.TOKENS_MAX for tokens in ledger.settled
            )


async def ask(world: World, stream: bool) -> None:
    body = {"model": "m", "max_tokens": 50, "stream": stream}
    async with world.session.post(world.url + CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        await response.read()


async def test_a_refusal_nested_without_end_is_put_in_openai_s_shape(tmp_path: Path) -> None:
    said = b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%s" % (len(DEEP), DEEP)
    async with (
        answering(tmp_path, said) as world,
        world.session.post(world.url + CHAT, json={"model": "m"}) as response,
    ):
        assert len((await error_of(response, 400))["message"]) <= 500


async def test_after_all_of_it_a_client_is_served(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        world.gateway.models = Listed(served(replica.port))
        async with connected(world) as (reader, writer):
            writer.write(b"\0\0\0\r\n\r\n")
            assert (await said(reader)).startswith("HTTP/1.1 400")
        await world.ask("POST", CHAT, json={"model": "m"})
