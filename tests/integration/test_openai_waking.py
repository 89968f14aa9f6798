"""While a model without replicas wakes, streams are told when it is expected, and other requests
wait or are refused with the expected time. A real replica over HTTP appears when the test says so.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.api_gateway.openai import waking
from services.api_gateway.openai.catalogue import Listed
from services.api_gateway.serving.fairness import SECOND_NS
from services.api_gateway.serving.routing import MS_NS
from tests.integration.gateway_world import World
from tests.integration.openai_replica import Replica
from tests.integration.openai_world import CHAT, error_of, served
from tests.integration.test_openai_failures import counted, replicas_world, until
from tests.integration.test_openai_queues import blocked, body, queue_of, waiting


class Scaling(Listed):
    """Models that the scheduler scales: requests wait while no replica is ready."""

    def scales(self, name: str) -> bool:
        return True


@asynccontextmanager
async def sleeping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float = 12, **changed: Any
) -> AsyncIterator[tuple[World, Replica]]:
    """Run a gateway with a model that sleeps, and whose last wake took so long."""
    monkeypatch.setattr(waking, "FIRST_S", 0.1)
    monkeypatch.setattr(waking, "EVERY_S", 0.1)
    async with replicas_world(tmp_path, 1, **changed) as (world, [replica]):
        world.gateway.models = Scaling(served())
        times = queue_of(world).waking.times
        times.begin(0)
        times.woken(round(took_s * SECOND_NS))
        yield world, replica


def wake(world: World, *replicas: Replica) -> None:
    world.gateway.models = Scaling(served(*(each.port for each in replicas)))


def stream(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "stream": True, "x_finish": 1, **fields}


async def test_a_stream_gets_comments_with_the_expected_time_and_then_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        sleeping(tmp_path, monkeypatch) as (world, replica),
        world.session.post(world.url + CHAT, json=stream()) as response,
    ):
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert await response.content.readline() == b": waking, expected in 12 s\n"
        wake(world, replica)
        *comments, answer = (await response.text()).partition("data: ")
        assert answer.endswith("data: [DONE]\n\n") and "w0 " in answer
        assert all("data" not in line for line in comments[0].splitlines())
        assert queue_of(world).waking.times.left_s(0) == 12
        assert counted(world, "200", "true") == 1.0


async def test_a_model_whose_wakes_are_unknown_says_that_it_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sleeping(tmp_path, monkeypatch) as (world, replica):
        world.gateway.queues.queues.clear()
        async with world.session.post(world.url + CHAT, json=stream()) as response:
            assert await response.content.readline() == b": waking\n"
            wake(world, replica)
            assert (await response.text()).endswith("data: [DONE]\n\n")
        assert queue_of(world).waking.times.left_s(0) == 1, "it was learnt"


async def test_a_replica_that_fails_after_comments_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        sleeping(tmp_path, monkeypatch) as (world, replica),
        world.session.post(world.url + CHAT, json=stream(x_die="before")) as response,
    ):
        await response.content.readline()
        wake(world, replica)
        last = (await response.text()).strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_error"
        assert counted(world, "502", "true") == 1.0


@pytest.mark.parametrize("status", [400, 503])
async def test_an_error_of_the_replica_ends_the_stream_that_began_with_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async with (
        sleeping(tmp_path, monkeypatch) as (world, replica),
        world.session.post(world.url + CHAT, json=stream(x_status=status)) as response,
    ):
        await response.content.readline()
        wake(world, replica)
        last = (await response.text()).strip().split("\n\n")[-1]
        assert last == 'data: {"error": {"message": "as asked"}}'
        assert counted(world, str(status), "true") == 1.0


async def test_a_server_without_streams_ends_the_stream_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        sleeping(tmp_path, monkeypatch) as (world, replica),
        world.session.post(
            world.url + CHAT, json=stream(x_status=200, x_body={"choices": []})
        ) as response,
    ):
        await response.content.readline()
        wake(world, replica)
        assert (await response.text()).endswith('data: {"choices": []}\n\ndata: [DONE]\n\n')


async def test_a_stream_whose_time_is_over_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        sleeping(tmp_path, monkeypatch, model_wait_ms=400) as (world, _),
        world.session.post(world.url + CHAT, json=stream()) as response,
    ):
        last = (await response.text()).strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_not_ready"
        assert waiting(world) == 0


async def test_a_client_that_leaves_while_the_model_wakes_leaves_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sleeping(tmp_path, monkeypatch) as (world, _):
        async with world.session.post(world.url + CHAT, json=stream()) as response:
            await response.content.readline()
            response.close()
        await until(lambda: waiting(world) == 0)


async def test_without_a_stream_a_short_wake_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sleeping(tmp_path, monkeypatch) as (world, replica):
        call = asyncio.create_task(world.ask("POST", CHAT, json={"model": "m"}))
        await until(lambda: waiting(world) == 1)
        wake(world, replica)
        assert (await call)["choices"]


async def test_a_wake_that_is_too_long_is_a_503_with_the_expected_time_and_still_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sleeping(tmp_path, monkeypatch, took_s=40, model_wait_ms=10_000) as (world, _):
        async with world.session.post(world.url + CHAT, json={"model": "m"}) as response:
            error = await error_of(response, 503)
            assert error["code"] == "model_not_ready" and "in 40 s" in error["message"]
            assert response.headers["retry-after"] == "40"
        assert waiting(world) == 0
        assert world.gateway.queues.demand()["m"].waiting == 1, "the scheduler hears of it"


async def test_a_request_whose_time_is_over_gets_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        sleeping(tmp_path, monkeypatch, took_s=0.9, model_wait_ms=1_000) as (world, _),
        world.session.post(world.url + CHAT, json={"model": "m"}) as response,
    ):
        await error_of(response, 503)
        assert response.headers["retry-after"] == "1"


async def test_a_wake_is_learnt_also_if_no_request_waits_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sleeping(tmp_path, monkeypatch, took_s=0) as (world, replica):
        queue = queue_of(world)
        times = queue.waking.times
        for forgotten_ns in (waking.FORGOTTEN_NS, -1):
            monkeypatch.setattr(waking, "FORGOTTEN_NS", forgotten_ns)
            world.gateway.models = Scaling(served())
            learnt_ns = times.left_ns(0)
            call = asyncio.create_task(world.ask("POST", CHAT, json={"model": "m"}))
            await until(lambda: waiting(world) == 1)
            call.cancel()
            await until(lambda: waiting(world) == 0)
            queue.refresh()
            wake(world, replica)
            queue.refresh()
            assert (times.left_ns(0) != learnt_ns) == (forgotten_ns > 0)


async def test_the_report_says_how_long_ago_the_last_request_was(tmp_path: Path) -> None:
    async with replicas_world(tmp_path, 1) as (world, _):
        queue = queue_of(world)
        assert queue.demand().idle_ms is None
        began_ns = queue.now_ns()
        await world.ask("POST", CHAT, json=body(1, delay_s=0))
        demand = queue.demand()
        assert (demand.outstanding, demand.waiting) == (0, 0), "the request has ended"
        assert demand.idle_ms is not None
        assert demand.idle_ms <= (queue.now_ns() - began_ns) // MS_NS
        await asyncio.sleep(0.05)
        later = queue.demand().idle_ms
        assert later is not None and later >= demand.idle_ms + 49
        async with blocked(world):
            await asyncio.sleep(0.05)
            held_ns = queue.now_ns()
        await until(lambda: queue.demand().outstanding == 0)
        ended = queue.demand().idle_ms
        assert ended is not None and ended <= (queue.now_ns() - held_ns) // MS_NS
