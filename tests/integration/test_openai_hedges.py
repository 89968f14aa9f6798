"""Second tries: a request goes to another replica when the first is slow or too busy, within a
budget, and the client sees and pays for one answer. Real replicas over HTTP.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from services.api_gateway.openai.catalogue import Listed
from services.api_gateway.serving.hedging import SAMPLES_MIN
from services.api_gateway.serving.retry_budget import SAVED_MAX
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, cut, running
from tests.integration.openai_world import CHAT, MESSAGES, Ledger, error_of, served
from tests.integration.test_openai_failures import replicas_world, retries, until


def hedges(world: World) -> float:
    found = world.gateway.telemetry.registry.get_sample_value(
        "muster_model_hedges_total", {"model": "m"}
    )
    return found or 0.0


async def learn(world: World, stream: bool) -> None:
    """Let the gateway learn that the model's answers begin at once."""
    for _ in range(SAMPLES_MIN):
        await ask(world, stream=stream, x_finish=1)


async def ask(world: World, **fields: Any) -> str:
    async with world.session.post(world.url + CHAT, json={"model": "m", **fields}) as response:
        assert response.status == 200, await response.text()
        return await response.text()


# How long a replica waits; then it cuts the connection, answers 503 ("busy"), or does as asked.
Step = tuple[float, bool | str]


class Scripted(Replica):
    """A replica that does what the next step of the script says.

    Both replicas of a test take their steps from one script, in the order of their requests.
    """

    def __init__(self, script: list[Step]) -> None:
        super().__init__()
        self.script = script

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        delay_s, dies = self.script.pop(0) if self.script else (0.0, False)
        await asyncio.sleep(delay_s)
        if dies == "busy":
            return web.json_response({"error": {"message": "busy"}}, status=503)
        if dies:
            cut(request)
        return await super()._answer(request, asked)


class Scripts(NamedTuple):
    """A gateway, its two replicas, and their script."""

    world: World
    replicas: list[Scripted]
    script: list[Step]

    async def settled(self, cancelled: int) -> None:
        """Wait until so many requests were cancelled at replicas, and no count is left."""
        await until(lambda: sum(each.cancelled for each in self.replicas) == cancelled)
        await until(lambda: self.world.gateway.queues.open.counts == {})
        loads = self.world.gateway.queues.of("m").rules.router.loads
        assert [loads.of(each).outstanding for each in loads.known()] == [0, 0]


@asynccontextmanager
async def scripts(tmp_path: Path, **changed: Any) -> AsyncIterator[Scripts]:
    script: list[Step] = []
    replicas = [Scripted(script), Scripted(script)]
    async with (
        gateway_world(tmp_path, **changed) as world,
        running(replica=replicas[0]),
        running(replica=replicas[1]),
    ):
        world.gateway.models = Listed(served(*(each.port for each in replicas)))
        yield Scripts(world, replicas, script)


def used(world: World) -> int:
    return sum(world.gateway.queues.of("m").rules.shares.tokens().values())


class TestHedges:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_late_answer_comes_from_a_second_replica_and_the_first_is_cancelled(
        self, tmp_path: Path, stream: bool
    ) -> None:
        async with scripts(tmp_path) as here:
            world = here.world
            world.gateway.meter = ledger = Ledger(10_000_000)
            await learn(world, stream)
            before, paid = used(world), sum(filter(None, ledger.settled))
            for count in range(1, 4):
                here.script[:] = [(30, False)]
                text = await ask(world, stream=stream, x_finish=1)
                assert text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"]
                await here.settled(cancelled=count)
            assert hedges(world) == 3
            assert used(world) - before == 3 * 19, "each request was charged once"
            assert sum(filter(None, ledger.settled)) - paid == 3 * 12

    async def test_the_first_replica_may_still_win_and_the_second_is_cancelled(
        self, tmp_path: Path
    ) -> None:
        async with scripts(tmp_path) as here:
            await learn(here.world, stream=True)
            here.script[:] = [(0.3, False), (30, False)]
            await ask(here.world, stream=True, x_finish=1)
            assert hedges(here.world) == 1
            await here.settled(cancelled=1)

    async def test_a_stream_that_began_after_its_hedge_may_break_and_be_continued(
        self, tmp_path: Path
    ) -> None:
        async with scripts(tmp_path) as here:
            assert isinstance(here.world.gateway.models, Listed)
            here.world.gateway.models.continued.add("m")
            await learn(here.world, stream=True)
            here.script[:] = [(0.3, False), (30, False)]
            dies = {"x_chunks": 6, "x_die": "middle", "x_finish": 1}
            text = await ask(here.world, stream=True, messages=MESSAGES, **dies)
            words = [word for number in range(6) if (word := f"w{number} ") in text]
            assert (len(words), text[-14:]) == (6, "data: [DONE]\n\n")
            assert hedges(here.world) == 1
            await here.settled(cancelled=1)

    async def test_a_client_that_hangs_up_cancels_both(self, tmp_path: Path) -> None:
        async with scripts(tmp_path) as here:
            await learn(here.world, stream=False)
            here.script[:] = [(30, False), (30, False)]
            call = asyncio.create_task(ask(here.world))
            await until(lambda: not here.script)
            call.cancel()
            await here.settled(cancelled=2)

    async def test_the_second_answer_is_awaited_when_the_first_replica_fails(
        self, tmp_path: Path
    ) -> None:
        async with scripts(tmp_path) as here:
            await learn(here.world, stream=True)
            here.script[:] = [(0.3, True), (0.6, False)]
            assert (await ask(here.world, stream=True, x_finish=1)).endswith("data: [DONE]\n\n")
            assert (hedges(here.world), retries(here.world)) == (1, 0)
            assert sum(len(each.bodies) for each in here.replicas) == SAMPLES_MIN + 2
            await here.settled(cancelled=0)

    async def test_a_second_replica_that_fails_leaves_the_first_alone(self, tmp_path: Path) -> None:
        async with scripts(tmp_path) as here:
            await learn(here.world, stream=False)
            here.script[:] = [(0.4, False), (0, True)]
            await ask(here.world)
            assert (hedges(here.world), retries(here.world)) == (1, 0)
            await here.settled(cancelled=0)

    async def test_when_both_fail_it_is_the_error_of_a_failed_replica(self, tmp_path: Path) -> None:
        async with scripts(tmp_path) as here:
            await learn(here.world, stream=False)
            here.script[:] = [(0.3, True), (0.4, True), (0, True)]
            async with here.world.session.post(
                here.world.url + CHAT, json={"model": "m"}
            ) as response:
                assert (await error_of(response, 502))["code"] == "upstream_error"
            await here.settled(cancelled=0)

    @pytest.mark.parametrize(("second", "settled"), [((0.4, "busy"), 0), ((0.4, True), None)])
    async def test_when_both_fail_the_request_costs_nothing_unless_one_may_have_worked(
        self, tmp_path: Path, second: Step, settled: int | None
    ) -> None:
        async with scripts(tmp_path) as here:
            here.world.gateway.meter = ledger = Ledger(10_000_000)
            await learn(here.world, stream=False)
            here.script[:] = [(0.3, "busy"), second, (0, "busy")]
            async with here.world.session.post(
                here.world.url + CHAT, json={"model": "m"}
            ) as response:
                assert response.status == 503
            assert hedges(here.world) == 1 and ledger.settled[-1] == settled

    async def test_a_client_that_leaves_pays_for_the_second_replica_s_work(
        self, tmp_path: Path
    ) -> None:
        async with scripts(tmp_path) as here:
            here.world.gateway.meter = ledger = Ledger(10_000_000)
            await learn(here.world, stream=False)
            here.script[:] = [(0.3, "busy"), (30, False)]
            call = asyncio.create_task(ask(here.world))
            await until(lambda: not here.script)
            await asyncio.sleep(0.5)  # the first replica has answered 503
            call.cancel()
            await until(lambda: len(ledger.settled) == SAMPLES_MIN + 1)
            assert hedges(here.world) == 1 and ledger.settled[-1] is None

    @pytest.mark.parametrize(("percent", "most"), [(0, 0), (2, SAVED_MAX)])
    async def test_no_more_are_sent_than_the_budget_allows(
        self, tmp_path: Path, percent: int, most: int
    ) -> None:
        async with scripts(tmp_path, model_retry_percent=percent) as here:
            await learn(here.world, stream=False)
            # The times of the first answers are learnt too, so those that wait become longer.
            for number in range(most + 5):
                here.script[:] = [(0.2 + 0.1 * number, False), (0, False)]
                await ask(here.world)
                here.script.clear()
            assert hedges(here.world) == most


class TestBusyReplicas:
    async def test_a_busy_answer_is_tried_elsewhere_only_within_the_budget(
        self, tmp_path: Path
    ) -> None:
        async with replicas_world(tmp_path, 2, model_suspect_ms=1) as (world, replicas):
            for _ in range(2 * SAVED_MAX):
                async with world.session.post(
                    world.url + CHAT, json={"model": "m", "x_status": 503}
                ) as response:
                    assert response.status == 503
            tries = sum(len(replica.bodies) for replica in replicas)
            assert 3 * SAVED_MAX <= tries <= 3 * SAVED_MAX + 1

    async def test_the_end_of_a_replica_is_no_matter_of_the_budget(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 2, model_retry_percent=0) as (world, replicas):
            async with world.session.post(
                world.url + CHAT, json={"model": "m", "x_die": "before"}
            ) as response:
                await error_of(response, 502)
            assert [len(replica.bodies) for replica in replicas] == [1, 1]


class TestHeaders:
    async def test_a_stream_without_headers_in_time_is_tried_elsewhere(
        self, tmp_path: Path
    ) -> None:
        async with scripts(tmp_path, model_headers_ms=150) as here:
            here.script[:] = [(30, False)]
            text = await ask(here.world, stream=True, x_finish=1)
            assert text.endswith("data: [DONE]\n\n")
            assert retries(here.world) == 1
            await here.settled(cancelled=1)

    async def test_the_first_event_may_come_later_than_the_headers(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, model_headers_ms=150) as (world, [_]):
            text = await ask(world, stream=True, x_comment_s=0.4, x_finish=1)
            assert text.endswith("data: [DONE]\n\n") and retries(world) == 0

    async def test_an_answer_without_a_stream_has_no_such_bound(self, tmp_path: Path) -> None:
        async with replicas_world(tmp_path, 1, model_headers_ms=150) as (world, [_]):
            await ask(world, x_delay_s=0.4)
            assert retries(world) == 0
