"""GPUs that get another index while the start of a job is prepared. A real agent over AMD's real
binding and a library built from C, which divides its cards.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import World, world_at
from test_mig_jobs import start, tell

from libs.common import facts as f
from libs.common.model import GpuId
from services.node_agent.devices.device_filters import DeviceFilters
from services.node_agent.directories.protocol import Launch
from services.node_agent.drivers import readings as r
from services.node_agent.drivers import renumbering
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.health import operator_command
from services.node_agent.health.operator_command import OperatorCommand
from services.node_agent.health.preflight import Preflight
from services.node_agent.jobs.environment import passed_on
from tests.drivers.conftest import fakes, libraries  # noqa: F401
from tests.drivers.fakes import Fakes
from tests.drivers.test_amd import FIRST, SECOND

PART = GpuId(f"{SECOND}.1")
SHOW = "echo $ROCR_VISIBLE_DEVICES"


@pytest.fixture
async def world(tmp_path: Path, fakes: Fakes) -> AsyncIterator[World]:  # noqa: F811
    """A node whose second card is divided, so that jobs get indexes."""
    fakes.tell("amd", "count * 2")
    driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("amd", 10.0, 20.0))],
        sys_root=tmp_path / "sys",
        proc_root=tmp_path / "proc",
    )
    async with world_at(tmp_path / "state", real=driver) as made:
        assert (await tell(made, "compute-partition", "CPX", SECOND)).outcome == "done"
        yield made
    await driver.close()


def index(world: World) -> int:
    return next(gpu.index for gpu in world.agent.devices.inventory if gpu.uuid == PART)


async def test_a_job_gets_the_index_of_after_its_preflight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, go, look = asyncio.Event(), asyncio.Event(), Preflight.look

    async def late(self: Preflight, key: str, uuids: list[GpuId]) -> None:
        waits.set()
        await go.wait()
        await look(self, key, uuids)

    monkeypatch.setattr(Preflight, "look", late)
    before = index(world)
    await start(world, "j", SHOW, slices=0, uuid=PART)
    await waits.wait()
    assert (await tell(world, "compute-partition", "CPX", FIRST)).outcome == "done"
    assert index(world) > before
    go.set()
    await world.said(f.JobFinished, "j")
    assert (await world.output("j")).data == f"{index(world)}\n".encode()


async def test_a_job_whose_index_changes_after_its_environment_is_made_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, go, ready = asyncio.Event(), asyncio.Event(), DeviceFilters.ready

    async def late(self: DeviceFilters, launch: Launch) -> Launch:
        waits.set()
        await go.wait()
        return await ready(self, launch)

    monkeypatch.setattr(DeviceFilters, "ready", late)
    before = index(world)
    await start(world, "j", SHOW, slices=0, uuid=PART)
    await waits.wait()
    assert (await tell(world, "compute-partition", "CPX", FIRST)).outcome == "done"
    go.set()
    assert (await world.said(f.JobRefused, "j")).reason == (
        f"j.1 cannot be started: GPU {PART} got another index than {before} while the start was "
        "prepared, because the GPUs of this node changed. Muster places the job again"
    )


async def test_indexes_do_not_count_from_the_division_of_a_card_to_the_next_inventory(
    world: World,
) -> None:
    driver = world.agent.devices.driver
    assert await driver.renumbered("amd") == ""
    await driver.control(FIRST, r.SetPartition("CPX"))
    assert await driver.renumbered("amd") == renumbering.LISTED_AGAIN
    await driver.inventory()
    assert await driver.renumbered("amd") == ""


async def test_indexes_do_not_count_while_the_vendor_does_not_list_its_devices(
    world: World,
    fakes: Fakes,  # noqa: F811
) -> None:
    driver = world.real
    assert isinstance(driver, LocalDriver)
    driver.vendors[0].process.begin_s = 0.5
    await driver.control(FIRST, r.SetPartition("CPX"))
    fakes.tell("amd", "count * 2", "amdsmi_init * hang")
    await driver.inventory()
    assert await driver.renumbered("amd") == renumbering.LISTED_AGAIN
    fakes.tell("amd", "count * 2")
    driver.vendors[0].process.begin_s = 20.0
    await driver.inventory()
    assert await driver.renumbered("amd") == ""


async def test_a_command_of_the_operator_waits_while_another_card_is_divided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = world.agent.devices
    command = OperatorCommand(
        "echo $ROCR_VISIBLE_DEVICES; exit 3",
        10_000,
        passed_on(os.environ),
        gpus=lambda: work.inventory,
        renumbered=work.driver.renumbered,
    )
    before = index(world)
    await work.driver.control(FIRST, r.SetPartition("CPX"))
    tried = asyncio.create_task(command.on(PART))
    assert await asyncio.wait({tried}, timeout=0.3) == (set(), {tried})
    work.inventory = await work.driver.inventory()
    assert index(world) > before
    assert await tried == f"its command ended with 3: {index(world)}"
    monkeypatch.setattr(operator_command, "RENUMBERED_S", 0.0)
    await work.driver.control(FIRST, r.SetPartition("SPX"))
    assert renumbering.LISTED_AGAIN in await command.on(PART)
