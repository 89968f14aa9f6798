"""Requests of the OpenAI API are metered: reserved before, settled after, and measured by model."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from services.api_gateway.metrics import model_labels
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import USAGE, running
from tests.integration.openai_world import CHAT, Ledger, add_replicas, error_of, model_world
from tests.integration.test_openai_named_models import chat, deployed


class TestMetering:
    async def test_the_used_tokens_are_settled_with_and_without_streaming(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path) as (world, replica):
            world.gateway.meter = ledger = Ledger(1_000)
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "max_tokens": 50}
            ) as response:
                assert response.headers["x-ratelimit-remaining-tokens"] == str(
                    1_000 - ledger.reserved[0]
                )
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "max_tokens": 50, "stream": True}
            ) as response:
                text = await response.text()
            await world.ask("POST", "/v1/embeddings", json={"model": "m", "input": "i"})
            assert ledger.settled == [12, 12, 5] and ledger.left == 1_000 - 29
            assert all(reserved >= 50 for reserved in ledger.reserved[:2])
            assert (
                '"usage"' not in text
                and text.count("data: ") == 4
                and text.endswith("data: [DONE]\n\n")
            )
            assert json.loads(replica.bodies[1])["stream_options"] == {"include_usage": True}

    async def test_a_client_that_requested_usage_gets_it(self, tmp_path: Path) -> None:
        async with model_world(tmp_path) as (world, replica):
            world.gateway.meter = ledger = Ledger(1_000)
            body = json.dumps(
                {
                    "model": "m",
                    "max_tokens": 9,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            ).encode()
            async with world.session.post(world.url + CHAT, data=body) as response:
                assert json.dumps(USAGE) in await response.text()
            assert replica.bodies == [body] and ledger.settled == [12]

    async def test_a_request_without_max_tokens_is_bounded_by_its_reservation(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path, model_output_tokens=77) as (world, replica):
            world.gateway.meter = Ledger(1_000)
            await world.ask("POST", CHAT, json={"model": "m", "x_a": 1})
            assert json.loads(replica.bodies[0]) == {"model": "m", "x_a": 1, "max_tokens": 77}

    async def test_a_request_over_the_limit_is_a_429_and_reaches_no_replica(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path) as (world, replica):
            world.gateway.meter = ledger = Ledger(60)
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "max_tokens": 50}
            ) as response:
                error = await error_of(response, 429)
                assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
                assert (
                    response.headers["retry-after"],
                    response.headers["x-ratelimit-remaining-tokens"],
                ) == ("7", "60")
            assert replica.bodies == [] and ledger.settled == []

    async def test_a_request_that_no_replica_processed_costs_nothing(self, tmp_path: Path) -> None:
        async with model_world(tmp_path) as (world, _):
            world.gateway.meter = ledger = Ledger(1_000)
            await world.ask("POST", CHAT, 503, json={"model": "cold", "max_tokens": 5})
            for status in (400, 500, 503):
                await world.ask(
                    "POST", CHAT, status, json={"model": "m", "max_tokens": 5, "x_status": status}
                )
            assert ledger.settled == [0, 0, 0, 0] and ledger.left == 1_000

    async def test_a_request_that_a_replica_may_have_processed_stays_charged(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path) as (world, _):
            world.gateway.meter = ledger = Ledger(1_000)
            await world.ask(
                "POST", CHAT, 502, json={"model": "m", "max_tokens": 5, "x_die": "before"}
            )
            assert ledger.settled == [None] and ledger.left == 1_000 - ledger.reserved[0]

    async def test_a_stream_whose_client_disconnected_stays_charged_in_full(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path) as (world, _):
            world.gateway.meter = ledger = Ledger(1_000)
            body = {
                "model": "m",
                "max_tokens": 50,
                "stream": True,
                "x_chunks": 100,
                "x_gap_s": 0.05,
            }
            async with world.session.post(world.url + CHAT, json=body) as response:
                await response.content.readany()
                response.close()
            while not ledger.settled:
                await asyncio.sleep(0.01)
            assert ledger.settled == [None] and ledger.left == 1_000 - ledger.reserved[0]

    async def test_a_client_that_got_more_than_it_reserved_pays_for_that(
        self, tmp_path: Path
    ) -> None:
        async with model_world(tmp_path) as (world, _):
            world.gateway.meter = ledger = Ledger(1_000)
            body = {
                "model": "m",
                "max_tokens": 1,
                "stream": True,
                "x_chunks": 1_000,
                "x_gap_s": 0.0005,
            }
            async with world.session.post(world.url + CHAT, json=body) as response:
                seen = b""
                while seen.count(b"data: ") < 300:
                    seen += await response.content.readany()
                response.close()
            while not ledger.settled:
                await asyncio.sleep(0.01)
            assert ledger.settled[0] is not None
            assert ledger.settled[0] >= 300 > ledger.reserved[0]

    async def test_a_limit_that_the_server_ignores_does_not_count(self, tmp_path: Path) -> None:
        async with model_world(tmp_path, model_output_tokens=77) as (world, replica):
            world.gateway.meter = ledger = Ledger(1_000)
            for given in ({"max_output_tokens": 1}, {"max_tokens": -1}):
                await world.ask("POST", CHAT, json={"model": "m", **given})
                assert json.loads(replica.bodies[-1])["max_tokens"] == 77
            assert min(ledger.reserved) > 77


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[],"max_tokens":null,"\xff":1}',
        b'{"model":"m","stream":true,"max_tokens":1,"stream_options":{"\xff":true}}',
    ],
)
async def test_a_body_that_cannot_be_changed_is_a_400_and_reserves_nothing(
    tmp_path: Path, body: bytes
) -> None:
    async with model_world(tmp_path) as (world, replica):
        world.gateway.meter = ledger = Ledger(1_000)
        async with world.session.post(world.url + CHAT, data=body) as response:
            assert "not valid JSON" in (await error_of(response, 400))["message"]
        assert ledger.reserved == [] == replica.bodies


async def test_requests_and_first_tokens_are_measured_by_model(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        await world.ask("POST", CHAT, json={"model": "m"})
        await world.ask("POST", CHAT, 404, json={"model": "no-such-" + "x" * 50})
        async with world.session.post(
            world.url + CHAT, json={"model": "m", "stream": True}
        ) as response:
            await response.read()
        async with world.session.get(world.url + "/metrics") as response:
            text = await response.text()
        assert (
            'muster_model_requests_total{model="m",route="/v1/chat/completions",'
            'status="200",stream="false"} 1.0' in text
        )
        assert (
            'muster_model_requests_total{model="m",route="/v1/chat/completions",'
            'status="200",stream="true"} 1.0' in text
        )
        assert 'muster_model_first_token_seconds_count{model="m"} 1.0' in text
        assert 'muster_model_requests_open{model="m"} 0.0' in text
        assert (
            'muster_gateway_requests_total{method="POST",route="/v1/chat/completions",'
            'status="404"} 1.0' in text
        )
        assert "no-such" not in text


async def test_undeployed_models_free_their_series_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_labels, "MODELS_MAX", 1)
    async with gateway_world(tmp_path) as world, running() as replica:
        for name in ("old", "new"):
            await deployed(world, name)
            await add_replicas(world, name, replica)
        await chat(world, "old")
        await chat(world, "new")
        assert await counted_models(world) == ["old", "other"]
        await world.ask("DELETE", "/v1/deployments/old", 202)
        for _ in range(2):  # the first one drops the queue
            world.gateway.queues.refresh()
        await chat(world, "new")
        assert await counted_models(world) == ["new", "other"]


async def counted_models(world: World) -> list[str]:
    """Return the models of the series of ended requests."""
    async with world.session.get(world.url + "/metrics") as response:
        text = await response.text()
    return sorted(re.findall(r'muster_model_requests_total{model="(.*?)"', text))
