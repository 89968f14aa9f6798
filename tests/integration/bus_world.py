"""Three real nats-servers, a real gateway over them, and the command `muster` as a child."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from libs.common.settings.settings import Settings
from libs.common.transport.kv_nats import create_buckets
from libs.common.transport.log_jetstream import create_stream
from libs.compose import containers as c
from libs.embedded import identity, servers
from services.api_gateway.access.auth import hash_key
from services.api_gateway.service import main
from tests.integration.servers_world import LOG_BYTES, Group, running

KEY = "k"
READY_S = 60.0
DONE_S = 150.0
LOOK_S = 0.3


class World:
    """Three servers and a gateway. `submitted` are the names of jobs that were acknowledged."""

    def __init__(self, group: Group, url: str, session: aiohttp.ClientSession) -> None:
        self.group = group
        self.url = url
        self.session = session
        self.submitted: list[str] = []
        self.refused: list[int] = []

    async def bus(self) -> dict[str, Any]:
        async with self.session.get("/v1/bus") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def healthy(self, count: int = len(c.SERVERS)) -> dict[str, Any]:
        """Wait until so many servers are healthy."""
        async with asyncio.timeout(READY_S):
            while True:
                found = await self.bus()
                if not found["faults"] and len(found["servers"]) == count:
                    return found
                await asyncio.sleep(LOOK_S)

    async def order(self, path: str) -> tuple[int, str]:
        async with self.session.post(f"/v1/bus/{path}") as answer:
            return answer.status, str(await answer.json())

    async def submit(self) -> None:
        """Submit jobs for ever."""
        number = 0
        while True:
            number += 1
            body = {"command": ["true"], "name": f"job-{number}"}
            async with self.session.post("/v1/jobs", json=body) as answer:
                if answer.status == 201:
                    self.submitted.append(f"job-{number}")
                else:
                    self.refused.append(answer.status)
            await asyncio.sleep(LOOK_S)

    async def recorded(self) -> set[str]:
        async with self.session.get("/v1/jobs?all=true&limit=1000") as answer:
            return {job["name"] for job in (await answer.json())["jobs"]}

    async def muster(self, *words: str) -> tuple[int, str]:
        """Run the command while jobs are submitted."""
        line = [sys.executable, "-c", "from libs.cli.main import main; main()", *words]
        told = {**os.environ, "MUSTER_URL": self.url, "MUSTER_API_KEY": KEY}
        submitting = asyncio.create_task(self.submit())
        process = await asyncio.create_subprocess_exec(
            *line, env=told, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(DONE_S):
            said, _ = await process.communicate()
        submitting.cancel()
        await asyncio.wait((submitting,))
        return process.returncode or 0, said.decode()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    group = Group(folder)
    async with running(group):
        scheduler = await group.connect("scheduler")
        settings = Settings(stream_replicas=len(c.SERVERS), stream_bytes=LOG_BYTES)
        await create_stream(scheduler, len(c.SERVERS), LOG_BYTES)
        await create_buckets(scheduler, settings)
        (folder / "api-keys").write_text(hash_key(KEY) + "\n")
        port = servers.free_ports(1)[0]
        stop = asyncio.Event()
        gateway = asyncio.create_task(
            main(
                Settings(
                    nats=",".join(group.urls),
                    nats_ca_file=str(folder / "authority.pem"),
                    nkey_seed_file=str(identity.seed_file(group.keys, "gateway-a")),
                    stream_replicas=len(c.SERVERS),
                    gateway_port=port,
                    api_keys_file=str(folder / "api-keys"),
                ),
                stop,
            )
        )
        url = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(url, headers=headers) as session:
            await _ready(session)
            yield World(group, url, session)
        stop.set()
        await gateway
        await scheduler.close()


async def _ready(session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            try:
                async with session.get("/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(LOOK_S)
