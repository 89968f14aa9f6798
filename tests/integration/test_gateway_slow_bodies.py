"""Hostile connections: a request is answered and cut within a bound, whatever its headers say and
however slowly its body comes.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.api_gateway.http import connection
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_openai_hostile import connected, drip, said

pytestmark = pytest.mark.attack

UPGRADE = ("connection: upgrade", "upgrade: websocket")
CONNECTIONS = 1_000


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: x", *lines, "", "")).encode()


async def answer(world: World, sent: bytes) -> str:
    async with connected(world) as (reader, writer):
        writer.write(sent)
        return await said(reader)


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 100", *UPGRADE),
        ("transfer-encoding: chunked", *UPGRADE),
        ("content-length: 0", *UPGRADE),
        ("content-length: 100", f"authorization: Bearer {KEY}", *UPGRADE),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
async def test_a_websocket_with_a_body_or_another_method_is_refused_at_once(
    tmp_path: Path, method: str, lines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    async with gateway_world(tmp_path, gateway_head_ms=300) as world:
        found = await answer(world, head(method, "/v1/jobs", *lines) + b"abc")
        assert found.startswith("HTTP/1.1 400") or (
            method == "GET" and "content-length: 0" in lines
        )


async def test_a_websocket_s_head_that_its_library_cannot_read_is_a_431(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, gateway_head_ms=300) as world:
        for lines in (("x-long: " + "y" * 9_000,), tuple(f"x-{n}: y" for n in range(120))):
            found = await answer(world, head("GET", "/v1/jobs/j/exec", *lines, *UPGRADE))
            assert found.startswith("HTTP/1.1 431")


async def test_a_handshake_without_its_key_is_cut(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, gateway_head_ms=300) as world:
        await answer(world, head("GET", "/v1/jobs/j/exec", *UPGRADE))


@pytest.mark.parametrize("length", ["content-length: 1000000", "transfer-encoding: chunked"])
@pytest.mark.parametrize("key", ["", f"authorization: Bearer {KEY}"])
async def test_a_body_that_drips_behind_its_answer_is_cut(
    tmp_path: Path, length: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.3)
    path = "/v1/no-such-route" if key else "/v1/jobs"
    async with (
        gateway_world(tmp_path, gateway_head_ms=300) as world,
        connected(world) as (reader, writer),
    ):
        writer.write(
            head("POST", path, length, *([key] if key else []))
            + (b"" if "length" in length else b"ffff\r\n")
        )
        dripping = asyncio.create_task(drip(writer, 0.05))
        found = await said(reader)
        assert found.startswith("HTTP/1.1 404" if key else "HTTP/1.1 401")
        async with asyncio.timeout(10):
            await asyncio.gather(
                dripping, return_exceptions=True
            )  # the connection is reset under it


async def test_a_body_that_ends_behind_its_answer_keeps_the_connection(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path, gateway_head_ms=500) as world,
        connected(world) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(head("POST", "/v1/jobs", "content-length: 4"))
            assert (await reader.readuntil(b"<key>'\"}")).startswith(b"HTTP/1.1 401")
            writer.write(b"body")
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        writer.write(head("GET", "/livez"))
        rest = await reader.readuntil(b'{"live"')
        assert b"HTTP/1.1 200" in rest


async def test_a_thousand_slow_bodies_are_all_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.5)
    async with gateway_world(tmp_path, gateway_head_ms=2_000) as world, AsyncExitStack() as stack:
        made = []
        for number in range(CONNECTIONS):
            reader, writer = await stack.enter_async_context(connected(world))
            lines = ("content-length: 1000000", *(UPGRADE if number % 2 else ()))
            writer.write(head("POST", "/v1/jobs", *lines) + b"x")
            made.append(reader)
        async with asyncio.timeout(63):
            answers = await asyncio.gather(*(reader.read() for reader in made))
        assert {found[:12] for found in answers} == {b"HTTP/1.1 401", b"HTTP/1.1 400"}
        await world.ask("GET", "/livez")


@pytest.mark.parametrize(
    "lines",
    [
        (f"authorization: Bearer {KEY}", f"authorization: Bearer {KEY}"),
        ("authorization: Bearer wrong", f"authorization: Bearer {KEY}"),
        ("authorization:", f"authorization: Bearer {KEY}"),
        (f"authorization: Bearer {KEY}", "host: y"),
        (f"authorization: Bearer {KEY}", "content-length: 0", "content-length: 3"),
        (f"authorization: Bearer {KEY}", "content-length: 3", "transfer-encoding: chunked"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/models", "/livez"])
async def test_a_header_that_two_readers_may_read_differently_is_a_400(
    tmp_path: Path, path: str, lines: tuple[str, ...]
) -> None:
    async with gateway_world(tmp_path) as world:
        assert (await answer(world, head("GET", path, *lines, "connection: close"))).startswith(
            "HTTP/1.1 400"
        )
