"""Behaviour of real model servers beyond the protocol, seen by OpenAI's official client: ends of
streams, request ids, bare errors.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.gateway_world import KEY
from tests.integration.openai_replica import Replica
from tests.integration.openai_world import CHAT, MESSAGES
from tests.integration.test_openai_failures import replicas_world

pytestmark = pytest.mark.attack


@asynccontextmanager
async def official_client(tmp_path: Path) -> AsyncIterator[tuple[openai.AsyncOpenAI, Replica]]:
    async with (
        replicas_world(tmp_path, 1) as (world, [replica]),
        openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield client, replica


async def streamed(client: openai.AsyncOpenAI, n: int = 1, **fields: Any) -> list[str | None]:
    """The finish reasons of all chunks. Raises what the client raises."""
    stream = await client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, n=n, extra_body=fields
    )
    return [chunk.choices[0].finish_reason async for chunk in stream]


async def test_a_stream_that_ends_after_its_finish_reason_without_done_is_whole(
    tmp_path: Path,
) -> None:
    async with official_client(tmp_path) as (client, _):
        assert await streamed(client, x_finish=1, x_no_done=True) == [None, None, None, "stop"]


async def test_a_stream_that_lacks_done_gets_one(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 1) as (world, _):
        body = {"model": "m", "stream": True, "x_finish": 1, "x_no_done": True}
        async with world.session.post(world.url + CHAT, json=body) as response:
            events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and len(events) == 6


async def test_a_connection_that_breaks_after_done_is_no_error(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 1) as (world, _):
        body = {"model": "m", "stream": True, "x_finish": 1, "x_die": "done"}
        async with world.session.post(world.url + CHAT, json=body) as response:
            events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]


async def test_a_connection_that_breaks_before_the_finish_reason_is_an_error(
    tmp_path: Path,
) -> None:
    async with official_client(tmp_path) as (client, _):
        with pytest.raises(openai.APIError, match="closed the connection"):
            await streamed(client, x_die="finished")


async def test_a_connection_that_breaks_between_the_finish_reason_and_done_is_an_error(
    tmp_path: Path,
) -> None:
    """The usage may be missing: only the server can say that nothing is."""
    async with official_client(tmp_path) as (client, _):
        with pytest.raises(openai.APIError, match="closed the connection"):
            await streamed(client, x_finish=1, x_die="finished")


async def test_a_stream_of_two_choices_of_which_one_is_finished_is_not_whole(
    tmp_path: Path,
) -> None:
    async with official_client(tmp_path) as (client, _):
        assert len(await streamed(client, n=2, x_finish=2, x_no_done=True)) == 5
        with pytest.raises(openai.APIError, match="ended its stream before"):
            await streamed(client, n=2, x_finish=1, x_no_done=True, x_indexes=2)


async def test_a_request_id_that_muster_makes_is_a_uuid(tmp_path: Path) -> None:
    async with official_client(tmp_path) as (client, replica):
        replica.wants_uuid = True
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == "hello"
        assert (
            replica.headers[0]["x-request-id"]
            == answer._request_id
            == str(uuid.UUID(answer._request_id))
        )


async def test_an_empty_refusal_of_a_server_says_which_replica_to_look_at(tmp_path: Path) -> None:
    async with official_client(tmp_path) as (client, replica):
        replica.wants_uuid = True
        with pytest.raises(
            openai.BadRequestError, match=r"answered 400 with an empty body: see muster logs m/0"
        ):
            await client.chat.completions.create(
                model="m", messages=MESSAGES, extra_headers={"x-request-id": "mine"}
            )


@pytest.mark.parametrize(
    "body",
    [{"error": {}}, {"error": {"code": 7}}, {"errors": ["no such adapter"]}, ["no such adapter"]],
)
async def test_a_server_s_error_body_of_any_shape_is_shown(tmp_path: Path, body: object) -> None:
    async with official_client(tmp_path) as (client, _):
        with pytest.raises(openai.BadRequestError) as shown:
            await client.chat.completions.create(
                model="m", messages=MESSAGES, extra_body={"x_status": 400, "x_body": body}
            )
        assert isinstance(shown.value.body, dict) and len(shown.value.body["message"]) > 5
