"""Requests to a model server that works on one request at a time are joined, and each client gets
its own results, error and usage. A real server over HTTP.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from libs.common.batching import Batching
from services.api_gateway.openai.catalogue import Listed
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, cut, running
from tests.integration.openai_world import Ledger, add_replicas, served
from tests.integration.test_openai_failures import until
from tests.integration.test_openai_named_models import deployed
from tests.integration.test_openai_queues import tenant

EMBEDDINGS, COMPLETIONS = "/v1/embeddings", "/v1/completions"


class OneByOne(Replica):
    """A server that works on one request at a time, for 50 ms whatever its size.

    An input that contains `bad` is a 400 for the whole request, `die` cuts the connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        async with self.lock:
            await asyncio.sleep(asked.get("x_delay_s", 0.05))
        field = "input" if request.path == EMBEDDINGS else "prompt"
        given = asked[field]
        texts = given if isinstance(given, list) else [given]
        if any("die" in text for text in texts):
            cut(request)
        if any("bad" in text for text in texts):
            error = {"message": f"bad input among {texts}"}
            return web.json_response({"error": error}, status=400)
        tokens = sum(len(text) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        shared = {"object": "list", "model": asked["model"], "usage": usage}
        if field == "input":
            data = [{"index": at, "embedding": [text]} for at, text in enumerate(texts)]
            return web.json_response({**shared, "data": data})
        choices = [{"index": at, "text": text.upper()} for at, text in enumerate(texts)]
        usage |= {"completion_tokens": tokens, "total_tokens": 2 * tokens}
        return web.json_response({**shared, "id": "c", "choices": choices})

    def inputs(self) -> list[int]:
        """Return the number of inputs of each request that came."""
        bodies = [json.loads(body) for body in self.bodies]
        given = [body.get("input", body.get("prompt")) for body in bodies]
        return [len(each) if isinstance(each, list) else 1 for each in given]


@asynccontextmanager
async def batching_world(
    tmp_path: Path, items_max: int = 8, wait_ms: int = 100, **changed: Any
) -> AsyncIterator[tuple[World, OneByOne]]:
    server = OneByOne()
    async with gateway_world(tmp_path, **changed) as world, running(replica=server):
        world.gateway.models = models = Listed(served(server.port))
        models.batches["m"] = Batching(items_max=items_max, wait_ms=wait_ms)
        yield world, server


async def embed(world: World, given: str | list[str], status: int = 200, **more: Any) -> Any:
    body = {"model": "m", "input": given, **more}
    return await world.ask("POST", EMBEDDINGS, status, json=body)


def texts(answer: Any) -> list[str]:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"][0] for each in answer["data"]]


async def test_requests_are_joined_and_each_gets_its_own_results_and_usage(tmp_path: Path) -> None:
    async with batching_world(tmp_path) as (world, server):
        given = [["a", "bb"], "ccc", ["dddd"], "e"]
        answers = await asyncio.gather(*(embed(world, each) for each in given))
        assert [texts(answer) for answer in answers] == [["a", "bb"], ["ccc"], ["dddd"], ["e"]]
        assert server.inputs() == [5]
        assert sum(answer["usage"]["total_tokens"] for answer in answers) == 11
        assert world.gateway.queues.open.counts == {}


async def test_a_full_batch_does_not_wait(tmp_path: Path) -> None:
    async with batching_world(tmp_path, items_max=2, wait_ms=10_000) as (world, server):
        answers = await asyncio.gather(*(embed(world, str(number)) for number in range(8)))
        assert [texts(answer) for answer in answers] == [[str(number)] for number in range(8)]
        assert server.inputs() == [2, 2, 2, 2]


async def test_a_single_request_passes_unchanged_and_so_does_a_large_one(tmp_path: Path) -> None:
    async with batching_world(tmp_path, items_max=4, wait_ms=1) as (world, server):
        assert texts(await embed(world, "alone")) == ["alone"]
        assert texts(await embed(world, list("abcdef"))) == list("abcdef")
        assert [json.loads(body)["input"] for body in server.bodies] == ["alone", list("abcdef")]


async def test_completions_are_joined_too_but_no_streams(tmp_path: Path) -> None:
    async with batching_world(tmp_path) as (world, server):
        body = {"model": "m", "max_tokens": 5}
        answers = await asyncio.gather(
            *(
                world.ask("POST", COMPLETIONS, json={**body, "prompt": each})
                for each in ("a", ["b", "c"], "d")
            )
        )
        assert [[each["text"] for each in answer["choices"]] for answer in answers] == [
            ["A"],
            ["B", "C"],
            ["D"],
        ]
        assert server.inputs() == [4]
        assert sum(answer["usage"]["total_tokens"] for answer in answers) == 8


async def test_different_requests_and_different_tenants_are_never_joined(tmp_path: Path) -> None:
    async with (
        batching_world(tmp_path) as (world, server),
        tenant(world, "other") as other,
    ):
        await asyncio.gather(
            embed(world, "a"), embed(world, "b", dimensions=8), embed(other, "c"), embed(other, "d")
        )
        assert sorted(server.inputs()) == [1, 1, 2]
        [shared] = [body for body in map(json.loads, server.bodies) if len(body["input"]) == 2]
        assert shared["input"] == ["c", "d"]


async def test_a_refused_input_is_the_error_of_its_own_request_alone(tmp_path: Path) -> None:
    async with batching_world(tmp_path) as (world, server):
        good, bad, other = await asyncio.gather(
            embed(world, "good"), embed(world, "bad", 400), embed(world, "other")
        )
        assert (texts(good), texts(other)) == (["good"], ["other"])
        assert bad["error"]["message"] == "bad input among ['bad']"
        assert server.inputs() == [3, 1, 1, 1]


async def test_an_input_that_kills_the_connection_fails_alone(tmp_path: Path) -> None:
    async with batching_world(tmp_path) as (world, _):
        good, bad = await asyncio.gather(embed(world, "good"), embed(world, "die", 502))
        assert texts(good) == ["good"]
        assert bad["error"]["code"] == "upstream_error"


async def test_while_the_replica_works_the_next_batch_grows(tmp_path: Path) -> None:
    async with batching_world(tmp_path, items_max=64, wait_ms=5) as (world, server):
        first = asyncio.create_task(embed(world, "first", x_delay_s=0.5))
        await until(lambda: len(server.bodies) == 1)
        calls = []
        for number in range(20):
            calls.append(asyncio.create_task(embed(world, str(number))))
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(first, *calls)
        assert [texts(answer)[0] for answer in answers[1:]] == [str(each) for each in range(20)]
        assert server.inputs() == [1, 20]


async def test_a_client_that_leaves_takes_its_input_along_and_the_last_cancels_the_batch(
    tmp_path: Path,
) -> None:
    async with batching_world(tmp_path, wait_ms=200) as (world, server):
        gone = asyncio.create_task(embed(world, "gone"))
        stays = asyncio.create_task(embed(world, "stays"))
        await asyncio.sleep(0.1)
        gone.cancel()
        assert texts(await stays) == ["stays"]
        assert server.inputs() == [1]
        both = [asyncio.create_task(embed(world, each, x_delay_s=30)) for each in ("a", "b")]
        await until(lambda: len(server.bodies) == 2)
        for call in both:
            call.cancel()
        await until(lambda: server.cancelled == 1)
        await until(lambda: world.gateway.queues.open.counts == {})


async def test_a_silent_replica_is_a_504_for_each(tmp_path: Path) -> None:
    async with batching_world(tmp_path, wait_ms=50, model_answer_ms=300) as (world, server):
        answers = await asyncio.gather(
            *(embed(world, each, 504, x_delay_s=30) for each in ("a", "b"))
        )
        assert [answer["error"]["code"] for answer in answers] == ["timeout", "timeout"]
        await until(lambda: server.cancelled == 1)


async def test_without_a_ready_replica_each_gets_the_queue_s_error(tmp_path: Path) -> None:
    async with batching_world(tmp_path) as (world, _):
        world.gateway.meter = ledger = Ledger(1_000)
        world.gateway.models = models = Listed(served())
        models.batches["m"] = Batching(items_max=8)
        answers = await asyncio.gather(*(embed(world, each, 503) for each in ("a", "b")))
        assert [answer["error"]["code"] for answer in answers] == ["model_not_ready"] * 2
        assert ledger.settled == [0, 0]


async def test_each_tenant_s_limit_is_charged_with_the_request_s_own_part(tmp_path: Path) -> None:
    async with batching_world(tmp_path) as (world, _):
        world.gateway.meter = ledger = Ledger(1_000)
        await asyncio.gather(embed(world, "aa"), embed(world, ["bbbb", "cccc"]))
        assert sum(each or 0 for each in ledger.settled) == 10
        assert ledger.left == 990


async def test_requests_that_wait_for_a_batch_count_among_those_of_their_tenant(
    tmp_path: Path,
) -> None:
    changed = {"model_requests_max": 16}
    async with batching_world(tmp_path, wait_ms=300, **changed) as (world, _):
        each = [asyncio.create_task(embed(world, "a", user=str(number))) for number in range(4)]
        await asyncio.sleep(0.1)
        refused = await embed(world, "b", 429, user="5")
        assert refused["error"]["code"] == "queue_full"
        await asyncio.gather(*each)
        assert world.gateway.queues.requests_of == {}


async def test_a_batch_that_is_refused_counts_no_request_twice(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running(replica=OneByOne()) as server:
        await deployed(world, "m", batching={"items_max": 8, "wait_ms": 100})
        await add_replicas(world, "m", server)
        await asyncio.gather(embed(world, "good"), embed(world, "fine"), embed(world, "bad", 400))
        counts = list(world.gateway.usage.rows.values())
        assert sum(each.requests for each in counts) == 3
        assert sum(each.inputs for each in counts) == 8
        world.gateway.usage.rows.clear()
        await asyncio.gather(embed(world, "good"), embed(world, "fine"))
        counts = list(world.gateway.usage.rows.values())
        assert sum(each.requests for each in counts) == 2
        assert sum(each.inputs for each in counts) == 8
