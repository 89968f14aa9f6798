"""Two gateways on one bus tell each other what tenants used, so a tenant at both gets no more turns
than one at a single gateway. Real replicas over HTTP.
"""

import asyncio
from pathlib import Path

import pytest

from libs.common.messages.model_turns import ModelTurns, encode
from libs.common.transport.bus_memory import MemoryBus
from services.api_gateway.openai import turn_exchange
from services.api_gateway.openai.catalogue import Listed
from services.api_gateway.serving.fairness import SCALE, Flow
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, served
from tests.integration.test_openai_failures import until
from tests.integration.test_openai_queues import ONE, blocked, body, queue_of, send, waiting

OWN = Flow(0, "default")


def counter(world: World) -> int:
    return queue_of(world).rules.fairness.counter(OWN)


async def test_gateways_hear_each_other_s_charges_and_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_exchange, "EVERY_S", 0.02)
    bus = MemoryBus()
    async with (
        gateway_world(tmp_path, bus=bus, instance="a", **ONE) as first,
        gateway_world(tmp_path, bus=bus, instance="b", **ONE) as second,
        running() as replica,
    ):
        for world in (first, second):
            world.gateway.models = Listed(served(replica.port))
        await first.ask("POST", CHAT, json=body(0, delay_s=0))
        paid = counter(first)
        assert paid == (5 + 2 * 7) * SCALE // 100, "the tenant's weight is 100"
        await until(lambda: counter(second) == paid)
        await second.ask("POST", CHAT, json=body(1, delay_s=0))
        await until(lambda: counter(first) == counter(second) == 2 * paid)
        fairness = queue_of(second).rules.fairness
        async with blocked(first):
            call = await send(first, 2)
            assert waiting(first) == 1
            await until(lambda: fairness.is_shared)
        await call
        await until(lambda: not fairness.is_shared)


async def test_a_message_that_cannot_be_read_or_is_of_no_model_changes_nothing(
    tmp_path: Path,
) -> None:
    bus = MemoryBus()
    async with gateway_world(tmp_path, bus=bus) as world:
        for message in (b"no message", encode(ModelTurns("gone", []))):
            await bus.publish("turns.other", message)
        await asyncio.sleep(0.05)
        assert world.gateway.queues.queues == {} and not world.running.done()
