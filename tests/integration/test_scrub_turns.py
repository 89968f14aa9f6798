"""Several attempts start on a device that must still be scrubbed: the first one scrubs it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import World, world_at
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId
from services.node_agent.core.attempt import Attempt
from services.node_agent.drivers.readings import Command, Done, Lacking

DEVICE = GpuId("GPU-n-0")
OTHER = GpuId("GPU-n-1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path) as made:
        yield made


async def test_first_of_two_jobs_that_wait_for_a_device_scrubs_it(
    world: World, tmp_path: Path
) -> None:
    scrub = world.agent.devices.scrub
    scrub.command.command = f"sleep 0.1; echo once >> {tmp_path}/cleared"
    await scrub.owe([DEVICE])
    async with scrub.turn(DEVICE):
        for job in ("x", "y"):
            order = world.order(job, f"test -e {tmp_path}/cleared")
            await world.place(replace(order, gpus=(GpuHold(DEVICE, 50),)))
        await world.until(
            lambda: [one.phase for one in world.agent.state.attempts.values()] == ["launching"] * 2
        )
    for job in ("x", "y"):
        assert (await world.said(f.JobFinished, job)).exit_code == 0


async def test_first_of_two_jobs_that_wait_for_parts_of_a_card_resets_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset: list[GpuId] = []

    async def control(uuid: GpuId, command: Command) -> Done | Lacking:
        reset.append(uuid)
        return Done()

    scrub, parts = world.agent.devices.scrub, [GpuId(f"{DEVICE}.{part}") for part in (1, 2)]
    monkeypatch.setattr(world.driver, "control", control)
    scrub.command.command = "reset"
    await scrub.owe([*parts, OTHER])
    for job, part in zip(("x", "y"), parts, strict=True):
        world.agent.state.attempts[f"{job}.1"] = Attempt(
            ref=AttemptRef(JobId(job), 1), phase="launching", gpus=(part,)
        )
    await asyncio.gather(scrub.over("x.1", parts[:1]), scrub.over("y.1", parts[1:]))
    assert reset == parts[:1] and list(scrub.owed) == [OTHER]


async def test_device_of_a_job_that_starts_is_not_scrubbed_for_another(
    world: World, tmp_path: Path
) -> None:
    scrub = world.agent.devices.scrub
    scrub.command.command = f"touch {tmp_path}/cleared"
    for job in ("x", "y"):
        world.agent.state.attempts[f"{job}.1"] = Attempt(
            ref=AttemptRef(JobId(job), 1), phase="launching", gpus=(DEVICE,)
        )
    await scrub.over("x.1", [DEVICE])
    await scrub.owe([DEVICE])
    await scrub.over("y.1", [DEVICE])
    assert not (tmp_path / "cleared").exists() and list(scrub.owed) == [DEVICE]
    for job in ("x", "y"):
        del world.agent.state.attempts[f"{job}.1"]
