"""GET /v1/ws over real WebSockets: topics, signing in, roles, bounds, and the end of a connection.

tests/attack/test_ws_clients.py has hostile clients, test_gateway_ws_resume.py broken connections.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from services.api_gateway.ws import serving
from services.api_gateway.ws.client import SocketClient
from services.api_gateway.ws.open_ids import OPEN_MAX
from tests.integration.gateway_world import World, gateway_world
from tests.integration.ws_world import Socket, key_of, socket


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, keepalive_ms=200) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


def shapes(frames: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(frame["id"], frame["event"]) for frame in frames]


async def test_jobs_begin_with_a_snapshot_and_go_on_with_each_change(world: World) -> None:
    await world.run_to("completed")
    job_id = await world.run_to("queued")
    async with socket(world) as client:
        await client.subscribe("a", "jobs")
        first, ready = await client.until("ready")
        assert first["event"] == "snapshot"
        assert first["data"] == {"jobs": [await world.ask("GET", f"/v1/jobs/{job_id}")]}
        assert ready["seq"] == ready["data"]["seq"] == world.gateway.cluster.seq
        await world.writers.place(job_id, "n1")
        frame = await client.next()
        assert (frame["id"], frame["event"], frame["data"]["state"]) == ("a", "job", "placed")
        assert frame["seq"] == world.gateway.cluster.seq
        assert frame["data"] == await world.ask("GET", f"/v1/jobs/{job_id}")


async def test_nodes_and_the_fleet_have_the_rows_of_their_routes(world: World) -> None:
    job_id = await world.run_to("placed")
    async with socket(world) as client:
        await client.subscribe("n", "nodes")
        shown, _ = await client.until("ready")
        assert shown["data"] == {"nodes": (await world.ask("GET", "/v1/nodes"))["nodes"]}
        await client.subscribe("f", "fleet")
        shown, _ = await client.until("ready")
        assert shown["data"] == {"nodes": (await world.ask("GET", "/v1/fleet"))["nodes"]}
        await world.writers.start(job_id, "n1")
        frame = await client.next()
        assert shapes([frame]) == [("f", "fleet")]
        assert frame["data"]["gpus"][0]["state"] == "IN_USE"
        await world.writers.finish(job_id, "n1")
        found = [await client.next() for _ in range(2)]
        assert sorted(shapes(found)) == [("f", "fleet"), ("n", "node")]


async def test_only_changes_come_without_a_snapshot(world: World) -> None:
    job_id = await world.run_to("queued")
    async with socket(world) as client:
        await client.subscribe("a", "jobs", snapshot=False)
        await client.subscribe("f", "fleet", snapshot=False)
        assert sorted(shapes([await client.next() for _ in range(2)])) == [
            ("a", "ready"),
            ("f", "ready"),
        ]
        await world.writers.place(job_id, "n1")
        found = [await client.next() for _ in range(2)]
        assert sorted(shapes(found)) == [("a", "job"), ("f", "fleet")]


async def test_a_filter_lets_through_what_matches_or_matched_before(world: World) -> None:
    first = await world.run_to("queued")
    async with socket(world) as client:
        await client.subscribe("q", "jobs", state="queued")
        snapshot, _ = await client.until("ready")
        assert [job["id"] for job in snapshot["data"]["jobs"]] == [first]
        await world.writers.place(first, "n1")
        frame = await client.next()
        assert (frame["data"]["id"], frame["data"]["state"]) == (first, "placed")
        await world.writers.start(first, "n1")
        second = await world.run_to("queued")
        frames = [frame for frame in await client.until("job") if frame["event"] == "job"]
        assert [frame["data"]["id"] for frame in frames] == [second]


async def test_named_jobs_alone_are_sent_to_a_client_that_names_them(world: World) -> None:
    mine, other = await world.run_to("queued"), await world.run_to("queued")
    async with socket(world) as client:
        await client.subscribe("a", "jobs", ids=[mine])
        snapshot, _ = await client.until("ready")
        assert [job["id"] for job in snapshot["data"]["jobs"]] == [mine]
        await world.writers.place(other, "n1")
        await world.writers.start(other, "n1")
        await world.writers.finish(other, "n1")
        await world.writers.place(mine, "n1")
        assert (await client.next())["data"]["id"] == mine


async def test_events_are_the_facts_of_the_log_with_its_filters(world: World) -> None:
    async with socket(world) as client:
        await client.subscribe("e", "events", kind="job.")
        await client.until("ready")
        job_id = await world.run_to("queued")
        frames = [await client.next() for _ in range(3)]
        assert [frame["data"]["kind"] for frame in frames] == [
            "job.submitted",
            "job.admitted",
            "job.queued",
        ]
        listed = (await world.ask("GET", f"/v1/events?job={job_id}"))["events"]
        assert [frame["data"] for frame in frames] == listed
        assert [frame["seq"] for frame in frames] == [event["seq"] for event in listed]


async def test_the_summary_is_sent_when_it_changes(world: World) -> None:
    async with socket(world) as client:
        await client.subscribe("s", "summary")
        frame = await client.next()
        assert frame["data"] == {
            "jobs": {},
            "nodes": {"healthy": 1},
            "gpus": {
                "total": 2,
                "busy": 0,
                "unhealthy": 0,
                "free_share": 200,
                "states": {"AVAILABLE": 2},
            },
        }
        await world.run_to("running")
        while (frame := await client.next())["data"]["jobs"] != {"running": 1}:
            pass
        assert frame["data"]["gpus"]["states"] == {"AVAILABLE": 1, "IN_USE": 1}


async def test_metrics_come_every_second(world: World) -> None:
    async with socket(world) as client:
        await client.subscribe("m", "metrics")
        frames = [await client.next() for _ in range(2)]
        assert all(frame["event"] == "metrics" for frame in frames)
        assert set(frames[0]["data"]) == {"at", "lag", "log_filled", "scheduler", "models"}


async def test_a_subscription_ends_when_it_is_asked_to(world: World) -> None:
    job_id = await world.run_to("queued")
    async with socket(world) as client:
        await client.subscribe("a", "jobs", snapshot=False)
        await client.until("ready")
        for _ in range(3):
            await client.tell(op="unsubscribe", id="a")
            assert shapes([await client.next()]) == [("a", "end")]
        await world.writers.place(job_id, "n1")
        await client.tell(op="ping", n=5)
        assert (await client.next())["event"] == "pong"
        await client.subscribe("a", "jobs", snapshot=False)
        await client.until("ready")
    assert world.gateway.waiting.feeds.watchers <= 1  # the counts of the summary


async def test_an_idle_connection_hears_that_it_lives(world: World) -> None:
    async with socket(world) as client:
        async with asyncio.timeout(5):
            hello, alive = [json.loads(await client.connection.recv()) for _ in range(2)]
        assert (hello["event"], hello["data"]["role"]) == ("hello", "admin")
        assert alive == {"event": "alive", "seq": world.gateway.cluster.seq}


async def test_the_first_message_may_bring_the_key(world: World) -> None:
    key = await key_of(world, "viewer", "ada")
    async with socket(world, key=None) as client:
        await client.tell(key=key)
        await client.subscribe("a", "jobs")
        await client.until("ready")
    async with socket(world, key=None) as client:
        await client.tell(key="msk_wrong")
        code, reason = await client.closed()
        assert code == 1008 and "sign in with another key" in reason
    async with socket(world, key=None) as client:
        await client.subscribe("a", "jobs")
        code, reason = await client.closed()
        assert code == 1008 and reason.startswith("key: ")


async def test_a_client_without_a_key_is_closed_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SIGN_IN_S", 0.2)
    async with socket(world, key=None) as client:
        assert await client.closed() == (1008, "no key came within 0.2 s: send it first")
    assert world.gateway.sockets.strangers == 0


async def test_a_wrong_key_is_refused_before_the_upgrade(world: World) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with socket(world, key="msk_x"):
            pass
    assert caught.value.response.status_code == 401
    assert (await world.ask("GET", "/v1/ws", 426))["detail"].startswith("this route is a WebSocket")


async def test_a_key_that_is_revoked_ends_its_connections(world: World) -> None:
    key = await key_of(world, "viewer", "ada")
    async with socket(world, key=key) as client:
        await client.subscribe("a", "summary")
        await client.next()
        key_id = next(
            each["id"]
            for each in (await world.ask("GET", "/v1/keys"))["keys"]
            if each["user"] == "ada"
        )
        await world.ask("DELETE", f"/v1/keys/{key_id}", 204)
        code, reason = await client.closed()
        assert code == 1008 and reason.endswith("sign in again")


async def test_a_tenant_sees_nothing_of_another(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    theirs = await world.run_to("running", name="secret-plan")
    key = await key_of(world, "member", "ada", "physics")
    async with socket(world, key=key) as client:
        for topic in ("jobs", "nodes", "fleet", "events", "summary", "metrics"):
            await client.subscribe(topic, topic)
        await client.subscribe("named", "jobs", ids=[theirs])
        await client.subscribe("asked", "jobs", tenant="default", state="running,completed")
        await client.subscribe("out", "logs", job=theirs)
        while not {"named", "asked", "out", "fleet", "metrics"} <= set(client.seqs):
            await client.next()
        await world.writers.finish(theirs, "n1")
        await world.writers.close(theirs)
        other = await world.run_to("queued")
        await client.tell(op="ping", n=1)
        await client.until("pong")
        errors = [frame for frame in client.frames if frame["event"] == "error"]
        sent = json.dumps([frame for frame in client.frames if frame not in errors])
        assert theirs not in sent and "secret-plan" not in sent and other not in sent
        assert [(frame["id"], frame["data"]["status"]) for frame in errors] == [("out", 404)]
        fleet = next(
            frame
            for frame in client.frames
            if frame["event"] == "snapshot" and frame["id"] == "fleet"
        )
        assert fleet["data"]["nodes"][0]["gpus"][0]["holders"] == [{"tenant": None, "share": 100}]


async def test_messages_that_are_not_valid_are_answered_and_end_the_connection_at_last(
    world: World,
) -> None:
    async with socket(world) as client:
        await client.subscribe("a", "jobs", colour="red")
        frame = await client.next()
        assert (frame["id"], frame["event"], frame["data"]["field"]) == (
            "a",
            "error",
            "filter.colour",
        )
        await client.connection.send(b"binary")
        assert "send JSON as text" in (await client.next())["data"]["detail"]
        for _ in range(14):
            await client.tell(op="shout")
            assert (await client.next())["data"]["field"] == "op"
        await client.tell(op="ping", n=1)
        assert (await client.next())["event"] == "pong"
        await client.tell(op="shout")
        assert (await client.closed())[0] == 1008


async def test_a_connection_takes_one_place_and_has_bounded_subscriptions(world: World) -> None:
    async with socket(world) as client:
        for number in range(OPEN_MAX):
            await client.subscribe(f"s{number}", "jobs", snapshot=False)
            await client.until("ready")
        await client.subscribe("more", "jobs")
        refused = await client.next()
        assert (refused["id"], refused["data"]["status"]) == ("more", 429)
        assert world.gateway.places.by_tenant == {"default": 1}
    while world.gateway.places.by_tenant:
        await asyncio.sleep(0.01)
    assert not world.gateway.sockets.clients


async def test_the_scope_of_a_connection_that_ended_does_not_hold_it(world: World) -> None:
    async with socket(world) as client:
        await client.subscribe("a", "nodes")
        await client.until("ready")
        [served] = world.gateway.sockets.clients
        assert isinstance(served, SocketClient)
        extensions = served.scope["extensions"]
        assert extensions[serving.EXTENSION] is served.link
    async with asyncio.timeout(5):
        while serving.EXTENSION in extensions:
            await asyncio.sleep(0.01)


async def test_places_of_a_tenant_bound_its_connections(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, followers_per_tenant=1) as world, socket(world):
        with pytest.raises(InvalidStatus) as caught:
            async with socket(world):
                pass
        assert caught.value.response.status_code == 429


async def test_each_connection_and_subscription_is_in_the_access_records(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path, records_access=True, access_flush_ms=10) as world,
        socket(world) as client,
    ):
        await client.subscribe("a", "jobs", state="queued")
        await client.until("ready")
        await client.subscribe("b", "logs", job="nothing")
        await client.until("error")
        rows: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while len(rows) < 3:
                found = (await world.ask("GET", "/v1/access?limit=1000"))["access"]
                rows = [row for row in found if row["route"] == "/v1/ws"]
    assert sorted(row["status"] for row in rows) == [101, 200, 404]
    assert '"state":"queued"' in next(row["detail"] for row in rows if row["status"] == 200)


async def test_a_gateway_that_stops_says_where_to_continue(world: World) -> None:
    async with socket(world) as client:
        await client.subscribe("a", "nodes")
        await client.until("ready")
        world.gateway.sockets.stop()
        code, reason = await client.closed()
        seq = world.gateway.cluster.seq
        assert (code, reason) == (
            1001,
            f"the gateway stops: connect again and continue after {seq}",
        )
        with pytest.raises(InvalidStatus) as caught:
            async with socket(world):
                pass
        assert caught.value.response.status_code == 503
    text = world.gateway.telemetry.text().decode()
    assert 'muster_gateway_websockets_closed_total{reason="stopping"} 1.0' in text
    assert "muster_gateway_websockets 0.0" in text


async def test_a_change_is_encoded_once_for_all_who_may_see_the_same(world: World) -> None:
    job_id = await world.run_to("queued")
    async with (
        socket(world) as first,
        socket(world) as second,
        socket(world, key=await key_of(world, "operator", "root")) as third,
    ):
        clients: list[Socket] = [first, second, third]
        for client in clients:
            await client.subscribe("a", "jobs", snapshot=False)
            await client.until("ready")
        before = world.gateway.rows.encoded
        await world.writers.place(job_id, "n1")
        for client in clients:
            assert (await client.next())["data"]["state"] == "placed"
        assert world.gateway.rows.encoded == before + 1


async def test_a_client_that_hangs_up_leaves_nothing_behind(world: World) -> None:
    async with socket(world) as client:
        for topic in ("jobs", "nodes", "fleet", "events", "summary", "metrics"):
            await client.subscribe(topic, topic)
        await client.until("ready")
        client.connection.transport.abort()
        with pytest.raises(ConnectionClosed):
            while True:
                await client.next()
    async with asyncio.timeout(5):
        while world.gateway.sockets.clients or world.gateway.places.by_tenant:
            await asyncio.sleep(0.01)
    assert not world.running.done()
