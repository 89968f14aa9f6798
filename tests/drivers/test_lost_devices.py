"""A GPU that is lost while its agent is down.

Several agents run one after the other with one state directory, over the fake NVML.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.error_catalogue import REBOOT_NODE
from libs.common.devices.error_rows import catalogue
from libs.common.fold import apply_entry
from libs.common.life import gpu_life
from libs.common.model import GpuHold, GpuId
from libs.common.state.cluster import Cluster
from services.node_agent.core.devices import Policy
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers.absent import FILE
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.health.lost_devices import NO_DRIVER
from services.node_agent.metrics import exposition
from services.node_agent.service import Agent
from tests.drivers import trees
from tests.drivers.fakes import Fakes
from tests.integration.agent_world import NODE, World, world_at

FIRST, SECOND = GpuId("GPU-fake-0"), GpuId("GPU-fake-1")
LOST_SECOND = ("count * 2", "* 1 15")
GONE = "xid 79"


class LocalWorld(World):
    """Each agent has a driver of its own, as each process has."""

    root: Path
    removed: tuple[str, ...] = ()

    def make(self, state_dir: Path | None = None) -> Agent:
        process = VendorProcess("nvidia", 5.0, 20.0)
        self.driver = LocalDriver(
            vendors=[VendorDevices(process)], sys_root=self.root, node_id="n", removed=self.removed
        )
        agent = super().make(state_dir)
        agent.sampling = Sampling(self.driver, 20)
        agent.state.devices.policy = Policy(catalogue=catalogue())
        return agent

    async def again(self) -> f.Commit:
        """Kill the agent and start another one on its state directory; return its registration."""
        await self.drop()
        await self.driver.close()
        await self.begin()
        return next(
            commit
            for commit in reversed(self.commits())
            if isinstance(commit.facts[0], f.NodeRegistered)
        )


@pytest_asyncio.fixture
async def world(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalWorld]:
    LocalWorld.root = tmp_path / "sys"
    for bus in (1, 2):
        trees.gpu(LocalWorld.root, f"0000:{bus:02x}:00.0")
    fakes.tell("nvidia", "count * 2")
    monkeypatch.setattr("tests.integration.agent_world.World", LocalWorld)
    async with world_at(tmp_path / "state") as made:
        assert isinstance(made, LocalWorld)
        yield made
        await made.driver.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not holds():
            await asyncio.sleep(0.01)


def faults(world: World) -> list[tuple[str, str, str]]:
    return [(fact.uuid, fact.reason, fact.verdict) for fact in world.facts(f.GpuFaulted)]


@pytest.mark.attack
async def test_gpu_lost_during_the_agents_start_is_in_the_registration(
    world: LocalWorld, fakes: Fakes
) -> None:
    fakes.tell("nvidia", *LOST_SECOND)
    commit = await world.again()
    registered = commit.facts[0]
    assert isinstance(registered, f.NodeRegistered)
    assert [gpu.uuid for gpu in registered.gpus] == [FIRST, SECOND]
    assert registered.drivers == {"nvidia": "580.65.06", "nvml": "13.580.65.06", "cuda": "13.0"}
    assert registered.absent == (SECOND,)
    assert [type(fact) for fact in commit.facts[1:]] == [f.GpuErrorSeen, f.GpuFaulted]
    assert faults(world) == [(SECOND, GONE, REBOOT_NODE)]
    assert world.facts(f.GpuRecovered) == []


@pytest.mark.attack
async def test_job_on_a_gpu_lost_during_the_agents_start_ends(
    world: LocalWorld, fakes: Fakes
) -> None:
    order = world.order("a", "sleep 60")
    await world.place(replace(order, gpus=(GpuHold(SECOND),)))
    await world.said(f.JobStarted, "a")
    fakes.tell("nvidia", *LOST_SECOND)
    await world.again()
    finished = await world.said(f.JobFinished, "a")
    assert finished.reason == "gpu_fault"
    await world.said(f.JobReleased, "a")


async def test_job_on_another_gpu_runs_on(world: LocalWorld, fakes: Fakes) -> None:
    await world.place(replace(world.order("a", "sleep 60"), gpus=(GpuHold(FIRST),)))
    await world.said(f.JobStarted, "a")
    fakes.tell("nvidia", *LOST_SECOND)
    await world.again()
    await until(lambda: faults(world) != [])
    assert world.facts(f.JobFinished) == []


async def test_each_agent_reports_a_lost_gpu_but_its_error_counts_once(
    world: LocalWorld, fakes: Fakes
) -> None:
    fakes.tell("nvidia", *LOST_SECOND)
    for _ in range(3):
        await world.again()
    assert faults(world) == 3 * [(SECOND, GONE, REBOOT_NODE)]
    assert len(world.facts(f.GpuErrorSeen)) == 1


async def test_gpu_that_has_left_the_bus_stays_lost_until_an_operator_takes_it_out(
    world: LocalWorld, fakes: Fakes
) -> None:
    (world.root / "bus/pci/devices/0000:02:00.0").unlink()
    fakes.tell("nvidia", "count * 1")
    await world.again()
    await world.again()
    assert {uuid for uuid, _, _ in faults(world)} == {SECOND}
    world.removed = (SECOND,)
    commit = await world.again()
    assert isinstance(commit.facts[0], f.NodeRegistered)
    assert [gpu.uuid for gpu in commit.facts[0].gpus] == [FIRST] and commit.facts[1:] == ()
    world.removed = ()
    commit = await world.again()
    assert isinstance(commit.facts[0], f.NodeRegistered) and len(commit.facts[0].gpus) == 1
    assert world.facts(f.GpuRecovered) == []


async def test_library_that_cannot_be_opened_puts_gpus_out_of_use_and_ends_no_job(
    world: LocalWorld, fakes: Fakes
) -> None:
    await world.place(replace(world.order("a", "sleep 60"), gpus=(GpuHold(SECOND),)))
    await world.said(f.JobStarted, "a")
    fakes.tell("nvidia", "nvmlInitWithFlags * 18")
    await world.again()
    assert faults(world) == [(FIRST, NO_DRIVER, ""), (SECOND, NO_DRIVER, "")]
    fakes.tell("nvidia", "count * 2")
    await world.again()
    await until(lambda: len(world.facts(f.GpuRecovered)) == 2)
    assert world.facts(f.JobFinished) == [] and world.facts(f.GpuErrorSeen) == []


async def test_job_whose_gpu_no_file_and_no_driver_knows_ends(
    world: LocalWorld, fakes: Fakes
) -> None:
    await world.place(replace(world.order("a", "sleep 60"), gpus=(GpuHold(SECOND),)))
    await world.said(f.JobStarted, "a")
    await world.drop()
    (world.state_dir / FILE).write_text("no JSON")
    (world.root / "bus/pci/devices/0000:02:00.0").unlink()
    fakes.tell("nvidia", "count * 1")
    await world.again()
    assert (await world.said(f.JobFinished, "a")).reason == "gpu_fault"


async def test_every_reader_sees_the_lost_gpu(world: LocalWorld, fakes: Fakes) -> None:
    fakes.tell("nvidia", *LOST_SECOND)
    await world.again()
    cluster = Cluster()
    for entry in world.stream.entries:
        apply_entry(cluster, entry.seq, entry.subject, f.decode(entry.data))
    view = cluster.gpus[SECOND]
    assert (
        view.present
        and not view.takes_work
        and view.health == gpu_life.OFFLINE
        and view.away == GONE
    )
    assert cluster.nodes[NODE].state == "degraded"
    text = exposition.text("n", world.agent.devices.inventory, await world.driver.sample(), {})
    assert 'muster_gpu_up{gpu="1",UUID="GPU-fake-1"' in text and text.count("muster_gpu_up{") == 2
