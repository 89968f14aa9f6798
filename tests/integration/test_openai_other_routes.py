"""Endpoints beside chat, completions and embeddings, through a real gateway."""

import json
from pathlib import Path

import aiohttp
import pytest

from services.api_gateway.openai.routes import EMBEDDINGS, RESPONSES, ROUTES
from tests.integration.openai_world import Ledger, error_of, model_world

SPEECH = "/v1/audio/speech"


@pytest.mark.parametrize(
    "path",
    [path for path in ROUTES if "completions" not in path and path not in (EMBEDDINGS, SPEECH)],
)
async def test_a_request_reaches_the_replica_at_the_same_path(tmp_path: Path, path: str) -> None:
    body = json.dumps({"model": "m", "query": "q", "x": [1, None]}).encode()
    async with model_world(tmp_path) as (world, replica):
        answer = await world.ask("POST", path, data=body)
        assert answer["path"] == path and replica.bodies == [body]
        async with world.session.get(world.url + path) as response:
            assert (await error_of(response, 405))["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/rerank"])
async def test_each_needs_a_key_and_a_role_that_may_ask(tmp_path: Path, path: str) -> None:
    async with model_world(tmp_path) as (world, replica), world.as_("viewer", "v") as viewer:
        async with aiohttp.ClientSession() as stranger:
            for session, model, status in (
                (stranger, "m", 401),
                (viewer.session, "m", 403),
                (world.session, "no-such", 404),
            ):
                response = await session.post(world.url + path, json={"model": model})
                await error_of(response, status)
        assert replica.bodies == []


async def test_a_stream_of_responses_is_complete_without_done_and_settled(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, replica):
        world.gateway.meter = ledger = Ledger(10_000)
        body = {"model": "m", "input": "i", "stream": True}
        async with world.session.post(world.url + RESPONSES, json=body) as response:
            text = await response.text()
        assert text.count("data: ") == 3 and "[DONE]" not in text and "error" not in text
        assert ledger.settled == [12]
        assert json.loads(replica.bodies[0]) == {**body, "max_output_tokens": 4_096}


async def test_a_stream_of_responses_that_breaks_ends_with_an_error(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        body = {"model": "m", "input": "i", "stream": True, "x_die": True}
        async with world.session.post(world.url + RESPONSES, json=body) as response:
            text = await response.text()
        assert json.loads(text.strip().rpartition("data: ")[2])["error"]["code"] == "upstream_error"


async def test_speech_is_relayed_while_it_is_made(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        body = {"model": "m", "input": "hello", "x_gap_s": 0.2}
        async with world.session.post(world.url + SPEECH, json=body) as response:
            assert response.content_type == "audio/mpeg"
            assert await response.content.readexactly(1_000) == bytes(1_000)
            assert not response.content.at_eof()
            assert len(await response.read()) == 3_000


async def test_speech_that_breaks_is_cut_and_never_has_an_error_inside(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        body = {"model": "m", "input": "hello", "x_die": True}
        async with world.session.post(world.url + SPEECH, json=body) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
