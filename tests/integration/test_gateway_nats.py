"""The gateway's process against a real nats-server, as its own nkey with its own permissions."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv import output_key
from libs.common.transport.kv_nats import KvOutputs, create_buckets
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.objects_nats import NatsObjects, filled_part
from libs.embedded.identity import seed_file
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, free_ports, start_servers
from services.api_gateway.access.auth import hash_key
from services.api_gateway.service import main
from services.api_gateway.views import snapshots
from tests.integration.gateway_world import FakeNode, Writers

LOG_BYTES = 64 << 20


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    started = start_servers(
        tmp_path, fleet=Fleet(nodes=("n1",), gateways=("a",), isolated=False), log_bytes=4 << 30
    )
    yield started
    started.stop()


@asynccontextmanager
async def process(
    servers: Servers, tmp_path: Path
) -> AsyncIterator[tuple[aiohttp.ClientSession, asyncio.Task[None]]]:
    """The gateway's whole `main`, and a client of it."""
    scheduler = await connect(servers.urls, "scheduler", servers.seed("scheduler"))
    await create_stream(scheduler, 1, LOG_BYTES)
    await create_buckets(scheduler, Settings())
    (tmp_path / "api-keys").write_text(hash_key("k") + "\n")
    port = free_ports(1)[0]
    settings = Settings(
        nats=",".join(servers.urls),
        nkey_seed_file=str(seed_file(servers.keys, "gateway-a")),
        gateway_port=port,
        api_keys_file=str(tmp_path / "api-keys"),
    )
    stop = asyncio.Event()
    running = asyncio.create_task(main(settings, stop))
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", headers={"authorization": "Bearer k"}
    ) as session:
        await _ready(session, running)
        yield session, running
    stop.set()
    await asyncio.wait_for(running, 10)
    await scheduler.close()


async def _ready(session: aiohttp.ClientSession, running: asyncio.Task[None]) -> None:
    for _ in range(500):
        assert not running.done(), running.exception()
        try:
            async with session.get("/readyz") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.02)
    raise AssertionError("the gateway did not become ready")


async def test_a_submission_is_in_the_stream_and_visible_when_it_is_answered(
    servers: Servers, tmp_path: Path
) -> None:
    async with process(servers, tmp_path) as (session, _):
        async with session.post("/v1/jobs", json={"command": ["true"]}) as response:
            job = await response.json()
            assert response.status == 201
        async with session.get(f"/v1/jobs/{job['id']}") as response:
            assert await response.json() == job
        async with session.get("/v1/events?last=1") as response:
            assert [event["kind"] for event in (await response.json())["events"]] == [
                "job.submitted"
            ]
        async with session.get("/v1/state?at=1") as response:
            assert [each["id"] for each in (await response.json())["jobs"]] == [job["id"]]


async def test_a_restarted_gateway_goes_on_where_the_log_ends(
    servers: Servers, tmp_path: Path
) -> None:
    async with (
        process(servers, tmp_path) as (session, _),
        session.post("/v1/jobs", json={"command": ["true"]}) as response,
    ):
        first = await response.json()
    async with process(servers, tmp_path) as (session, _):
        async with session.post("/v1/jobs", json={"command": ["true"]}) as response:
            second = await response.json()
        async with session.get("/v1/jobs") as response:
            assert [job["id"] for job in (await response.json())["jobs"]] == [
                first["id"],
                second["id"],
            ]


async def test_output_comes_from_the_node_then_from_the_bucket(
    servers: Servers, tmp_path: Path
) -> None:
    async with process(servers, tmp_path) as (session, _):
        agent = await connect(servers.urls, "node-n1", servers.seed("node-n1"))
        scheduler = await connect(servers.urls, "scheduler", servers.seed("scheduler"))
        quota = await connect(servers.urls, "quota", servers.seed("quota"))
        by_scheduler, by_quota, by_node = (
            Writers(JetStreamLog(client)) for client in (scheduler, quota, agent)
        )
        await by_scheduler.begin_term()
        await by_node.register("n1")
        async with session.post("/v1/jobs", json={"command": ["true"]}) as response:
            job_id = (await response.json())["id"]
        await by_quota.admit(job_id)
        await by_scheduler.queue_admitted(job_id)
        await by_scheduler.place(job_id, "n1")
        await by_node.start(job_id, "n1")
        node = FakeNode()
        await node.listen(NatsBus(agent), "n1")
        node.say(job_id, "stdout", b"from the node", end=True)
        async with session.get(f"/v1/jobs/{job_id}/output?follow=1") as response:
            assert await response.read() == b"from the node"
        await KvOutputs(agent).put(
            output_key(node_id="n1", job_id=job_id, attempt=1, rank=0, stream="stdout"), b"the node"
        )
        await by_node.finish(job_id, "n1", written=13)
        seq = await by_scheduler.close(job_id)
        await agent.close()
        async with session.get(f"/v1/jobs/{job_id}/output?min_seq={seq}") as response:
            assert (await response.read(), response.headers["x-muster-output"]) == (
                b"the node",
                "tail",
            )
            assert response.headers["x-muster-offset"] == "5"
        await scheduler.close()
        await quota.close()


async def test_snapshots_are_kept_in_the_bucket_by_the_gateway_s_own_key(
    servers: Servers, tmp_path: Path
) -> None:
    async with process(servers, tmp_path):
        client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
        store = NatsObjects(client)
        assert await store.get("cluster") is None
        await store.delete("cluster")
        big = b"x" * (3 << 20)
        await store.put("cluster", big)
        await store.put("cluster", b"later")
        assert await store.get("cluster") == b"later"
        await store.put("cluster", big)
        assert await store.get("cluster") == big
        await store.delete("cluster")
        assert await store.get("cluster") is None
        cluster, history = snapshots.Cluster(seq=7), snapshots.History()
        await snapshots.Snapshots(store, 0).save(snapshots.encode(cluster, history))
        assert await snapshots.load(store) == (cluster, history)
        assert 0.0 <= await filled_part(client) < 0.1
        await client.close()


async def test_a_port_in_use_is_one_line_of_error(servers: Servers, tmp_path: Path) -> None:
    async with process(servers, tmp_path) as (session, _):
        port = session._base_url.port if session._base_url else 0
        settings = Settings(
            nats=",".join(servers.urls),
            nkey_seed_file=str(seed_file(servers.keys, "gateway-a")),
            gateway_port=int(port or 0),
        )
        with pytest.raises(Unavailable, match="is the port taken"):
            await main(settings, asyncio.Event())
