"""Requests to models over gRPC: whole answers, streams, and any endpoint with a large body."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from libs.rpc.messages import message
from tests.integration.openai_replica import Replica
from tests.integration.openai_world import model_world
from tests.integration.rpc_world import RpcWorld, answering
from tests.integration.test_openai_hostile import EVENTS, MIB, chunk
from tests.integration.test_openai_hostile import answering as saying

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


async def test_a_client_that_reads_late_does_not_make_its_replica_silent(tmp_path: Path) -> None:
    async with (
        model_world(tmp_path, model_idle_ms=200, model_answer_ms=1_000) as (world, replica),
        answering(world) as rpc,
    ):
        call = rpc.client.call(
            "Inference/ChatStream",
            model="m",
            messages=MESSAGES,
            more={"x_chunks": 20_000, "x_finish": 1},
        )
        await call.read()
        await asyncio.sleep(2.0)  # the gateway waits for the client, and the replica for both
        assert replica.cancelled == 0
        pieces = 1
        while await call.read() is not grpc.aio.EOF:
            pieces += 1
        assert pieces > 20_000 and await call.code() == grpc.StatusCode.OK
        loads = world.gateway.queues.of("m").rules.router.loads
        (known,) = loads.known()
        assert loads.of(known).avoid_since_ns == -1, "the replica was not avoided"


async def failure(tmp_path: Path, method: str, *said: bytes) -> grpc.aio.AioRpcError:
    """The error of a call whose model's server says these bytes."""
    async with saying(tmp_path, *said) as world, answering(world) as rpc:
        fields = {"input": ["a"]} if method == "Embed" else {"prompt": "a"}
        if method.startswith("Chat"):
            fields = {"messages": MESSAGES}
        error = await rpc.client.fails(f"Inference/{method}", model="m", **fields)
        await rpc.quiet()
        return error


@pytest.mark.parametrize("method", ["Chat", "Complete", "Embed", "ChatStream", "CompleteStream"])
async def test_an_answer_with_media_is_refused_with_a_hint(tmp_path: Path, method: str) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: Audio/MPEG\r\n\r\n"
    error = await failure(tmp_path, method, head, *[b"x" * MIB] * 4)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert "audio/mpeg" in (error.details() or "") and "CallModel" in (error.details() or "")


@pytest.mark.parametrize("ends", [b"", b"\ndata: "], ids=["a line without end", "lines only"])
async def test_an_event_without_end_ends_the_call(tmp_path: Path, ends: bytes) -> None:
    endless = [chunk(b"x" * MIB + ends)] * 16
    error = await failure(tmp_path, "ChatStream", EVENTS, chunk(b"data: "), *endless)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert f"{4 * MIB} bytes" in (error.details() or "")
    assert dict(error.trailing_metadata() or ())["muster-status"] == "502"


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
