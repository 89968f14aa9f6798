"""Requests wait in the gateway until a replica has room: their order, the tenants' turns, what is
refused, and which replica they get. Real replicas over HTTP, one request at a time where a test
needs a queue.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model_spec import ModelSpec
from services.api_gateway.openai import model_queue
from services.api_gateway.openai.call import Call
from services.api_gateway.openai.catalogue import Listed
from services.api_gateway.openai.request import read
from services.api_gateway.openai.routes import COMPLETIONS
from tests.integration.gateway_world import World
from tests.integration.openai_replica import Replica, running
from tests.integration.openai_world import CHAT, error_of, served
from tests.integration.test_openai_failures import replicas_world, until

ONE = {"model_room_requests": 1}
# A text of about 500 tokens.
LONG = "The quick brown fox jumps over the lazy dog. " * 45


def body(number: int, text: str = "hi", delay_s: float = 0.02, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "x_id": number, "x_delay_s": delay_s, **fields}


def queue_of(world: World) -> model_queue.ModelQueue:
    return world.gateway.queues.of("m")


def waiting(world: World) -> int:
    return queue_of(world).rules.waiting_requests


def numbers(replica: Replica) -> list[int]:
    return [json.loads(each)["x_id"] for each in replica.bodies]


async def send(world: World, number: int, **options: Any) -> "asyncio.Task[Any]":
    """Send a request, and return when it is at a replica or waits."""
    before = sum(world.gateway.queues.open.counts.values()) + waiting(world)
    headers = options.pop("headers", {})
    call = asyncio.create_task(
        world.ask("POST", CHAT, json=body(number, **options), headers=headers)
    )
    await until(
        lambda: (
            call.done() or sum(world.gateway.queues.open.counts.values()) + waiting(world) > before
        )
    )
    return call


@asynccontextmanager
async def blocked(world: World, delay_s: float = 30) -> AsyncIterator["asyncio.Task[Any]"]:
    """Keep the only place of a model's replica taken, until the block ends."""
    first = await send(world, -1, delay_s=delay_s)
    assert world.gateway.queues.open.counts
    try:
        yield first
    finally:
        first.cancel()


@asynccontextmanager
async def tenant(world: World, name: str, weight: int = 100) -> AsyncIterator[World]:
    """Use the gateway as an operator of a new tenant, who may call all models."""
    await world.ask("PUT", f"/v1/tenants/{name}", 201, json={"weight": weight})
    async with world.as_("operator", "ann", name) as entered:
        yield entered


class TestTurns:
    async def test_requests_of_one_tenant_keep_their_order(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, **ONE) as (world, [replica]):
            async with blocked(world):
                calls = [await send(world, number) for number in range(8)]
                assert waiting(world) == 8
            await asyncio.gather(*calls)
            assert numbers(replica) == [-1, *range(8)]
            assert world.gateway.queues.open.counts == {}

    async def test_a_tenant_that_floods_leaves_another_its_turns(self, tmp_path: Path) -> None:
        async with (
            replicas_world(tmp_path, 1, **ONE) as (world, [replica]),
            tenant(world, "greedy") as greedy,
            tenant(world, "modest") as modest,
        ):
            async with blocked(world):
                calls = [await send(greedy, number) for number in range(20)]
                calls += [await send(modest, number) for number in range(100, 103)]
            await asyncio.gather(*calls)
            order = numbers(replica)[1:]
            assert [each for each in order if each < 100] == list(range(20))
            assert [each for each in order if each >= 100] == [100, 101, 102]
            assert order.index(102) <= 7

    async def test_tenants_get_turns_by_their_weight(self, tmp_path: Path) -> None:
        async with (
            replicas_world(tmp_path, 1, **ONE) as (world, [replica]),
            tenant(world, "heavy", 300) as heavy,
            tenant(world, "light") as light,
        ):
            async with blocked(world):
                calls = [await send(heavy, number) for number in range(12)]
                calls += [await send(light, number) for number in range(100, 112)]
            await asyncio.gather(*calls)
            first = numbers(replica)[1:13]
            assert 8 <= sum(each < 100 for each in first) <= 10

    async def test_a_request_of_low_priority_goes_last(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, **ONE) as (world, [replica]):
            async with blocked(world):
                low = {"x-muster-priority": "low"}
                calls = [await send(world, 0, headers=low), await send(world, 1)]
            await asyncio.gather(*calls)
            assert numbers(replica) == [-1, 1, 0]
            async with world.session.post(
                world.url + CHAT, json=body(2), headers={"x-muster-priority": "high"}
            ) as response:
                assert "use normal or low" in (await error_of(response, 400))["message"]


class TestRefusals:
    async def test_a_tenant_beyond_its_bound_gets_429_and_other_tenants_still_wait(
        self, tmp_path: Path
    ) -> None:
        async with (
            replicas_world(tmp_path, 1, model_tenant_waiting_tokens=600, **ONE) as (world, [_]),
            tenant(world, "modest") as modest,
        ):
            async with blocked(world):
                calls = [await send(world, 0, text=LONG)]
                async with world.session.post(world.url + CHAT, json=body(1, LONG)) as response:
                    error = await error_of(response, 429)
                    assert (error["type"], error["code"]) == ("tokens", "queue_full")
                    assert "MUSTER_MODEL_TENANT_WAITING_TOKENS" in error["message"]
                    tokens = queue_of(world).rules.waiting_tokens
                    assert 1 <= int(response.headers["retry-after"]) <= tokens
                calls.append(await send(modest, 2, text=LONG))
                assert waiting(world) == 2
            await asyncio.gather(*calls)

    async def test_one_tenant_s_waiting_requests_hold_a_quarter_of_the_open_ones(
        self, tmp_path: Path
    ) -> None:
        async with (
            replicas_world(tmp_path, 1, model_requests_max=8, **ONE) as (world, [_]),
            tenant(world, "modest") as modest,
        ):
            async with blocked(world):
                calls = [await send(world, number) for number in range(2)]
                error = (await world.ask("POST", CHAT, 429, json=body(2)))["error"]
                assert (error["type"], error["code"]) == ("requests", "queue_full")
                assert "2 requests of tenant default wait" in error["message"]
                assert "MUSTER_MODEL_REQUESTS_MAX" in error["message"]
                calls.append(await send(modest, 3))
            await asyncio.gather(*calls)

    async def test_a_full_model_is_a_429(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, model_waiting_tokens=600, **ONE) as (world, [_]):
            async with blocked(world):
                call = await send(world, 0, text=LONG)
                answer = await world.ask("POST", CHAT, 429, json=body(1, LONG))
                assert "MUSTER_MODEL_WAITING_TOKENS" in answer["error"]["message"]
            await call

    async def test_a_request_whose_time_is_over_is_a_503_and_leaves_the_queue(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 1, model_wait_ms=200, **ONE) as (world, [replica]):
            async with (
                blocked(world),
                world.session.post(world.url + CHAT, json=body(1)) as response,
            ):
                assert (await error_of(response, 503))["code"] == "overloaded"
                assert int(response.headers["retry-after"]) >= 1
                assert waiting(world) == 0
            assert numbers(replica) == [-1]

    async def test_a_wait_longer_than_a_replica_s_patience_is_no_timeout(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 1, model_answer_ms=400, **ONE) as (world, [_]):
            first = await send(world, 0, delay_s=0.3)
            second = await send(world, 1, delay_s=0.3)
            third = await send(world, 2, delay_s=0.3)
            await asyncio.gather(first, second, third)

    async def test_a_client_that_hangs_up_frees_its_place(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, model_tenant_waiting_tokens=600, **ONE) as (
            world,
            [replica],
        ):
            async with blocked(world):
                gone = await send(world, 0, text=LONG)
                await world.ask("POST", CHAT, 429, json=body(1, LONG))
                gone.cancel()
                await until(lambda: waiting(world) == 0)
                call = await send(world, 2, text=LONG)
                assert waiting(world) == 1
            await call
            assert numbers(replica) == [-1, 2]

    async def test_a_model_that_is_undeployed_ends_the_wait(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, **ONE) as (world, [_]):
            async with blocked(world):
                call = asyncio.create_task(world.ask("POST", CHAT, 503, json=body(0)))
                await until(lambda: waiting(world) == 1)
                world.gateway.models = Listed()
                assert "was undeployed" in (await call)["error"]["message"]
            await until(lambda: world.gateway.queues.open.counts == {})
            world.gateway.queues.refresh()
            assert world.gateway.queues.get("m") is None

    async def test_a_gateway_that_stops_refuses_what_waits_and_lets_the_rest_end(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 1, **ONE) as (world, [replica]):
            first = await send(world, -1, delay_s=0.5)
            call = asyncio.create_task(world.ask("POST", CHAT, 503, json=body(0)))
            await until(lambda: waiting(world) == 1)
            world.gateway.queues.stop()
            for answer in (await call, await world.ask("POST", CHAT, 503, json=body(1))):
                assert answer["error"]["code"] == "gateway_stopping"
            assert "choices" in await first
            assert numbers(replica) == [-1]

    async def test_a_prompt_is_not_read_while_no_replica_is_ready(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with replicas_world(tmp_path, 1) as (world, [_]):
            world.gateway.models = Listed(served())
            monkeypatch.delattr(model_queue, "chain")
            answer = await world.ask("POST", CHAT, 503, json=body(0))
            assert answer["error"]["code"] == "model_not_ready"


class TestRoom:
    async def test_a_stream_s_prompt_counts_until_its_first_event(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, model_room_tokens=600) as (world, [replica]):
            first = asyncio.create_task(
                world.session.post(
                    world.url + CHAT, json=body(0, LONG, 0.4, stream=True, x_gap_s=1, x_finish=1)
                )
            )
            await until(lambda: len(replica.bodies) == 1)
            second = await send(world, 1, text="B" + LONG)
            assert (waiting(world), len(replica.bodies)) == (1, 1)
            small = await send(world, 2)
            assert waiting(world) == 2, "the order of a tenant is kept"
            await asyncio.gather(second, small)
            response = await first
            assert not response.content.at_eof(), "it did not wait for the stream's end"
            response.close()

    async def test_an_answer_without_a_stream_counts_for_the_expected_time(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 1, model_room_tokens=600) as (world, [replica]):
            first = await send(world, 0, text=LONG, delay_s=30)
            second = asyncio.create_task(world.ask("POST", CHAT, json=body(1, "B" + LONG)))
            await until(lambda: len(replica.bodies) == 2)
            await second
            first.cancel()

    async def test_without_a_bound_all_go_at_once(self, tmp_path: Path) -> None:
        unbounded = {"model_room_tokens": 0, "model_room_requests": 0}
        async with replicas_world(tmp_path, 1, **unbounded) as (world, [replica]):
            calls = [
                asyncio.create_task(
                    world.ask("POST", CHAT, json=body(number, LONG, 0.3, max_tokens=number))
                )
                for number in range(20)
            ]
            await until(lambda: len(replica.bodies) == 20)
            assert waiting(world) == 0
            await asyncio.gather(*calls)

    async def test_a_replica_that_becomes_ready_gets_what_waits(self, tmp_path: Path) -> None:
        async with (
            replicas_world(tmp_path, 1, **ONE) as (world, [replica]),
            running() as other,
            blocked(world),
        ):
            call = await send(world, 0)
            world.gateway.models = Listed(served(replica.port, other.port))
            await call
            assert numbers(other) == [0]


async def test_images_count_only_in_the_messages_of_a_chat(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
    fields = {"model": "m", "messages": [{"role": "user", "content": [image]}]}
    async with replicas_world(tmp_path, 1) as (world, [_]):
        asked = call_of(COMPLETIONS, {**fields, "prompt": ["image_url"] * 100})
        request = queue_of(world).request(asked, "default")
        assert request.size == len(asked.fields.prompt)
        assert request.ticket.prompt.tokens == request.size // 4
        chat = queue_of(world).request(call_of(CHAT, fields), "default")
        assert chat.ticket.prompt.tokens < 10_000


def call_of(path: str, fields: dict[str, Any]) -> Call:
    sent = json.dumps(fields).encode()
    return Call(
        {"header": {}},
        ignore,
        path=path,
        fields=read(sent),
        model="m",
        body=sent,
        answer_bytes_max=1 << 20,
    )


async def ignore(message: Any) -> None:
    """Send nothing: the call is never answered."""


async def test_tokens_are_charged_as_the_replica_counted_them(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 1) as (world, [_]):
        await world.ask("POST", CHAT, json=body(0, delay_s=0))
        rules = queue_of(world).rules
        assert list(rules.shares.tokens().values()) == [5 + 2 * 7]
        stream = body(1, delay_s=0, stream=True, x_chunks=10, x_finish=1)
        async with world.session.post(world.url + CHAT, json=stream) as response:
            await response.read()
        [used] = rules.shares.tokens().values()
        assert used - 19 in range(20, 60), "without usage: the prompt's estimate, and an event each"
        stream["stream_options"] = {"include_usage": True}
        async with world.session.post(world.url + CHAT, json=stream) as response:
            await response.read()
        assert list(rules.shares.tokens().values()) == [used + 19]
        await world.ask("POST", CHAT, 400, json=body(2, delay_s=0, x_status=400))
        assert list(rules.shares.tokens().values()) == [used + 19], "a refusal costs nothing"


async def test_the_queue_is_measured_and_the_estimate_learns(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 1, **ONE) as (world, [_]):
        async with blocked(world):
            call = await send(world, 0, text=LONG)
            before = queue_of(world).rules.waiting_tokens
            world.gateway.queues.refresh()
            async with world.session.get(world.url + "/metrics") as response:
                text = await response.text()
            assert 'muster_model_requests_waiting{model="m"} 1.0' in text
            assert f'muster_model_waiting_tokens{{model="m"}} {float(before)}' in text
            assert 'muster_model_jain_index{model="m",priority="normal"} 1.0' in text
        await call
        async with blocked(world):
            call = await send(world, 1, text=LONG)
            assert queue_of(world).rules.waiting_tokens < before, "5 tokens were reported"
        await call


async def test_a_model_s_queue_and_shares_are_shown(tmp_path: Path) -> None:
    async with (
        replicas_world(tmp_path, 1, **ONE) as (world, [_]),
        tenant(world, "heavy", 300) as heavy,
    ):
        await world.gateway.record(f.ModelDeployed(name="m", spec=ModelSpec(command=("serve",))))
        path = "/v1/deployments/m"
        shown = (await world.ask("GET", path))["queue"]
        assert shown == {"waiting_requests": 0, "waiting_tokens": 0, "shares": []}
        await world.ask("POST", CHAT, json=body(0, delay_s=0))
        async with blocked(world):
            calls = [await send(heavy, 1, text=LONG)]
            calls.append(await send(heavy, 2, headers={"x-muster-priority": "low"}))
            shown = (await world.ask("GET", path))["queue"]
            rules = queue_of(world).rules
            assert shown["waiting_requests"] == 2
            assert shown["waiting_tokens"] == rules.waiting_tokens
            rows = [tuple(each.values())[:4] for each in shown["shares"]]
            assert rows == [
                ("default", "normal", 100, 0),
                ("heavy", "normal", 300, 1),
                ("heavy", "low", 300, 1),
            ]
            assert [each["percent"] for each in shown["shares"]] == [100, 0, 0]
            async with world.as_("viewer", "vic") as viewer:
                seen = (await viewer.ask("GET", path))["queue"]
            assert seen["waiting_requests"] == 2
            assert [each["tenant"] for each in seen["shares"]] == ["default"]
        await asyncio.gather(*calls)
        assert (await world.ask("GET", "/v1/deployments"))["deployments"][0]["queue"] is None
