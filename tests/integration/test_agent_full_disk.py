"""An agent on whose disk jobs have left no space: it stays, it starts again, and jobs go on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import world_at

from libs.common import facts as f
from libs.common.life import gpu_life
from libs.common.messages import Roster
from services.node_agent.core import kept_devices
from services.node_agent.core import observations as o
from services.node_agent.core.devices import Trouble
from services.node_agent.incarnation import IncarnationFile
from services.node_agent.memory.pools import RETURNED
from services.node_agent.peers.kept_roster import RosterFile
from services.node_agent.peers.peers import Kept

DISK = "size=8m"
TROUBLE = Trouble(gpu_life.OFFLINE, "it was tried")
CHECKS = {"driver": "answers"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", folder]
    if subprocess.run(line, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while True:
            file.write(bytes(1 << 16))


async def test_an_agent_starts_again_on_a_full_disk_and_keeps_its_job(disk: Path) -> None:
    async with world_at(disk / "state") as world:
        await world.start("j", "while [ ! -e go ]; do sleep 0.02; done; exit 5")
        await world.said(f.JobStarted, "j")
        fill(disk)
        for incarnation in (2, 3):
            await world.drop()
            await world.begin()
            assert world.agent.state.incarnation == incarnation
        (world.state_dir / "go").mkdir()
        assert (await world.said(f.JobFinished, "j")).exit_code == 5
        assert await IncarnationFile(world.state_dir).load() == 3


async def test_troubles_of_devices_are_kept_on_a_full_disk(disk: Path) -> None:
    async with world_at(disk / "state") as world:
        fill(disk)
        uuid = world.agent.devices.inventory[0].uuid
        world.agent.tell(o.DeviceTroubleChanged(uuid, "burn_in_failed", TROUBLE))
        await world.until(lambda: bool(world.facts(f.GpuFaulted)))
        kept = await IncarnationFile(world.state_dir).kept(kept_devices.FILE)
        assert str(uuid).encode() in kept
        world.agent.tell(o.DeviceTroubleChanged(uuid, "burn_in_failed", None, CHECKS))
        await world.until(lambda: bool(world.facts(f.GpuRecovered)))
        kept = await IncarnationFile(world.state_dir).kept(kept_devices.FILE)
        assert b"burn_in_failed" not in kept


async def test_an_agent_without_reserved_space_goes_on_and_stores_later(disk: Path) -> None:
    async with world_at(disk / "state") as world:
        for path in world.state_dir.glob("devices.*"):
            path.unlink()
        fill(disk)
        uuid = world.agent.devices.inventory[1].uuid
        world.agent.tell(o.DeviceTroubleChanged(uuid, "burn_in_failed", TROUBLE))
        await world.until(lambda: bool(world.facts(f.GpuFaulted)))
        (disk / "filler").unlink()
        await world.start("j", "exit 4")
        assert (await world.said(f.JobFinished, "j")).exit_code == 4


async def test_job_with_a_pool_ends_on_a_full_disk_and_the_next_is_refused(disk: Path) -> None:
    async with world_at(disk / "state") as world:
        script = "while [ ! -e go ]; do sleep 0.02; done; exit 5"
        await world.start("first", script, host_pool_bytes=1 << 20)
        await world.said(f.JobStarted, "first")
        (world.state_dir / "go").mkdir()
        fill(disk)
        released = await world.said(f.JobReleased, "first")
        assert released.checks["pools"] == RETURNED
        world.closed("first")
        await world.start("second", "true", host_pool_bytes=1 << 20)
        assert "No space left" in (await world.said(f.JobRefused, "second")).reason
        (disk / "filler").unlink()
        await world.start("third", "exit 4", host_pool_bytes=1 << 20)
        assert (await world.said(f.JobFinished, "third")).exit_code == 4


async def test_a_roster_that_cannot_be_stored_leaves_the_one_before(disk: Path) -> None:
    keeper = RosterFile(disk)
    await keeper.store(Kept("127.0.0.1:9", Roster("home")))
    fill(disk)
    with pytest.raises(OSError, match="space"):
        await keeper.store(Kept("127.0.0.1:9" * 10_000, Roster("home")))
    assert await keeper.load() == Kept("127.0.0.1:9", Roster("home"))
