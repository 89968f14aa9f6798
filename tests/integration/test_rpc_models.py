"""Requests to models over gRPC: whole answers, streams, and any endpoint with a large body."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest_asyncio

from libs.rpc.messages import message
from tests.integration.openai_replica import Replica
from tests.integration.openai_world import model_world
from tests.integration.rpc_world import RpcWorld, answering

MESSAGES = [{"role": "user", "content": "hi"}]


class Models(RpcWorld):
    """A gateway with a model and its replica."""

    replica: Replica


@pytest_asyncio.fixture
async def models(tmp_path: Path) -> AsyncIterator[Models]:
    async with model_world(tmp_path) as (world, replica), answering(world) as rpc:
        found = Models(rpc.world, rpc.server, rpc.client)
        found.replica = replica
        yield found


async def test_a_chat_is_answered_with_exactly_what_the_server_sent(models: Models) -> None:
    answer = await models.client.call(
        "Inference/Chat", model="m", messages=MESSAGES, max_tokens=7, more={"x_id": "a", "n": 1}
    )
    whole = json.loads(answer.json)
    assert answer.choices[0].message.content == whole["choices"][0]["message"]["content"]
    assert answer.usage.total_tokens == whole["usage"]["total_tokens"]
    sent = json.loads(models.replica.bodies[-1])
    assert (sent["messages"], sent["max_tokens"], sent["x_id"]) == (MESSAGES, 7, "a")
    assert "more" not in sent and sent["n"] == 1


async def test_a_stream_gives_each_piece(models: Models) -> None:
    pieces = await models.client.all(
        "Inference/ChatStream", model="m", messages=MESSAGES, more={"x_chunks": 5}
    )
    text = "".join(choice.delta.content for piece in pieces for choice in piece.choices)
    assert len(pieces) >= 5 and text
    assert all(json.loads(piece.json)["object"] == "chat.completion.chunk" for piece in pieces)


async def test_texts_are_completed_and_embedded(models: Models) -> None:
    done = await models.client.call("Inference/Complete", model="m", prompt="a")
    assert json.loads(done.json)["choices"]
    found = await models.client.call("Inference/Embed", model="m", input=["a"])
    assert json.loads(found.json)


async def test_a_client_that_leaves_ends_the_generation(models: Models) -> None:
    call = models.client.call(
        "Inference/ChatStream", model="m", messages=MESSAGES, more={"x_gap_s": 0.2, "x_chunks": 500}
    )
    await call.read()
    call.cancel()
    await models.quiet()
    assert models.replica.cancelled == 1


async def test_a_stream_that_breaks_has_the_status_unavailable(models: Models) -> None:
    more = {"x_die": "middle", "x_chunks": 8}
    error = await models.client.fails(
        "Inference/ChatStream", model="m", messages=MESSAGES, more=more
    )
    assert error.code() == grpc.StatusCode.UNAVAILABLE


async def call_model(models: Models, *pieces: Any, **first: Any) -> tuple[str, bytes]:
    kind = message("ModelCall")
    asks = [kind(**first), *(kind(data=piece) for piece in pieces)]
    found = await models.client.all("Inference/CallModel", asks=iter(asks))
    return found[0].content_type, b"".join(piece.data for piece in found)


async def test_any_endpoint_takes_a_body_in_pieces(models: Models) -> None:
    body = json.dumps({"model": "m", "query": "q", "documents": ["x" * 3_000_000]}).encode()
    pieces = [body[begin : begin + 1_000_000] for begin in range(0, len(body), 1_000_000)]
    kind, _ = await call_model(models, *pieces, path="/v1/rerank")
    assert kind.startswith("application/json")
    assert models.replica.bodies[-1] == body


async def test_a_path_that_is_no_endpoint_is_refused(models: Models) -> None:
    ask = message("ModelCall")(path="/v1/keys", data=b"{}")
    error = await models.client.fails("Inference/CallModel", asks=iter([ask]))
    assert error.code() == grpc.StatusCode.NOT_FOUND


async def test_the_served_models_are_listed(models: Models) -> None:
    listed = await models.client.call("Inference/ListServedModels")
    assert [each.id for each in listed.data] == ["m", "cold", "theirs"]
    assert (await models.client.call("Inference/GetServedModel", id="m")).owned_by == "default"
    error = await models.client.fails("Inference/GetServedModel", id="absent")
    assert error.code() == grpc.StatusCode.NOT_FOUND
