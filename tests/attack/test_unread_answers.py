"""A tenant that never reads its answers: the gateway's memory stays bounded, the places at replicas
come back in time, and another tenant is served.
"""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from services.api_gateway.http import connection
from services.api_gateway.openai.catalogue import Listed
from tests.attack.serving_world import CHAT, GREEDY, IN_MAKE_ATTACK, MIB, Serving, serving
from tests.integration.gateway_world import KEY, gateway_world
from tests.integration.openai_replica import Replica, running
from tests.integration.openai_world import served
from tests.tidy import ROOT

REPLICA: Final = ROOT / "tests" / "integration" / "openai_replica.py"
UNREAD_S: Final = 4.0
# Two replicas, each with so many places.
PLACES: Final = 150
BOUNDS: Final = {
    "MUSTER_GATEWAY_UNREAD_MS": str(int(UNREAD_S * 1_000)),
    "MUSTER_MODEL_ROOM_REQUESTS": str(PLACES),
}
STREAMS: Final = 250
MORE_STREAMS: Final = 400
WHOLES: Final = 50
# A stream is over after one look at what was read, and processors are shared.
GIVEN_BACK_S: Final = 2 * UNREAD_S + 10.0
CALM_S: Final = 3.0
FLOOD_S: Final = 3.0
MEMORY_MIB: Final = 1_024
STREAM: Final = {"model": "m", "stream": True, "x_chunks": 100_000_000, "max_tokens": 1}
WHOLE: Final = {"model": "m", "x_status": 200, "x_body": {"text": "x" * 4 * MIB}}


def request(key: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    return (head + f"content-length: {len(data)}\r\n\r\n").encode() + data


@contextmanager
def unread(port: int, sent: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Send so many requests, and read no answer until the end of the block."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", port))
            client.sendall(sent)
            found.append(client)
        yield found


async def open_at_least(world: Serving, count: int) -> None:
    async with asyncio.timeout(30.0):
        while await world.open_requests() < count:
            await asyncio.sleep(0.05)


@IN_MAKE_ATTACK
async def test_a_tenant_that_never_reads_its_answers_holds_no_place_for_long(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, REPLICA, **BOUNDS) as world:
        before_mib = world.memory_mib()
        calm = await world.asked(CALM_S)
        stream = request(world.keys[GREEDY], STREAM)
        with unread(world.port, stream, STREAMS):
            await open_at_least(world, STREAMS)
            under = await world.asked(FLOOD_S)
            memory_mib = world.memory_mib()
            given_back_s = await world.none_open(GIVEN_BACK_S)
        with unread(world.port, stream, MORE_STREAMS):
            await open_at_least(world, MORE_STREAMS)
            began = time.monotonic()
            full = await world.asked(1.0)
            full_s = time.monotonic() - began
            await world.none_open(2 * GIVEN_BACK_S)
        with unread(world.port, request(world.keys[GREEDY], WHOLE), WHOLES):
            wholes = await world.asked(FLOOD_S)
            wholes_mib = world.memory_mib()
            await world.none_open(GIVEN_BACK_S)
        print(f"\ncalm: {calm.shown()}\n{STREAMS} unread streams: {under.shown()}")
        print(f"places given back after {given_back_s:.1f} s")
        print(f"all places taken: {full.shown()}, after {full_s:.1f} s")
        print(f"{WHOLES} unread answers of 4 MiB: {wholes.shown()}")
        print(f"gateway: {before_mib:.0f} MiB, then {memory_mib:.0f} and {wholes_mib:.0f} MiB")
        for asked in (calm, under, full, wholes):
            assert asked.times_s and not asked.failed, asked.failed[:5]
        assert max(memory_mib, wholes_mib) < MEMORY_MIB


class Large(Replica):
    """A replica whose answers have 4 MiB."""

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"text": "x" * 4 * MIB})


async def test_whole_answers_that_a_tenant_does_not_read_are_bounded_in_bytes(
    tmp_path: Path,
) -> None:
    """They count until they are read, although their replica was free long before."""
    large = Large()
    async with (
        gateway_world(tmp_path, model_bodies_bytes=40 * MIB) as world,
        running(replica=large),
    ):
        world.gateway.models = Listed(served(large.port))
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

        async def status() -> int:
            async with world.session.post(world.url + CHAT, json=body) as answer:
                text = await answer.text()
                if answer.status == 429:
                    assert "answers of tenant default's open requests" in text
                    assert answer.headers["retry-after"]
                return answer.status

        port = int(world.url.rsplit(":", 1)[1])
        async with asyncio.timeout(60.0):
            with unread(port, request(KEY, body), 10):
                while await status() != 429:
                    await asyncio.sleep(0.05)
                while world.gateway.queues.open.counts:
                    await asyncio.sleep(0.05)
            while await status() != 200:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("ahead", [0, 3], ids=["one", "sent ahead"])
async def test_an_unread_stream_ends_without_blame_for_its_replica(
    tmp_path: Path, ahead: int
) -> None:
    async with gateway_world(tmp_path, gateway_unread_ms=300) as world, running() as replica:
        world.gateway.models = Listed(served(replica.port))
        port = int(world.url.rsplit(":", 1)[1])
        with unread(port, request(KEY, STREAM) * (1 + ahead), 1):
            async with asyncio.timeout(20.0):
                while not replica.bodies:
                    await asyncio.sleep(0.01)
                while world.gateway.queues.open.counts:
                    await asyncio.sleep(0.01)
        loads = world.gateway.queues.of("m").rules.router.loads
        now_ns = world.gateway.clock.boot_ns()
        assert not any(loads.of(each).is_avoided(now_ns) for each in loads.known())
        async with asyncio.timeout(10.0):
            while not replica.cancelled:
                await asyncio.sleep(0.01)


async def test_a_client_that_hangs_up_ends_the_requests_that_it_sent_ahead(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        world.gateway.models = Listed(served(replica.port))
        port = int(world.url.rsplit(":", 1)[1])
        slow = request(KEY, {**STREAM, "x_gap_s": 0.05})
        with unread(port, slow * 3, 1) as [client]:
            while not replica.bodies:
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(client.recv, 100)
        async with asyncio.timeout(10.0):
            while world.gateway.queues.open.counts:
                await asyncio.sleep(0.01)
        assert len(replica.bodies) == 1


async def test_a_client_that_reads_slowly_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes more than the least within each look, although the answer waits all the time."""
    monkeypatch.setattr(connection, "UNREAD_BYTES_MIN", 1 << 10)
    async with gateway_world(tmp_path, gateway_unread_ms=300) as world, running() as replica:
        world.gateway.models = Listed(served(replica.port))
        port = int(world.url.rsplit(":", 1)[1])
        with unread(port, request(KEY, {**STREAM, "x_chunks": 15_000}), 1) as [client]:
            client.setblocking(False)
            read, last, loop = 0, b"", asyncio.get_running_loop()
            async with asyncio.timeout(40.0):
                while b"[DONE]" not in last:
                    piece = await loop.sock_recv(client, 1 << 17)
                    assert piece, f"cut after {read} bytes"
                    read, last = read + len(piece), (last + piece)[-100:]
                    await asyncio.sleep(0.01)
            assert read > MIB
