"""Hostile clients of GET /v1/ws: nonsense, readers that do not read, floods of messages, and a
thousand subscribers of which one stalls.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from libs.common.open_share import OpenShare
from services.api_gateway.ws import sockets
from tests.attack.serving_world import IN_MAKE_ATTACK
from tests.integration.gateway_world import World, gateway_world
from tests.integration.ws_world import Socket, key_of, socket

SUBSCRIBERS: Final = 1_000
CHANGES: Final = 40
UNREAD_MS: Final = 1_000
FUZZED: Final = 60 if "MUSTER_TEST_SECONDS" not in os.environ else 600

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
OPERATIONS = st.sampled_from(["subscribe", "unsubscribe", "ping", "request", "cancel", "x", ""])
TOPICS = st.sampled_from(["jobs", "nodes", "fleet", "events", "logs", "metrics", "summary", "chat"])
FILTERS = st.dictionaries(
    st.sampled_from(["state", "ids", "job", "rank", "kind", "since", "offset", "snapshot", "x"]),
    VALUES,
)
FIELDS = st.fixed_dictionaries(
    {"op": OPERATIONS | VALUES},
    optional={
        "id": st.sampled_from(["a", "b"]) | VALUES,
        "topic": TOPICS | VALUES,
        "filter": FILTERS | VALUES,
        "after": st.integers(0, 30) | VALUES,
        "n": VALUES,
        "model": st.just("m") | VALUES,
        "body": VALUES,
    },
)
MESSAGES = st.lists(FIELDS.map(json.dumps) | st.text() | st.binary(), min_size=1, max_size=14)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(
        tmp_path, gateway_unread_ms=UNREAD_MS, followers_per_tenant=SUBSCRIBERS + 50
    ) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


def server_errors(world: World) -> list[str]:
    """Answers of 500 and more, which the metrics count, and bugs in tasks of connections."""
    text = world.gateway.telemetry.text().decode()
    return [line for line in text.splitlines() if 'status="5' in line]


async def test_nonsense_is_answered_and_never_a_server_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await world.run_to("running")
    loop = asyncio.get_running_loop()

    async def send(messages: list[str | bytes]) -> None:
        async with socket(world) as client:
            try:
                for message in messages:
                    await client.connection.send(message)
                await client.tell(op="ping", n=4_711)
                while not (
                    (frame := await client.next())["event"] == "pong" and frame["n"] == 4_711
                ):
                    pass
            except ConnectionClosed as error:
                assert error.rcvd is not None and error.rcvd.code == 1008, error

    @settings(
        max_examples=FUZZED,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )
    @given(MESSAGES)
    def attempt(messages: list[str | bytes]) -> None:
        asyncio.run_coroutine_threadsafe(send(messages), loop).result(60)

    await asyncio.to_thread(attempt)
    assert server_errors(world) == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert (await world.ask("GET", f"/v1/jobs/{job_id}"))["state"] == "running"


async def test_frames_that_break_the_protocol_close_their_connection_only(world: World) -> None:
    async with socket(world) as good:
        await good.subscribe("a", "nodes")
        await good.until("ready")
        for raw in (b"\xff" * 40, b"\x81\x05hello", b"\x8b\x80\0\0\0\0", b"\x81\xfe\xff\xff"):
            async with socket(world) as bad:
                bad.connection.transport.write(raw)
                bad.connection.transport.write_eof()
                await asyncio.wait_for(bad.connection.wait_closed(), 10)
        too_long = "x" * (300 << 10)
        async with socket(world) as bad:
            await bad.connection.send(too_long)
            assert (await bad.closed())[0] == 1009
        await good.tell(op="ping", n=1)
        assert (await good.next())["event"] == "pong"


async def fill(world: World, jobs: int = 60) -> None:
    """Make history that no buffer between the gateway and its client holds."""
    for _ in range(jobs):
        await world.submit(env={"E": "x" * 30_000})


async def test_a_client_that_does_not_read_is_cut_off_with_the_reason(world: World) -> None:
    await fill(world)
    async with socket(world, max_queue=1) as client:
        for number in range(40):
            await client.subscribe(f"a{number}", "events", after=1)
        client.connection.transport.pause_reading()
        async with asyncio.timeout(20):
            while world.gateway.sockets.clients:
                await asyncio.sleep(0.05)
        client.connection.transport.resume_reading()
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                await client.next()
        closed = caught.value.rcvd
        assert closed is not None and closed.code == 1013
        seq = min(client.seqs.get(f"a{number}", 1) for number in range(40))
        assert closed.reason == f"nothing was read for 1 s: continue after {seq}"
    text = world.gateway.telemetry.text().decode()
    assert 'muster_gateway_websockets_closed_total{reason="unread"} 1.0' in text


async def test_a_client_that_reads_again_gets_the_newest_state_alone(world: World) -> None:
    await fill(world)
    job_id = await world.run_to("queued")
    async with socket(world, max_queue=1) as client:
        await client.subscribe("j", "jobs", ids=[job_id])
        await client.until("ready")
        await client.subscribe("e", "events", after=1)
        client.connection.transport.pause_reading()
        await asyncio.sleep(UNREAD_MS / 4_000)
        await world.writers.place(job_id, "n1")
        await world.writers.start(job_id, "n1")
        await world.writers.finish(job_id, "n1")
        await world.writers.close(job_id)
        await world.settle()
        client.connection.transport.resume_reading()
        states = []
        while not states or states[-1] != "completed":
            frame = await client.next()
            if frame["event"] == "job":
                states.append(frame["data"]["state"])
        assert len(states) <= 2


async def test_a_flood_of_messages_slows_its_sender_only(world: World) -> None:
    async with socket(world) as flooding, socket(world) as calm:
        flood = "".join(json.dumps({"op": "ping", "n": number}) for number in range(1))

        async def pour() -> None:
            for _ in range(3_000):
                await flooding.connection.send(flood)

        async def drain() -> None:
            while True:
                await flooding.next()

        pouring, draining = asyncio.create_task(pour()), asyncio.create_task(drain())
        began = time.monotonic()
        for number in range(20):
            await calm.tell(op="ping", n=number)
            assert (await calm.next())["n"] == number
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 20
        assert len(flooding.frames) < 3_000
        for task in (pouring, draining):
            task.cancel()
        await asyncio.gather(pouring, draining, return_exceptions=True)


async def test_strangers_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STRANGERS_MAX", 2)
    async with socket(world, key=None), socket(world, key=None):
        with pytest.raises(InvalidStatus) as caught:
            async with socket(world, key=None):
                pass
        assert caught.value.response.status_code == 503
        async with socket(world) as client:
            await client.tell(op="ping")
            await client.next()


async def test_a_greedy_tenant_takes_no_connection_of_another(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, followers_per_tenant=3) as world:
        await world.ask("PUT", "/v1/tenants/greedy", 201)
        key = await key_of(world, "member", "mallory", "greedy")
        async with socket(world, key=key), socket(world, key=key), socket(world, key=key):
            with pytest.raises(InvalidStatus) as caught:
                async with socket(world, key=key):
                    pass
            assert caught.value.response.status_code == 429
            async with socket(world) as client:
                await client.tell(op="ping")
                await client.next()


async def test_a_greedy_tenant_leaves_subscriptions_to_others(world: World) -> None:
    world.gateway.sockets.subscriptions = OpenShare(10)
    await world.ask("PUT", "/v1/tenants/greedy", 201)
    key = await key_of(world, "member", "mallory", "greedy")
    async with socket(world, key=key) as greedy, socket(world) as client:
        for number in range(9):
            await greedy.subscribe(f"s{number}", "nodes", snapshot=False)
        frames = [await greedy.next() for _ in range(9)]
        assert [frame["data"].get("status") for frame in frames].count(429) == 1
        await client.subscribe("a", "nodes")
        await client.until("ready")
    async with asyncio.timeout(5):
        while world.gateway.sockets.subscriptions.held:
            await asyncio.sleep(0.01)


async def test_names_in_filters_count_as_subscriptions_do(world: World) -> None:
    world.gateway.sockets.subscriptions = OpenShare(100)
    async with socket(world) as greedy:
        await greedy.subscribe("a", "jobs", ids=[f"j{number}" for number in range(84)])
        await greedy.until("ready")
        assert world.gateway.sockets.subscriptions.held == 85
        await greedy.subscribe("b", "jobs", ids=[f"k{number}" for number in range(4)])
        [refused] = await greedy.until("error")
        assert (refused["id"], refused["data"]["status"]) == ("b", 429)
        assert "subscriptions and names in filter.ids" in refused["data"]["detail"]
        await greedy.tell(op="unsubscribe", id="a")
        await greedy.until("end")
        assert world.gateway.sockets.subscriptions.held == 0


@IN_MAKE_ATTACK
async def test_a_thousand_subscribers_of_which_one_stalls_all_get_the_newest_state(
    world: World,
) -> None:
    await fill(world)
    job_id = await world.run_to("queued")
    clients = [await stack_socket(world) for _ in range(SUBSCRIBERS)]
    try:
        for client in clients:
            await client.subscribe("a", "jobs", ids=[job_id], snapshot=False)
        for client in clients:
            await client.until("ready")
        stalled, *others = clients
        for number in range(40):
            await stalled.subscribe(f"e{number}", "events", after=1)
        stalled.connection.transport.pause_reading()
        for priority in range(CHANGES):
            await world.ask("PATCH", f"/v1/jobs/{job_id}", json={"priority": priority})
        await world.writers.place(job_id, "n1")

        async def newest(client: Socket) -> int:
            while (await client.next())["data"]["state"] != "placed":
                pass
            return len(client.frames)

        counts = await asyncio.gather(*map(newest, others))
        assert max(counts) <= CHANGES + 3
        assert world.gateway.rows.encoded <= 4 * (CHANGES + 2)
        async with asyncio.timeout(30):
            while len(world.gateway.sockets.clients) > len(others):
                await asyncio.sleep(0.05)
    finally:
        for client in clients:
            client.connection.transport.abort()


async def stack_socket(world: World) -> Socket:
    """Open a connection that the caller closes."""
    manager = socket(world)
    client = await manager.__aenter__()
    client.manager = manager  # type: ignore[attr-defined]
    return client
