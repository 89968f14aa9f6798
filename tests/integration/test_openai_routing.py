"""Which replica a request gets: the one that holds its prompt or its session, and none that failed.

Real replicas over HTTP.
"""

import asyncio
from collections import Counter
from pathlib import Path

from libs.embedded.servers import free_ports
from services.api_gateway.openai.catalogue import Listed
from services.api_gateway.serving.loads import FIRST_RATE
from tests.integration.gateway_world import World
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, served
from tests.integration.test_openai_failures import replicas_world, retries, until
from tests.integration.test_openai_queues import (
    LONG,
    ONE,
    body,
    numbers,
    queue_of,
    send,
    tenant,
)


class TestRouting:
    async def test_a_prompt_goes_where_its_beginning_was_sent(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 2) as (world, replicas):
            for number in range(12):
                prompt = f"Document {number % 3}. " + LONG
                await world.ask("POST", CHAT, json=body(number, prompt + f" Question {number}", 0))
            places = {
                number: place
                for place, replica in enumerate(replicas)
                for number in numbers(replica)
            }
            assert all(places[number] == places[number % 3] for number in range(12))
            assert len(set(places.values())) == 2

    async def test_tenants_do_not_share_what_is_remembered_of_prompts(self, tmp_path: Path) -> None:
        async with (
            replicas_world(tmp_path, 2) as (world, replicas),
            tenant(world, "other") as other,
        ):
            await world.ask("POST", CHAT, json=body(0, LONG, 0))
            index = queue_of(world).rules.router.index
            used = index.used_bytes
            await world.ask("POST", CHAT, json=body(1, LONG, 0))
            assert index.used_bytes == used
            await other.ask("POST", CHAT, json=body(2, LONG, 0))
            assert index.used_bytes == 2 * used
            assert sum(len(replica.bodies) for replica in replicas) == 3

    async def test_a_session_stays_at_its_replica(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 2) as (world, replicas):
            for number in range(20):
                headers = {"x-muster-session": f"s{number % 2}"}
                await world.ask("POST", CHAT, json=body(number, delay_s=0), headers=headers)
            parities = [Counter(number % 2 for number in numbers(each)) for each in replicas]
            assert sorted(map(dict, parities), key=str) == [{0: 10}, {1: 10}]
            assert all("x-muster-session" not in sent for sent in replicas[0].headers)

    async def test_a_replica_that_fails_is_avoided(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, dead=1) as (world, [replica]):
            for number in range(20):
                await world.ask("POST", CHAT, json=body(number, delay_s=0))
            assert len(replica.bodies) == 20
            assert retries(world) == 1

    async def test_it_is_used_again_when_no_other_is_left(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1) as (world, [replica]):
            await world.ask("POST", CHAT, 503, json=body(0, delay_s=0, x_status=503))
            [endpoint] = world.gateway.models.ready("m")
            now_ns = world.gateway.clock.boot_ns()
            assert queue_of(world).rules.router.loads.of(endpoint).is_avoided(now_ns)
            await world.ask("POST", CHAT, json=body(1, delay_s=0))
            assert numbers(replica) == [0, 1]

    async def test_a_replica_that_breaks_a_stream_or_stays_silent_is_avoided(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 1, model_answer_ms=300, model_suspect_ms=1) as (
            world,
            [replica],
        ):
            [endpoint] = world.gateway.models.ready("m")
            load = queue_of(world).rules.router.loads.of(endpoint)
            broken = body(0, delay_s=0, stream=True, x_die="middle")
            async with world.session.post(world.url + CHAT, json=broken) as response:
                assert "upstream_error" in await response.text()
            assert load.avoided == 1
            await world.ask("POST", CHAT, 504, json=body(1, delay_s=30))
            assert load.avoided == 2
            stream = body(2, delay_s=0, stream=True, x_finish=1)
            async with world.session.post(world.url + CHAT, json=stream) as response:
                await response.read()
            assert load.avoided == 0, "it answered in time"
            assert numbers(replica) == [0, 1, 2]

    async def test_a_request_whose_replica_dies_goes_before_those_that_wait(
        self, tmp_path: Path
    ) -> None:
        [port] = free_ports(1)
        async with replicas_world(tmp_path, 1, **ONE) as (world, [replica]):
            async with running(port) as dying:
                world.gateway.models = Listed(served(port))
                first = await send(world, 0, delay_s=0.3)
                later = [await send(world, number) for number in (1, 2)]
                await until(lambda: len(dying.bodies) == 1)
                world.gateway.models = Listed(served(port, replica.port))
                blocker = queue_of(world).rules.router.loads
                taken = blocker.begin(world.gateway.models.ready("m")[1], 1, 0)
            await until(lambda: retries(world) >= 1)
            await asyncio.sleep(0.05)
            blocker.end(taken, 1)
            await asyncio.gather(first, *later)
            assert numbers(replica) == [0, 1, 2]


async def test_a_good_answer_resets_how_long_its_replica_is_avoided(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 1) as (world, [_]):
        await world.ask("POST", CHAT, 502, json=body(0, delay_s=0, x_die="before"))
        loads = queue_of(world).rules.router.loads
        [load] = [loads.of(each) for each in loads.known()]
        assert load.avoided
        await world.ask("POST", CHAT, 400, json=body(1, delay_s=0, x_status=400))
        assert load.avoided
        await world.ask("POST", CHAT, json=body(2, delay_s=0))
        assert not load.avoided


class TestRate:
    async def test_an_error_answer_says_nothing_about_a_replica_s_rate(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 1) as (world, [_]):
            for number in range(3):
                text = f"{number} " + 4 * LONG
                asked = body(number, text, 0, stream=True, x_status=400)
                await world.ask("POST", CHAT, 400, json=asked)
            assert _rate(world) == FIRST_RATE

    async def test_a_comment_is_no_first_token(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1) as (world, [_]):
            asked = body(0, 4 * LONG, 0, stream=True, x_comment_s=0.5, x_finish=1)
            async with world.session.post(world.url + CHAT, json=asked) as response:
                await response.read()
            assert _rate(world) < FIRST_RATE


def _rate(world: World) -> int:
    loads = queue_of(world).rules.router.loads
    [rate] = [loads.of(each).rate for each in loads.known()]
    return rate
