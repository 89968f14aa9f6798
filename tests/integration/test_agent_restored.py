"""An agent after a restore: its attempts are of a history that the log does not have.

The test is its scheduler, whose sequences are lower than those that the agent knew before.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio

from libs.common import facts as f
from libs.common import reasons
from services.node_agent.core.apply import USED_AGAIN
from services.node_agent.supervisor import records
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
    """The job waited in the backup, ran after it, and ended after the restore."""
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


async def test_a_number_of_which_only_the_directory_is_left_is_refused_too(world: World) -> None:
    """The attempt ended before the restore. The agent starts again for the restore, and remembers
    no attempts that are over.
    """
    await world.start("j", "exit 0")
    await world.said(f.JobReleased, "j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    await world.drop()
    world.scheduler.starts.clear()
    await world.begin()
    order = world.order("j", "exit 0", requeue=False)
    await world.place(order)
    assert (await world.said(f.JobRefused, "j")).reason == USED_AGAIN
    assert world.of("j") == ["job.started", "job.finished", "job.released", "job.refused"]


async def test_a_number_that_is_used_again_at_the_same_sequence_is_refused_too(
    world: World,
) -> None:
    """By chance the restored log placed the job at the sequence of a lost commit."""
    first = await world.start("j", "exit 0")
    await world.said(f.JobReleased, "j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    await world.drop()
    world.scheduler.starts.clear()
    await world.begin()
    incarnation = world.agent.state.incarnation
    assert incarnation > first.incarnation
    await world.place(msgspec.structs.replace(first, incarnation=incarnation))
    assert (await world.said(f.JobRefused, "j")).reason == USED_AGAIN
    assert world.of("j") == ["job.started", "job.finished", "job.released", "job.refused"]


async def test_an_order_that_comes_again_after_its_attempt_is_over_starts_nothing(
    world: World,
) -> None:
    """The directory names the order that started its attempt, and the agent has forgotten it."""
    first = await world.start("j", "exit 0")
    await world.said(f.JobReleased, "j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    await world.until(lambda: "j.1" in world.agent.state.over)
    world.agent.state.over.clear()
    await world.place(first)
    assert (await world.said(f.JobFinished, "j", count=2)).reason == reasons.SUPERVISOR_LOST
