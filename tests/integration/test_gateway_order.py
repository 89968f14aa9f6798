"""Queues, dependencies, hold, release, requeue and update over real HTTP: what is recorded, and who
may.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        yield found


async def test_nodes_are_kept_for_a_tenant_listed_named_by_a_job_and_given_back(
    world: World,
) -> None:
    await world.writers.register("n1")
    await world.settle()
    wish = {
        "nodes": ["n1"],
        "users": ["default/ada"],
        "duration": "2h",
        "start": "2030-01-01T00:00:00Z",
    }
    await world.ask("PUT", "/v1/reservations/course", 422, json=wish)
    made = await world.ask("PUT", "/v1/reservations/course", 201, json={**wish, "start": ""})
    assert (made["nodes"], made["users"], made["maintenance"]) == (["n1"], ["default/ada"], False)
    assert [
        each["name"] for each in (await world.ask("GET", "/v1/reservations"))["reservations"]
    ] == ["course"]
    async with world.as_("member", "ada") as ada, world.as_("member", "eve") as eve:
        assert (await ada.submit(reservation="course"))["state"] == "pending"
        assert (
            "not for eve"
            in (
                await eve.ask(
                    "POST", "/v1/jobs", 403, json={"command": ["x"], "reservation": "course"}
                )
            )["detail"]
        )
        await eve.ask("DELETE", "/v1/reservations/course", 403)
    await world.ask("DELETE", "/v1/reservations/course", 204)
    assert (await world.ask("GET", "/v1/reservations"))["reservations"] == []


async def test_a_queue_is_set_listed_and_named_by_a_job(world: World) -> None:
    await world.ask("POST", "/v1/jobs", 422, json={"command": ["x"], "queue": "night"})
    await world.ask("PUT", "/v1/queues/night", 201, json={"policy": "fair_share", "weight": 50})
    assert (await world.submit(queue="night"))["queue"] == "night"
    queues = {queue["name"]: queue for queue in (await world.ask("GET", "/v1/queues"))["queues"]}
    assert (
        queues["night"]["policy"],
        queues["night"]["jobs_waiting"],
        queues["default"]["policy"],
    ) == ("fair_share", 1, "")
    async with world.as_("operator", "eve") as eve:
        await eve.ask("PUT", "/v1/queues/night", 403, json={"policy": "fifo"})


async def test_a_job_is_held_changed_and_released(world: World) -> None:
    job = (await world.submit(name="train", hold=True))["id"]
    assert (await world.ask("GET", f"/v1/jobs/{job}"))["held"]
    assert (await world.ask("PATCH", f"/v1/jobs/{job}", json={"priority": 90, "time_limit": "1h"}))[
        "priority"
    ] == 90
    assert not (await world.ask("POST", f"/v1/jobs/{job}/release", 202))["held"]
    assert (await world.ask("POST", f"/v1/jobs/{job}/hold", 202))["held"]
    await world.ask("POST", f"/v1/jobs/{job}/requeue", 409)
    later = await world.submit(after="afterok:train")
    assert later["after"] == [job]
    assert [fact.held for fact in await world.said() if isinstance(fact, f.JobUpdated)] == [
        None,
        False,
        True,
    ]


async def test_a_member_changes_only_their_own(world: World) -> None:
    theirs = (await world.submit())["id"]
    async with world.as_("member", "ada") as ada:
        for verb in ("hold", "release", "requeue"):
            await ada.ask("POST", f"/v1/jobs/{theirs}/{verb}", 403)
        await ada.ask("PATCH", f"/v1/jobs/{theirs}", 403, json={"priority": 1})
