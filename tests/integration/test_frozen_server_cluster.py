"""A whole cluster on three nats-servers; each is frozen for longer than a lease in turn."""

import asyncio
import os
import signal

import pytest

from bench.cluster import client, running, submit
from libs.common.settings.settings import Settings

pytestmark = pytest.mark.drill

FROZEN_S = Settings().lease_ms / 1_000 + 4
# Between two frozen servers, the log's replicas must be current again.
CURRENT_S = 8.0
NODES = 3


@pytest.mark.timeout(240)
async def test_frozen_nats_server_ends_no_job_of_a_healthy_node() -> None:
    with running(replicas=3, nodes=NODES, gpus=1, audit=False) as cluster:
        async with client(cluster) as session:
            jobs = [await submit(session, "sleep", "600", gpus=1) for _ in range(NODES)]
            await asyncio.sleep(2)
            for number in range(3):
                frozen = cluster.processes[f"nats-{number}"]
                os.kill(frozen.pid, signal.SIGSTOP)
                await asyncio.sleep(FROZEN_S)
                os.kill(frozen.pid, signal.SIGCONT)
                await asyncio.sleep(CURRENT_S)
                for job in jobs:
                    async with session.get(f"/v1/jobs/{job}") as answer:
                        found = await answer.json()
                    assert (found["state"], found["attempt"]) == ("running", 1), (number, found)
