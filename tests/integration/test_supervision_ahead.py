"""Supervisors forked ahead: they end with the zygote, and a killed one is passed over."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from supervision_world import WAIT_S, World, gone, kill, world_at

from services.node_agent.supervision import ahead, processes


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


async def waiting(world: World) -> list[int]:
    """The living children of the zygote, once there are as many as wait."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = [processes.process(pid) for pid in processes.children(world.supervisors._zygote.pid)]
            living = [each.pid for each in found if each is not None and each.state not in "ZX"]
            if len(living) == ahead.WAITING and len(found) == ahead.WAITING:
                return living
            await asyncio.sleep(0.005)


async def test_those_that_wait_end_with_the_zygote(world: World) -> None:
    before = await waiting(world)
    kill(world.supervisors._zygote.pid)
    for pid in before:
        await gone(pid)
    assert (await world.run("job", "exit 3"))["exit_code"] == 3


async def test_one_that_is_killed_while_it_waits_is_replaced_and_leaves_no_zombie(world: World) -> None:
    before = await waiting(world)
    for pid in before:
        kill(pid)
    assert (await world.run("job", "exit 3"))["exit_code"] == 3
    assert not set(before) & set(await waiting(world))


async def test_an_order_is_taken_by_one_that_waited_and_another_takes_its_place(world: World) -> None:
    before = await waiting(world)
    key = await world.shell("job", "sleep 600")
    assert (await world.told(key, "started"))["pid"] in before
    await world.supervisors.kill(key)
    await world.told(key, "exited")
    assert len(await waiting(world)) == ahead.WAITING
