"""`muster bus` on three real nats-servers: a rolling restart and an exchanged disk lose nothing.

No server is stopped while another one is away.
"""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from libs.common import subjects
from libs.common.messages.server_messages import REPLACE, OrderAnswer
from libs.common.transport.bus_nats import NatsBus
from libs.compose import containers as c
from libs.compose import replaced
from services.api_gateway.agents.log_servers import REPLACE_S
from tests.integration.bus_world import LOOK_S, world

pytestmark = pytest.mark.drill

# Several questions of the server to the others.
DELETED_S = 10 * replaced.LOOK_S


async def test_servers_are_restarted_one_after_another_and_nothing_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        shown = await found.healthy()
        leaders = [
            server["name"]
            for server in shown["servers"]
            for stream in server["streams"]
            if stream["stream"] == "FACTS" and stream["leads"]
        ]
        assert len(leaders) == 1
        code, said = await found.muster("bus", "roll")
        assert code == 0, said
        assert "all servers were restarted" in said
        assert said.count(": restart\n") == said.count(": healthy\n") == 3, said
        assert [found.group.lives[name] for name in c.SERVERS] == [2, 2, 2]
        assert set(found.submitted) <= await found.recorded()
        assert len(found.submitted) > 10 and not found.refused


async def test_exchanged_disk_is_filled_by_the_others(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        await found.healthy()
        code, said = await found.muster("bus", "replace", "nats-3")
        assert code == 0, said
        assert [found.group.lives[name] for name in c.SERVERS] == [1, 1, 2]
        assert "the old store is kept in" in found.group.said("nats-3")
        assert set(found.submitted) <= await found.recorded()
        shown = await found.healthy()
        assert {server["streams"][0]["stream"] for server in shown["servers"]} >= {"FACTS"}
        async with asyncio.timeout(DELETED_S):
            while (found.group.store("nats-3") / replaced.ASIDE).exists():
                await asyncio.sleep(LOOK_S)
        assert "was deleted: the server holds the whole log" in found.group.said("nats-3")


async def test_no_server_is_stopped_while_another_one_is_away(tmp_path: Path) -> None:
    async with world(tmp_path) as found:
        await found.healthy()
        os.kill(found.group.nats_server("nats-1"), signal.SIGSTOP)
        await asyncio.sleep(1)
        status, why = await found.order("nats-2/restart")
        assert status == 409 and "nats-1" in why, why
        status, why = await found.order("nats-2/replace")
        assert status == 409 and "nats-1" in why, why
        os.kill(found.group.nats_server("nats-1"), signal.SIGCONT)
        assert (await found.order("nats-9/restart"))[0] == 404


async def test_orders_of_a_gateway_to_replace_all_servers_at_once_lose_nothing(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as found:
        await found.healthy()
        assert (await found.muster("bus"))[0] == 0
        gateway = await found.group.connect("gateway-a")
        bus = NatsBus(gateway)
        answers = await asyncio.gather(
            *(bus.request(subjects.ask_server(name, REPLACE), b"", REPLACE_S) for name in c.SERVERS)
        )
        await gateway.close()
        refused = [msgspec.msgpack.decode(each, type=OrderAnswer).refused for each in answers]
        assert sum(not why for why in refused) <= 1, refused
        await found.healthy()
        assert found.submitted and set(found.submitted) <= await found.recorded()
