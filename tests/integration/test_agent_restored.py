"""An agent after a restore: its attempts are of a history that the log does not have.

The test is its scheduler, whose sequences are lower than those that the agent knew before.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from libs.common import facts as f
from services.node_agent.core.apply import USED_AGAIN
from tests.integration.agent_world import World, world_at


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as world:
        yield world


async def test_an_attempt_that_a_restored_log_does_not_know_is_stopped(world: World) -> None:
    world.scheduler.seq = 10_000
    await world.start("j", "sleep 600")
    await world.said(f.JobStarted, "j")
    await world.drop()
    world.closed("j")
    world.scheduler.seq = 100
    await world.begin()
    ended = await world.said(f.JobFinished, "j")
    assert (ended.reason, ended.signal) == ("stopped", 15)
    await world.said(f.JobReleased, "j")


async def test_an_attempt_whose_number_a_restored_log_uses_again_is_refused(world: World) -> None:
    """The job waited in the backup, and ran and ended after it: the restored log places it."""
    await world.start("j", "exit 0")
    await world.said(f.JobReleased, "j")
    await world.until(lambda: "j.1" in world.agent.state.over)
    world.scheduler.seq = len(world.stream.entries)
    order = await world.start("j", "exit 0")
    refused = await world.said(f.JobRefused, "j")
    assert (refused.attempt, refused.reason) == (1, USED_AGAIN)
    await world.until(lambda: "j.1" in world.agent.state.over)
    await world.scheduler.send(order)
    await world.start("k", "exit 0")
    await world.said(f.JobReleased, "k")
    assert world.of("j") == ["job.started", "job.finished", "job.released", "job.refused"]
