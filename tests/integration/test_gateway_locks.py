"""/v1/locks over real HTTP, decided by a real scheduler over the same log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.leadership.leading import give_signs
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.log_memory import MemoryLog
from libs.common.transport.snapshot_store import MemorySnapshots
from services.scheduler.service import Scheduler
from tests.integration.gateway_world import World, gateway_world


class Alone:
    """The leadership of the only scheduler."""

    async def renew(self, epoch: int) -> None:
        return


def scheduler_of(world: World, **changed: Any) -> Scheduler:
    """The only scheduler; `changed` are settings."""
    return Scheduler(
        log=MemoryLog(world.log.stream, idle_s=0.05),
        bus=world.bus,
        clock=SystemClock(),
        settings=Settings(cluster_id="test", instance="s1", **changed),
        signs=lambda leading: give_signs(leading, world.bus, Alone()),
        store=MemorySnapshots(),
    )


@asynccontextmanager
async def deciding(world: World, **changed: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A scheduler that decides; cancel it to stop it earlier. `changed` are settings."""
    decides = asyncio.create_task(scheduler_of(world, **changed).run(asyncio.Event()))
    try:
        yield decides
    finally:
        decides.cancel()
        await asyncio.gather(decides, return_exceptions=True)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found, deciding(found):
        yield found


async def acquire(world: World, holder: str, status: int = 200, **more: object) -> dict[str, Any]:
    body = {"holder": holder, "ttl": 5, **more}
    answer: dict[str, Any] = await world.ask("POST", "/v1/locks/data/acquire", status, json=body)
    return answer


async def ask(world: World, what: str, holder: str, status: int = 200) -> dict[str, Any]:
    path = f"/v1/locks/data/{what}"
    answer: dict[str, Any] = await world.ask("POST", path, status, json={"holder": holder})
    return answer


async def test_a_lock_is_acquired_shown_and_released(world: World) -> None:
    held = await acquire(world, "a")
    assert (held["state"], held["holder"], held["ttl_s"]) == ("held", "a", 5)
    assert held["token"] > 0
    (listed,) = (await world.ask("GET", "/v1/locks"))["locks"]
    assert (listed["name"], listed["holder"], listed["token"]) == ("data", "a", held["token"])
    assert await world.ask("GET", "/v1/locks/data") == listed
    assert (await ask(world, "release", "a"))["state"] == "over"
    assert (await world.ask("GET", "/v1/locks"))["locks"] == []
    assert "is free" in (await world.ask("GET", "/v1/locks/data", 404))["detail"]


async def test_a_held_lock_is_refused_to_a_client_that_does_not_wait(world: World) -> None:
    await acquire(world, "a")
    refused = await acquire(world, "b", 409)
    assert refused["reason"] == "wait_over"


async def test_a_client_that_waits_gets_the_lock_with_a_larger_token(world: World) -> None:
    first = await acquire(world, "a")
    waits = asyncio.create_task(acquire(world, "b", wait="1m"))
    while (await world.ask("GET", "/v1/locks/data"))["waiting"] == 0:
        await asyncio.sleep(0.02)
    await ask(world, "release", "a")
    second = await waits
    assert (second["state"], second["holder"]) == ("held", "b")
    assert second["token"] > first["token"]


async def test_a_repeated_request_finds_its_claim_and_renews_it(world: World) -> None:
    first = await acquire(world, "a")
    again = await acquire(world, "a")
    assert again["token"] == first["token"]
    said = [type(fact) for fact in await world.said()]
    assert said.count(f.LockRequested) == said.count(f.LockGranted) == 1
    assert said.count(f.LockRenewed) == 1


async def test_a_renewal_answers_after_the_schedulers(world: World) -> None:
    held = await acquire(world, "a")
    renewed = await ask(world, "renew", "a")
    assert renewed["token"] == held["token"]
    assert renewed["expires_at"] > held["expires_at"]
    refused = await ask(world, "renew", "a", 429)
    assert "at most every 1 s" in refused["detail"]


async def test_a_lock_that_is_not_renewed_is_freed_and_its_holder_hears_so(world: World) -> None:
    await acquire(world, "a")
    second = await acquire(world, "b", wait="1m")
    assert second["state"] == "held"
    lost = await ask(world, "renew", "a", 409)
    assert lost["reason"] == "expired"
    assert (await acquire(world, "a", 409))["reason"] == "expired"


async def test_locks_of_another_tenant_are_others(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    await acquire(world, "a")
    async with (
        world.as_("member", "ada", "physics") as ada,
        world.as_("member", "bob", "physics") as bob,
    ):
        assert (await ada.ask("GET", "/v1/locks"))["locks"] == []
        await ada.ask("GET", "/v1/locks/data?tenant=default", 404)
        assert (await acquire(ada, "a"))["state"] == "held"
        assert "belongs to ada" in (await ask(bob, "release", "a", 403))["detail"]
    assert [lock["tenant"] for lock in (await world.ask("GET", "/v1/locks"))["locks"]] == [
        "default",
        "physics",
    ]
    shown = await world.ask("GET", "/v1/locks/data?tenant=physics")
    assert shown["user"] == "ada"


async def test_bad_requests_name_their_field(world: World) -> None:
    assert "ttl" in (await acquire(world, "a", 422, ttl=1))["detail"]
    assert "holder" in (await acquire(world, "a b", 422))["detail"]
    assert "acquire the lock first" in (await ask(world, "renew", "a", 404))["detail"]
