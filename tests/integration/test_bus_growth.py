"""`muster bus add`: two real nats-servers join three, hold the whole log, and two may fail then."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from libs.compose import containers as c
from tests.integration.bus_world import world

pytestmark = pytest.mark.drill

SUBMITTED_S = 60.0


@pytest.mark.timeout(300)
async def test_two_added_servers_hold_the_log_and_any_two_may_fail(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        await found.healthy()
        async with found.session.post("/v1/bus/replicas/5") as answer:
            assert answer.status == 409 and "add more first" in str(await answer.json())
        async with found.session.post("/v1/bus/replicas/4") as answer:
            assert answer.status == 422
        for name in c.MORE_SERVERS:
            found.group.start(name)
        code, said = await found.muster("bus", "add")
        assert code == 0, said
        shown = await found.healthy(len(c.ALL_SERVERS))
        for server in shown["servers"]:
            assert {stream["stream"] for stream in server["streams"]} >= {"FACTS", "KV_LEADER"}
        assert found.submitted and not found.refused
        before = set(found.submitted)

        for name in ("nats-4", "nats-2"):
            os.kill(found.group.nats_server(name), signal.SIGSTOP)
        submitting = asyncio.create_task(found.submit())
        async with asyncio.timeout(SUBMITTED_S):
            while set(found.submitted) <= before:
                await asyncio.sleep(1)
        submitting.cancel()
        await asyncio.wait((submitting,))
        assert set(found.submitted) | before <= await found.recorded()
