"""A gateway whose log stores nothing for longer than its patience: requests to models go on, and
the commit under way is stored when the log's server is back. If the log stores only the commits of
others, the gateway is not ready, and ends.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import nats
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.model import JobId
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.snapshot_store import MemorySnapshots
from libs.common.transport.writer import Writer
from libs.embedded import servers
from services.api_gateway.access.auth import hash_key
from services.api_gateway.gateway import Gateway
from services.api_gateway.openai.catalogue import Listed
from services.api_gateway.service import serve
from tests.contract.conftest import STREAM_BYTES
from tests.integration.gateway_world import KEY
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, MESSAGES, served
from tests.natsserver import NatsServer

PATIENCE_S, RECORD_S = 1.0, 0.5
READY_S = 30.0
# A stream of this many chunks lasts for several times the patience.
CHUNKS, GAP_S = 60, 0.1
HEAD = {"authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def world(
    folder: Path,
) -> AsyncIterator[tuple[NatsServer, "asyncio.Task[None]", aiohttp.ClientSession]]:
    """A real server of the log, and a gateway with one model."""
    server = NatsServer(folder)
    server.start()
    client = await connect([server.url], "gateway-a")
    await create_stream(client, 1, STREAM_BYTES)
    (folder / "keys").write_text(hash_key(KEY) + "\n")
    settings = Settings(
        nats=server.url,
        api_keys_file=str(folder / "keys"),
        log_append_ms=int(PATIENCE_S * 1_000),
        record_ms=int(RECORD_S * 1_000),
    )
    gateway = Gateway(
        log=JetStreamLog(client),
        bus=NatsBus(client),
        clock=SystemClock(),
        settings=settings,
        outputs=MemoryOutputs(),
        store=MemorySnapshots(),
    )
    gateway.access.pause_s = 3_600.0  # the only commit is that of the test
    (port,), stop = servers.free_ports(1), asyncio.Event()
    async with running() as replica:
        gateway.models = Listed(served(replica.port))
        serving = asyncio.create_task(serve(gateway, "127.0.0.1", port, stop))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=HEAD) as session:
            async with asyncio.timeout(READY_S):
                while not gateway.caught_up:
                    await asyncio.sleep(0.02)
            yield server, serving, session
        stop.set()
        await asyncio.wait((serving,))
    await client.close()
    server.kill()


async def job_names(session: aiohttp.ClientSession) -> list[str]:
    async with session.get("/v1/jobs?all=true") as answer:
        return [job["name"] for job in (await answer.json())["jobs"]]


async def test_gateway_serves_models_while_the_log_stores_nothing_and_then_records(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (server, serving, session):
        body = {"model": "m", "messages": MESSAGES, "stream": True}
        slow = {**body, "x_chunks": CHUNKS, "x_gap_s": GAP_S, "x_finish": 1}
        async with session.post(CHAT, json=slow) as stream:
            assert stream.status == 200
            server.kill()
            job = {"command": ["true"], "name": "under-way"}
            async with session.post("/v1/jobs", json=job) as answer:
                assert answer.status == 503
                assert "It is unknown whether" in (await answer.json())["detail"]
            await asyncio.sleep(2 * PATIENCE_S)
            async with session.post(CHAT, json=body) as answer:
                assert answer.status == 200
            assert (await stream.text()).endswith("data: [DONE]\n\n")
        assert not serving.done()

        server.start()
        async with asyncio.timeout(READY_S):
            while await job_names(session) != ["under-way"]:
                await asyncio.sleep(0.1)


def forbid(server: NatsServer, subject: str) -> None:
    """Start the server again, so that no client without a password may publish on this subject."""
    config = json.loads(server.config.read_text())
    permissions = {"publish": {"deny": [subject]}}
    users = [
        {"user": "other", "password": "other"},
        {"user": "gateway", "password": "gateway", "permissions": permissions},
    ]
    config |= {"authorization": {"users": users}, "no_auth_user": "gateway"}
    server.config.write_text(json.dumps(config))
    server.kill()
    server.start()


async def commit_steadily(server: NatsServer) -> None:
    """Commit as another service, until cancelled."""
    client = await nats.connect(server.url, user="other", password="other")
    try:
        writer = Writer(JetStreamLog(client), SystemClock(), subjects.QUOTA, lambda: 0)
        await writer.attach()
        while True:
            await writer.commit([f.JobAdmitted(job_id=JobId("j"))])
            await asyncio.sleep(0.1)
    finally:
        await client.close()


async def test_gateway_ends_if_the_log_stores_only_the_commits_of_others(tmp_path: Path) -> None:
    async with world(tmp_path) as (server, serving, session):
        forbid(server, subjects.gateway("a"))
        async with asyncio.timeout(READY_S):
            others = asyncio.create_task(commit_steadily(server))
            async with session.post("/v1/jobs", json={"command": ["true"]}) as answer:
                assert answer.status == 503
            await asyncio.wait((serving,))
        others.cancel()
        with pytest.raises(Unavailable, match="although it stores those of others"):
            serving.result()


async def test_gateway_whose_commit_is_late_is_not_ready(tmp_path: Path) -> None:
    """Also if no other service commits anything."""
    async with world(tmp_path) as (server, serving, session):
        assert await writer_check(session) == (200, True)
        forbid(server, subjects.gateway("a"))
        async with session.post("/v1/jobs", json={"command": ["true"]}) as answer:
            assert answer.status == 503
        async with asyncio.timeout(READY_S):
            while await writer_check(session) != (503, False):
                await asyncio.sleep(0.1)
        assert not serving.done()


async def writer_check(session: aiohttp.ClientSession) -> tuple[int, bool]:
    """Return the status of /readyz, and whether its check of the writer is well."""
    async with session.get("/readyz") as answer:
        checks = (await answer.json())["checks"]
    (found,) = (check["ok"] for check in checks if check["check"] == "writer")
    return answer.status, found
