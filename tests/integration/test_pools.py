"""Memory pools of real jobs under a real agent: admitted at the start, refused beyond the pool,
returned by the release check, and kept through the ends of agent and broker.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.messages.memory_messages import HOST_MEMORY
from libs.common.model import AttemptRef, Gpu, GpuHold, GpuId, JobId
from services.node_agent.memory.keeper import Keeper
from services.node_agent.memory.pools import Pools
from tests.integration.agent_world import World

MIB = 1 << 20
FIRST = GpuId("GPU-n-0")
ROOT = Path(__file__).parents[2]
CLIENT = """
import os, sys, time
sys.path.insert(0, {root!r})
from libs.job.memory.broker_client import BrokerClient, BrokerError
client = BrokerClient.from_environment()
"""
HOLDS = (
    CLIENT
    + """
got = client.grant(0, 6 << 20, "weights")
near = client.grant(-1, 2 << 20, "staging")
try:
    client.grant(0, 4 << 20)
except BrokerError as error:
    print(error.reason, error, flush=True)
open("holds", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
again = client.stats()
print(again["used"], flush=True)
"""
)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.scheduler.listen()
    await made.begin()
    yield made
    keeper = keeper_of(made)
    await made.end()
    if keeper.pid:
        _end(keeper.pid)


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def keeper_of(world: World) -> Keeper:
    pools: Pools = world.agent.means.pools
    assert pools.keeper is not None
    return pools.keeper


async def holding(world: World, job: str = "j", on: GpuId = FIRST) -> None:
    program = world.state_dir / "program.py"
    program.write_text(HOLDS.format(root=str(ROOT)))
    order = world.order(
        job,
        f"exec {sys.executable} {program}",
        pool_bytes=8 * MIB,
        host_pool_bytes=2 * MIB,
    )
    await world.place(replace(order, gpus=(GpuHold(on),)))
    await world.until(lambda: (world.state_dir / "holds").exists())


def owned(world: World) -> int:
    return sum(keeper_of(world).owned().values())


async def output(world: World, job: str) -> str:
    piece = await world.agent.jobs.read_output(AttemptRef(JobId(job), 1), "stdout", 0, 1 << 16)
    assert piece is not None
    return piece.data.decode()


async def test_a_job_with_a_pool_gets_memory_and_its_release_returns_it(world: World) -> None:
    await holding(world)
    await world.until(lambda: owned(world) == 8 * MIB)
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    assert released.checks["pools"] == "returned"
    said = await output(world, "j")
    assert (
        "quota 4194304 bytes of device 0 are more than the pool has left: 6291456 of 8388608"
        in (said)
    )
    assert "{0: 6291456, -1: 2097152}" in said
    assert (owned(world), keeper_of(world).attempts) == (0, {})


async def test_a_job_without_a_pool_starts_no_broker(world: World) -> None:
    await world.start("j", "env")
    released = await world.said(f.JobReleased, "j")
    assert "pools" not in released.checks
    assert "MUSTER_MEMORY" not in await output(world, "j")
    assert keeper_of(world).pid == 0


async def test_memory_is_returned_when_the_job_is_killed(world: World) -> None:
    await holding(world)
    await world.agent.jobs.kill(AttemptRef(JobId("j"), 1))
    assert (await world.said(f.JobReleased, "j")).checks["pools"] == "returned"
    assert owned(world) == 0


async def test_grants_live_on_while_the_agent_and_the_broker_are_replaced(world: World) -> None:
    await holding(world)
    first = keeper_of(world).pid
    await world.drop()
    await world.begin()
    await world.until(lambda: owned(world) == 8 * MIB)
    assert keeper_of(world).pid == first
    os.kill(first, signal.SIGKILL)
    await world.until(lambda: keeper_of(world).pid != first)
    assert owned(world) == 8 * MIB
    (world.state_dir / "go").touch()
    assert (await world.said(f.JobReleased, "j")).checks["pools"] == "returned"
    assert "{0: 6291456, -1: 2097152}" in await output(world, "j")
    assert owned(world) == 0


async def test_the_receipt_names_returned_memory_when_the_device_is_clean_later(
    world: World,
) -> None:
    """A driver may free a device's memory only after the processes have ended: the release check
    is then repeated.
    """
    (gpu,) = (each.uuid for each in world.driver.gpus[:1])
    world.driver.held[gpu] = "a test holds it"
    await holding(world)
    await world.agent.jobs.kill(AttemptRef(JobId("j"), 1))
    await world.until(lambda: owned(world) == 0)
    await asyncio.sleep(0.3)
    del world.driver.held[gpu]
    assert (await world.said(f.JobReleased, "j")).checks["pools"] == "returned"
    await world.until(lambda: world.agent.means.pools.returned == set())


async def test_memory_stays_with_its_device_when_the_index_of_the_device_changes(
    world: World,
) -> None:
    """As when another card is divided, or when a GPU with a lower index is lost."""
    first, second = world.driver.gpus
    await holding(world, on=second.uuid)
    await world.until(lambda: owned(world) == 8 * MIB)
    await world.drop()
    world.driver.gpus = [replace(second, index=0), replace(first, index=1)]
    await world.begin()
    await world.until(lambda: owned(world) == 8 * MIB)
    used = {row.device for row in world.agent.means.pools.report().used}
    assert used == {second.uuid, HOST_MEMORY}


async def test_host_memory_is_granted_beside_a_gpu_that_no_driver_shows(world: World) -> None:
    unknown = Gpu(
        uuid=GpuId("n-0000:09:00.0"), index=-1, vendor="nvidia", model="unknown", memory_bytes=0
    )
    await world.drop()
    world.driver.gpus = [*world.driver.gpus, unknown]
    await world.begin()
    await holding(world)
    await world.until(lambda: owned(world) == 8 * MIB)
