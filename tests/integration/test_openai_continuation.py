"""A stream whose replica dies goes on at another one, for models that allow it."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.api_gateway.openai.catalogue import Listed
from tests.integration.gateway_world import World
from tests.integration.openai_world import CHAT, MESSAGES
from tests.integration.test_openai_failures import replicas_world

COMPLETIONS = "/v1/completions"


def allow(world: World) -> None:
    assert isinstance(world.gateway.models, Listed)
    world.gateway.models.continued.add("m")


async def stream(world: World, path: str = CHAT, **fields: Any) -> list[Any]:
    """Return the events of one stream, [DONE] as a string."""
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "count: "}
    body = {"model": "m", "stream": True, **prompt, **fields}
    async with world.session.post(world.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).splitlines()
    found = [line[6:] for line in lines if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


def text(events: list[Any]) -> str:
    choices = [each["choices"][0] for each in events if isinstance(each, dict) and each["choices"]]
    return "".join(each.get("text") or each.get("delta", {}).get("content", "") for each in choices)


def continued(world: World) -> float:
    registry = world.gateway.telemetry.registry
    name = "muster_model_continuations_total"
    return registry.get_sample_value(name, {"model": "m"}) or 0.0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_client_gets_the_whole_text_once(tmp_path: Path, path: str) -> None:
    async with replicas_world(tmp_path, 2) as (world, replicas):
        allow(world)
        options = {"include_usage": True}
        events = await stream(world, path, x_chunks=6, x_die="middle", stream_options=options)
        assert text(events) == "w0 w1 w2 w3 w4 w5 "
        assert events[-1] == "[DONE]"
        assert sorted(len(replica.bodies) for replica in replicas) == [1, 1]
        assert continued(world) == 1
        assert events[-2]["usage"]["completion_tokens"] == 3 + 7


async def test_a_stream_goes_on_as_often_as_there_are_replicas(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 3, model_attempts=3) as (world, _):
        allow(world)
        events = await stream(world, x_chunks=6, x_die="each")
        assert text(events) == "w0 w1 w2 w3 w4 w5 "


async def test_a_stream_that_no_replica_can_continue_ends_with_the_error(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 2) as (world, _):
        allow(world)
        events = await stream(world, x_chunks=60, x_die="each")
        assert events[-1]["error"]["code"] == "upstream_error"
        assert text(events[:-1]) == "w0 w1 w2 w3 "


async def test_a_model_that_does_not_allow_it_has_the_error(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 2) as (world, replicas):
        events = await stream(world, x_chunks=6, x_die="middle")
        assert events[-1]["error"]["code"] == "upstream_error"
        assert sorted(len(replica.bodies) for replica in replicas) == [0, 1]


async def test_a_stream_of_several_choices_has_the_error(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 2) as (world, _):
        allow(world)
        events = await stream(world, x_chunks=6, x_die="middle", n=2)
        assert events[-1]["error"]["code"] == "upstream_error"


async def test_a_stream_without_an_end_goes_on_too(tmp_path: Path) -> None:
    """A server that stops in an orderly way may end its streams in the middle."""
    async with replicas_world(tmp_path, 2, model_attempts=2) as (world, replicas):
        allow(world)
        events = await stream(world, x_chunks=3, x_no_done=True)
        assert text(events[:-1]) == "w0 w1 w2 "
        assert events[-1]["error"]["code"] == "upstream_error"
        assert [len(replica.bodies) for replica in replicas] == [1, 1]


async def test_a_continued_stream_has_one_time_to_its_first_token(tmp_path: Path) -> None:
    """The next replica's time would include all that came before, and would add replicas."""
    async with replicas_world(tmp_path, 2) as (world, _):
        allow(world)
        await stream(world, x_chunks=6, x_die="middle")
        assert continued(world) == 1
        assert len(world.gateway.queues.of("m").latencies._first) == 1
