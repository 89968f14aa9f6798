"""A whole cluster on three nats-servers whose leader of the log dies, freezes, and loses its disk.

Meanwhile jobs run, requests to a model are sent, and jobs are submitted.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from nats.errors import Error as NatsError

from bench.cluster import Cluster, client, running, submit
from libs.common import subjects
from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import Client, connect
from libs.embedded import identity, servers
from libs.embedded.living import die_with_parent
from tests.tidy import ROOT

pytestmark = pytest.mark.drill

COUNT = 3
LEASE_S = Settings().lease_ms / 1_000
BOUND_S = Settings().record_ms / 1_000 + 5
READY_S = 60.0
CURRENT_S = 60.0
PAUSE_S = 0.25
MODEL = "small"
SERVER = [sys.executable, str(ROOT / "examples" / "model_server.py"), "--port", "{port}"]


class Load:
    """What clients saw: answers of the model, of submissions, and the longest submission."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.inferences: Counter[int] = Counter()
        self.submissions: Counter[int] = Counter()
        self.acknowledged: list[str] = []
        self.without_retry_after = 0
        self.longest_s = 0.0

    async def infer(self) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        while True:
            async with self.session.post("/v1/chat/completions", json=body) as answer:
                await answer.read()
                self.inferences[answer.status] += 1
            await asyncio.sleep(PAUSE_S)

    async def submit(self) -> None:
        number = 0
        while True:
            number += 1
            body = {"command": ["true"], "name": f"n{number}", "gpus": 0, "cpus": 1}
            began = time.monotonic()
            async with self.session.post("/v1/jobs", json=body) as answer:
                told = await answer.json()
                self.submissions[answer.status] += 1
                if answer.status == 201:
                    self.acknowledged.append(told["id"])
                elif "Retry-After" not in answer.headers:
                    self.without_retry_after += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)


class Log:
    """The three servers of a cluster."""

    def __init__(self, cluster: Cluster, nats: Client) -> None:
        self.cluster = cluster
        self.nats = nats

    async def current(self) -> set[str]:
        """Return the names of the servers that hold the whole log."""
        try:
            info = (await self.nats.jetstream(timeout=2).stream_info(subjects.STREAM)).cluster
        except (NatsError, TimeoutError, OSError):
            return set()
        assert info is not None
        return {str(info.leader)} | {
            str(peer.name) for peer in info.replicas or [] if peer.current and not peer.offline
        }

    async def whole(self) -> str:
        """Wait until all servers hold the whole log, and return the leader's name."""
        async with asyncio.timeout(CURRENT_S):
            while len(await self.current()) < COUNT:
                await asyncio.sleep(PAUSE_S)
        info = (await self.nats.jetstream(timeout=5).stream_info(subjects.STREAM)).cluster
        assert info is not None
        return str(info.leader)

    def process(self, name: str) -> "subprocess.Popen[bytes]":
        return self.cluster.processes[f"nats-{int(name.removeprefix('nats-')) - 1}"]

    def kill(self, name: str) -> None:
        self.process(name).kill()
        self.process(name).wait()

    def start(self, name: str) -> None:
        config = servers.config_file(self.cluster.state, name)
        key = f"nats-{int(name.removeprefix('nats-')) - 1}"
        self.cluster.processes[key] = subprocess.Popen(
            [servers.binary(), "-c", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )


@asynccontextmanager
async def log_of(cluster: Cluster) -> AsyncIterator[Log]:
    state = cluster.state
    ports = [
        json.loads(servers.config_file(state, f"nats-{number + 1}").read_text())["port"]
        for number in range(COUNT)
    ]
    seed = identity.seed_file(state / "keys", "scheduler").read_bytes().strip()
    nats = await connect([f"nats://127.0.0.1:{port}" for port in ports], "scheduler", seed)
    try:
        yield Log(cluster, nats)
    finally:
        await nats.close()


async def model_is_ready(session: aiohttp.ClientSession) -> None:
    body = {"name": MODEL, "command": [*SERVER, "--model", MODEL], "startup_timeout_s": "60s"}
    async with session.post("/v1/deployments", json=body) as answer:
        assert answer.status == 201, await answer.text()
    async with asyncio.timeout(READY_S):
        while True:
            async with session.get(f"/v1/deployments/{MODEL}") as answer:
                if (await answer.json())["state"] == "ready":
                    return
            await asyncio.sleep(PAUSE_S)


@pytest.mark.timeout(400)
async def test_jobs_and_inference_go_on_when_the_leader_of_the_log_dies_freezes_or_is_emptied() -> (
    None
):
    with running(replicas=COUNT, nodes=2, gpus=2, audit=False) as cluster:
        async with client(cluster) as session, log_of(cluster) as log:
            jobs = [await submit(session, "sleep", "900", gpus=1) for _ in range(2)]
            await model_is_ready(session)
            load = Load(session)
            clients = [asyncio.create_task(load.infer()), asyncio.create_task(load.submit())]

            leader = await log.whole()
            log.kill(leader)
            await asyncio.sleep(LEASE_S + 4)
            log.start(leader)

            leader = await log.whole()
            os.kill(log.process(leader).pid, signal.SIGSTOP)
            await asyncio.sleep(LEASE_S + 4)
            os.kill(log.process(leader).pid, signal.SIGCONT)

            leader = await log.whole()
            log.kill(leader)
            shutil.rmtree(cluster.state / leader)
            log.start(leader)
            await asyncio.sleep(LEASE_S + 4)
            await log.whole()

            for each in clients:
                assert not each.done(), each.exception()
                each.cancel()
            await asyncio.wait(clients)
            assert set(load.inferences) == {200}, load.inferences
            assert set(load.submissions) <= {201, 503}, load.submissions
            assert not load.without_retry_after and load.longest_s < BOUND_S
            for job in jobs:
                async with session.get(f"/v1/jobs/{job}") as answer:
                    found = await answer.json()
                assert (found["state"], found["attempt"]) == ("running", 1), found
            for job in load.acknowledged:
                async with session.get(f"/v1/jobs/{job}") as answer:
                    assert answer.status == 200, job
