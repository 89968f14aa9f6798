"""Jobs that share an NVIDIA device under MPS.

The daemons are processes of a stand-in program. The bindings are real, over a library built from C.
"""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import World, world_at
from mps_world import (
    DEVICE,
    OTHER,
    WAITS,
    Mps,
    begun,
    go,
    order,
    printed,
    under,
)
from supervision_world import kill
from test_agent_process import Cluster, cluster  # noqa: F401

from libs.common import facts as f
from libs.common.model import MPS, GpuHold, GpuId
from services.node_agent.machine import processes
from services.node_agent.sharing.daemon import Known
from services.node_agent.sharing.daemons import Daemons, Program
from tests.drivers.conftest import fakes, libraries  # noqa: F401
from tests.drivers.fakes import Fakes


@pytest.fixture
def mps(tmp_path: Path) -> Mps:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    return Mps(tmp_path / "program")


@pytest.fixture
async def world(tmp_path: Path, mps: Mps, fakes: Fakes) -> AsyncIterator[World]:  # noqa: F811
    async with under(tmp_path / "state", mps) as made:
        yield made


async def test_a_job_is_given_a_daemon_and_its_part_and_the_receipt_says_that_all_of_it_is_gone(
    world: World, mps: Mps
) -> None:
    await world.place(
        order(
            world,
            "j",
            f"echo start_server -uid 0 | {mps.program}; env | grep -e CUDA_ | sort",
            share=30,
        )
    )
    words = (await printed(world, "j")).split()
    released = await world.said(f.JobReleased, "j")
    folder = str(world.state_dir / "mps")
    assert words[0].isdigit() and not processes.is_living(int(words[0]), 0)
    assert [word for word in words[1:] if folder not in word] == [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=24576M",
        f"CUDA_VISIBLE_DEVICES={DEVICE}",
    ]
    assert [word.partition("=")[0] for word in words if folder in word] == [
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PIPE_DIRECTORY",
    ]
    assert released.checks["mps"] == "gone" and world.facts(f.GpuFaulted) == []
    assert (await world.said(f.JobStarted, "j")).isolation == "mps"
    assert mps.alive() == [] and list((world.state_dir / "mps").iterdir()) == []


async def test_jobs_of_a_tenant_share_a_device_s_daemon_and_the_last_of_them_ends_it(
    world: World, mps: Mps
) -> None:
    await begun(world, "a")
    await begun(world, "b")
    assert len(mps.alive()) == 1
    go(world, "a")
    assert (await world.said(f.JobReleased, "a")).checks["mps"] == "other jobs use it"
    assert len(mps.alive()) == 1
    go(world, "b")
    assert (await world.said(f.JobReleased, "b")).checks["mps"] == "gone"
    assert mps.alive() == []


async def test_another_tenant_and_another_device_have_daemons_of_their_own(
    world: World, mps: Mps
) -> None:
    await begun(world, "a")
    await begun(world, "b", tenant="u")
    await begun(world, "c", gpus=(OTHER,))
    await begun(world, "d", gpus=(DEVICE, OTHER))
    assert len(mps.alive()) == 4
    seen = [environment_of(each.pid)["CUDA_VISIBLE_DEVICES"] for each in mps.alive()]
    assert sorted(seen) == [DEVICE, DEVICE, f"{DEVICE},{OTHER}", OTHER]


def environment_of(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


async def test_a_daemon_that_dies_ends_its_jobs_as_the_machine_s_fault_and_the_next_job_has_another(
    world: World, mps: Mps
) -> None:
    await begun(world, "j")
    (daemon,) = mps.alive()
    kill(daemon.pid)
    finished = await world.said(f.JobFinished, "j")
    assert finished.reason == "mps_lost"
    assert (
        finished.detail
        == f"the MPS daemon {daemon.pid} of GPU {DEVICE} died: An instance of this daemon begins"
    )
    assert (await world.said(f.JobReleased, "j")).checks["mps"] == "gone"
    await begun(world, "k")
    assert [each.pid != daemon.pid for each in mps.alive()] == [True]


async def test_a_daemon_that_does_not_start_refuses_the_job_with_its_own_words(
    world: World, mps: Mps
) -> None:
    mps.faults("no-start")
    await world.place(order(world, "j"))
    refused = await world.said(f.JobRefused, "j")
    assert refused.reason == (
        "isolation mps: the MPS daemon did not start: it ended at once: Failed to find the device"
    )
    assert mps.alive() == []
    mps.faults()
    await begun(world, "k")


async def test_a_daemon_that_never_answers_is_ended_and_the_job_refused(
    world: World, mps: Mps
) -> None:
    mps.faults("deaf")
    await world.place(order(world, "j"))
    refused = await world.said(f.JobRefused, "j")
    assert refused.reason.startswith(
        "isolation mps: the MPS daemon did not start: it did not start within 5 s: it did "
        "not answer"
    )
    assert mps.alive() == []


async def test_without_the_control_program_the_node_says_so_and_so_does_the_job(
    world: World, mps: Mps
) -> None:
    assert world.facts(f.NodeRegistered)[-1].isolation["mps"] == "enforced"
    mps.program.unlink()
    await world.place(order(world, "j"))
    lacking = f"{mps.program} is not on this machine (MUSTER_MPS_CONTROL)"
    assert (await world.said(f.JobRefused, "j")).reason == f"isolation mps: {lacking}"
    world.scheduler.starts.clear()
    await world.drop()
    await world.begin()
    assert world.facts(f.NodeRegistered)[-1].isolation["mps"] == f"lost: {lacking}"


async def test_a_daemon_that_ignores_quit_is_killed_and_the_receipt_says_so(
    world: World, mps: Mps
) -> None:
    mps.faults("ignore-quit")
    await world.place(order(world, "j"))
    released = await world.said(f.JobReleased, "j")
    assert released.checks["mps"] == "gone, by force: it did not end when told to quit"
    assert mps.alive() == [] and world.facts(f.GpuFaulted) == []


async def test_a_remaining_mps_server_quarantines_the_device_until_it_is_gone(
    world: World, mps: Mps
) -> None:
    mps.faults("server-stays")
    world.agent.state.release_ns = 300_000_000
    world.agent.means.shares.daemons.program = Program(str(mps.program), 5.0, 3.0)  # type: ignore[union-attr]
    await world.place(order(world, "j", f"echo start_server -uid 0 | {mps.program}"))
    server = int(await printed(world, "j"))
    released = await world.said(f.JobReleased, "j")
    (fault,) = world.facts(f.GpuFaulted)
    assert (fault.uuid, fault.reason, fault.detail) == (
        DEVICE,
        "quarantined",
        f"MPS is left: {server} nvidia-cuda-mps",
    )
    assert (released.checks["devices"], released.checks["mps"]) == (
        "held",
        f"left: {server} nvidia-cuda-mps",
    )
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [DEVICE])
    assert mps.alive() == []


async def test_next_agent_adopts_the_daemon_and_notices_its_death(world: World, mps: Mps) -> None:
    await begun(world, "j")
    (daemon,) = mps.alive()
    await world.drop()
    await world.begin()
    await begun(world, "k")
    assert [each.pid for each in mps.alive()] == [daemon.pid]
    os.kill(daemon.pid, signal.SIGKILL)
    assert (await world.said(f.JobFinished, "j")).reason == "mps_lost"
    assert (await world.said(f.JobFinished, "k")).reason == "mps_lost"


async def test_next_agent_notices_a_daemon_that_died_without_an_agent(
    world: World, mps: Mps
) -> None:
    await begun(world, "j")
    await world.drop()
    kill(mps.alive()[0].pid)
    await world.begin()
    assert (await world.said(f.JobFinished, "j")).reason == "mps_lost"
    assert (await world.said(f.JobReleased, "j")).checks["mps"] == "gone"


async def test_next_agent_ends_the_daemon_of_an_attempt_that_never_started(
    world: World, mps: Mps
) -> None:
    """As by a kill between the daemon's beginning and the job's marker."""
    daemons = world.agent.means.shares.daemons
    assert daemons is not None
    await daemons.hold("j.1", "name", Known(uuids=(DEVICE,), tenant="t", ids=[]))
    assert len(mps.alive()) == 1
    await world.drop()
    await world.begin()
    await world.until(lambda: mps.alive() == [] and list((world.state_dir / "mps").iterdir()) == [])


async def test_a_failed_job_stays_failed_when_its_daemon_ends_before_the_fact_is_stored(
    world: World, mps: Mps
) -> None:
    daemons = world.agent.means.shares.daemons
    assert daemons is not None
    lost: list[str] = []
    next_one = Daemons(world.state_dir, daemons.program, {}, lambda key, how: lost.append(key))
    await next_one.adopt({"j.1": "forgotten"})
    assert lost == [] and next_one.daemons == {}


async def test_amd_devices_use_masks_of_compute_units(
    tmp_path: Path,
    mps: Mps,
    fakes: Fakes,  # noqa: F811
) -> None:
    fakes.tell("nvidia", "count * 0")
    fakes.tell("amd", "count * 1")
    async with under(tmp_path / "state", mps) as world:
        (gpu,) = world.agent.devices.inventory
        await world.place(order(world, "unknown", gpus=(gpu.uuid,)))
        assert (
            "the kernel does not report the number of compute units"
            in (await world.said(f.JobRefused, "unknown")).reason
        )
        world.scheduler.starts.clear()
        await world.drop()
        world.sys_root = kfd(tmp_path / "sys", gpu.pci_bus)
        await world.begin()
        shows = "env | grep CU_MASK | sort; "
        assert (
            await begun(world, "a", shows + WAITS, gpus=(gpu.uuid,), share=25)
        ).isolation == "cu_mask"
        await world.drop()
        await world.begin()
        await begun(world, "b", shows + WAITS, gpus=(gpu.uuid,))
        for job, mask in (("a", f"{(1 << 76) - 1:x}"), ("b", f"{(1 << 228) - (1 << 76):x}")):
            go(world, job)
            assert (
                await printed(world, job)
                == f"HSA_CU_MASK=0:0x{mask}\nROC_GLOBAL_CU_MASK=0x{mask}\n"
            )
            assert "mps" not in (await world.said(f.JobReleased, job)).checks
        assert (
            mps.alive() == [] and world.facts(f.NodeRegistered)[-1].isolation["mps"] == "enforced"
        )


def kfd(root: Path, pci_bus: str) -> Path:
    """The kernel's word of a processor and of one device with 304 compute units."""
    bus, device = int(pci_bus[5:7], 16), int(pci_bus[8:10], 16)
    told = (
        ("0", "simd_count 0", 0),
        ("1", "simd_count 1216", bus << 8 | device << 3 | int(pci_bus[-1])),
    )
    for node, simds, place in told:
        path = root / f"class/kfd/kfd/topology/nodes/{node}/properties"
        path.parent.mkdir(parents=True)
        path.write_text(
            f"cpu_cores_count 0\n{simds}\nsimd_per_cu 4\nlocation_id {place}\ndomain "
            f"{int(pci_bus[:4], 16)}\n"
        )
    return root


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
async def test_the_daemon_runs_as_the_job_s_user_and_serves_it(
    tmp_path: Path,
    mps: Mps,
    fakes: Fakes,  # noqa: F811
) -> None:
    async with under(tmp_path / "state", mps, {"*": "daemon"}) as world:
        script = (
            f"echo get_environment | {mps.program}; echo start_server -uid 1 | {mps.program}; "
            f"{WAITS}"
        )
        await begun(world, "j", script)
        await world.until(lambda: len(mps.alive()) == 2)
        owners = {os.stat(f"/proc/{each.pid}").st_uid for each in mps.alive()}
        assert owners == {1}
        go(world, "j")
        told = json.loads((await printed(world, "j")).splitlines()[0])
        assert told["CUDA_VISIBLE_DEVICES"] == DEVICE and not any(
            name.startswith("MUSTER_NATS") for name in told
        )
        assert (await world.said(f.JobReleased, "j")).checks["mps"] == "gone"


async def test_simulated_device_has_no_daemon_and_is_recorded_so(tmp_path: Path, mps: Mps) -> None:
    async with world_at(tmp_path / "state") as world:
        world.program = Program(str(mps.program))
        await world.place(order(world, "j", "env | grep -c CUDA_MPS", gpus=(GpuId("GPU-n-0"),)))
        assert await printed(world, "j") == "0\n"
        assert (await world.said(f.JobStarted, "j")).isolation == "simulated"
        assert mps.alive() == [] and "mps" not in (await world.said(f.JobReleased, "j")).checks
        assert "mps" not in world.facts(f.NodeRegistered)[-1].isolation


async def test_the_next_agent_adopts_job_and_daemon_and_ends_the_daemon_after_the_job(
    cluster: Cluster,  # noqa: F811
    mps: Mps,
    fakes: Fakes,  # noqa: F811
) -> None:
    settings = {"gpu_driver": "local", "mps_control": str(mps.program)}
    fakes.tell(
        "nvidia", "nvmlDeviceGetFieldValues * 3"
    )  # its made-up fields say that a row could not be remapped
    first = cluster.agent(**settings)
    await cluster.until(f.NodeRegistered)
    await cluster.start(
        "j", f"until [ -e {cluster.tmp_path}/go ]; do sleep 0.02; done", 1, GpuHold(DEVICE, 50, MPS)
    )
    started = await cluster.until(f.JobStarted)
    (daemon,) = mps.alive()
    first.kill()
    first.wait()
    cluster.agent(**settings)
    await cluster.until(f.NodeRegistered, 2)
    assert [each.pid for each in mps.alive()] == [daemon.pid]
    (cluster.tmp_path / "go").touch()
    released = await cluster.until(f.JobReleased)
    assert isinstance(started, f.JobStarted) and isinstance(released, f.JobReleased)
    assert (started.isolation, released.checks["mps"], mps.alive()) == ("mps", "gone", [])
