"""GET /v1/upcoming: the scheduler's order with the gateway's rows, in the name of the tenant."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from libs.common import subjects
from services.api_gateway.http.upcoming import QUESTIONS_MAX
from tests.integration.gateway_world import World, gateway_world


async def scheduler(world: World, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Play the scheduler; returns the questions that it gets."""
    asked: list[dict[str, Any]] = []

    async def on_ask(subject: str, data: bytes) -> bytes:
        asked.append(msgspec.msgpack.decode(data))
        return msgspec.json.encode(answer)

    await world.bus.subscribe(subjects.ask_scheduler("upcoming"), on_ask)
    return asked


async def test_jobs_come_in_the_schedulers_order_with_their_rows(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        first, second = await world.run_to("queued", name="a"), await world.run_to("queued")
        told = [
            {"position": 1, "job_id": second, "in_s": 60},
            {"position": 2, "job_id": "gone", "in_s": None},
            {"position": 3, "job_id": first, "in_s": None},
        ]
        answer = {"jobs": told, "next": None, "total": 3, "basis": "limits", "at": 9}
        asked = await scheduler(world, answer)
        found = await world.ask("GET", "/v1/upcoming?queue=default&after=0&limit=5")
        shown = [(each["position"], each["job"]["id"], each["in_s"]) for each in found["jobs"]]
        assert shown == [(1, second, 60), (3, first, None)]
        assert asked == [{"queue": "default", "after": 0, "limit": 5, "asker": None}]


async def test_a_member_asks_in_the_name_of_its_tenant(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        empty = {"jobs": [], "next": None, "total": 2, "basis": "", "at": 1}
        asked = await scheduler(world, empty)
        await world.ask("PUT", "/v1/tenants/blue", 201, json={})
        async with world.as_("member", "ada", "blue") as ada:
            assert (await ada.ask("GET", "/v1/upcoming"))["total"] == 2
        assert asked[0]["asker"] == "blue"


async def test_clients_that_ask_the_same_share_an_answer_of_the_scheduler(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask("GET", "/v1/upcoming", 503)
        empty = {"jobs": [], "next": None, "total": 2, "basis": "", "at": 1}
        asked = await scheduler(world, empty)
        answers = [world.ask("GET", "/v1/upcoming") for _ in range(20)]
        assert {found["total"] for found in await asyncio.gather(*answers)} == {2}
        assert len(asked) == 1
        for limit in range(1, 80):
            await world.ask("GET", f"/v1/upcoming?limit={limit}")
        assert len(asked) == 80


async def test_a_limit_out_of_bounds_and_a_silent_scheduler_are_problems(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask("GET", "/v1/upcoming?limit=1001", 422)
        problem = await world.ask("GET", "/v1/upcoming", 503)
        assert "the scheduler does not answer" in problem["detail"]


async def test_many_questions_of_one_tenant_wait_behind_each_other_and_delay_no_other_tenant(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        asked: list[str] = []
        answered = asyncio.Event()

        async def on_ask(subject: str, data: bytes) -> bytes:
            asker = msgspec.msgpack.decode(data)["asker"]
            asked.append(asker)
            if asker == "greedy":
                await answered.wait()
            empty = {"jobs": [], "next": None, "total": 2, "basis": "", "at": 1}
            return msgspec.json.encode(empty)

        await world.bus.subscribe(subjects.ask_scheduler("upcoming"), on_ask, concurrent=True)
        for tenant in ("greedy", "quiet"):
            await world.ask("PUT", f"/v1/tenants/{tenant}", 201, json={})
        async with (
            world.as_("viewer", "mallory", "greedy") as mallory,
            world.as_("viewer", "ada", "quiet") as ada,
        ):

            async def one(after: int) -> int:
                url = f"{mallory.url}/v1/upcoming?after={after}"
                async with mallory.session.get(url) as response:
                    return response.status

            flood = [asyncio.create_task(one(after)) for after in range(40)]
            while sum(task.done() for task in flood) < 40 - QUESTIONS_MAX:
                await asyncio.sleep(0.01)
            assert {task.result() for task in flood if task.done()} == {429}
            assert (await ada.ask("GET", "/v1/upcoming"))["total"] == 2
            assert asked == ["greedy", "quiet"]
            answered.set()
            assert sorted(await asyncio.gather(*flood)).count(200) == QUESTIONS_MAX
