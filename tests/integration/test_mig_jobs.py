"""Jobs on MIG instances: a real agent and real processes over NVIDIA's real binding, above a
library built from C that keeps its cards.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from agent_world import EPOCH, NODE, World, world_at

from libs.common import facts as f
from libs.common.devices.device_controls import hot_policy
from libs.common.life.gpu_life import QUARANTINED
from libs.common.messages import ControlOrder, Orders, StartOrder
from libs.common.model import MIG, GpuHold, GpuId
from libs.common.subjects import orders
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import CreateMigInstance, Done
from services.node_agent.health import returning
from tests.drivers.conftest import fakes, libraries  # noqa: F401
from tests.drivers.fakes import Fakes
from tests.drivers.nvidia_alone import FIRST, SECOND, nvidia_alone
from tests.drivers.test_amd import FIRST as AMD_FIRST
from tests.drivers.test_amd import SECOND as AMD_SECOND
from tests.drivers.test_amd import amd_alone

SOON_NS = 300_000_000
LOW, HIGH = 0b1111, 0b1111_0000
SHOW = 'echo "$CUDA_VISIBLE_DEVICES"'
WAIT = f"{SHOW}; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
async def world(tmp_path: Path, fakes: Fakes) -> AsyncIterator[World]:  # noqa: F811
    fakes.tell("nvidia", "mig 0 1")
    driver = nvidia_alone()
    async with world_at(tmp_path / "state", real=driver) as made:
        made.agent.state.release_ns = SOON_NS
        yield made
    await driver.close()
    assert made.real is not None
    await made.real.close()


async def start(
    world: World,
    job: str,
    script: str,
    slices: int = HIGH,
    uuid: GpuId = FIRST,
    profile: str = "3g.40gb",
) -> StartOrder:
    order = world.order(job, script)
    holds = (
        (GpuHold(uuid=uuid, share=50, isolation=MIG, mig_profile=profile, mig_slices=slices),)
        if slices
        else (GpuHold(uuid),)
    )
    return await world.place(
        StartOrder(
            *[holds if name == "gpus" else getattr(order, name) for name in order.__struct_fields__]
        )
    )


async def there(world: World) -> list[tuple[str, int]]:
    driver = world.real
    assert isinstance(driver, LocalDriver)
    done = await driver.control(FIRST, r.ListMigInstances())
    assert isinstance(done, Done)
    return [(one.uuid, one.slices) for one in done.instances]


async def test_a_job_sees_its_instance_and_it_is_gone_before_the_job_is_over(world: World) -> None:
    await start(world, "j", WAIT)
    await world.said(f.JobStarted, "j")
    assert await there(world) == [("MIG-fake-1000", HIGH)]
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    assert released.checks["mig"] == "gone" and await there(world) == []
    assert (await world.output("j")).data == b"MIG-fake-1000\n"
    assert world.facts(f.GpuFaulted) == []


async def test_two_jobs_on_one_card_end_each_by_itself(world: World) -> None:
    await start(world, "a", WAIT, HIGH)
    await start(world, "b", SHOW, LOW)
    assert (await world.said(f.JobReleased, "b")).checks["mig"] == "gone"
    assert [slices for _, slices in await there(world)] == [HIGH]
    (world.state_dir / "go").touch()
    await world.said(f.JobReleased, "a")
    assert await there(world) == []


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement 0 23", "GPU GPU-fake-0: Insufficient Resources"),
        ("nvmlGpuInstanceCreateComputeInstance 0 23", "GPU GPU-fake-0: Insufficient Resources"),
        ("nvmlDeviceCreateGpuInstanceWithPlacement 0 4", "Insufficient Permissions"),
    ],
)
async def test_a_job_whose_instance_cannot_be_made_is_refused_with_the_reason_and_nothing_stays(
    world: World,
    fakes: Fakes,  # noqa: F811
    fault: str,
    why: str,
) -> None:
    fakes.tell("nvidia", fault)
    await start(world, "j", SHOW)
    refused = await world.said(f.JobRefused, "j")
    assert (
        refused.reason == f"MIG instance 3g.40gb at slice 4 of GPU GPU-fake-0 was not made: {why}"
    )
    assert await there(world) == []
    assert [fact.detail for fact in world.facts(f.GpuFaulted)] == (
        [refused.reason] if "Permissions" not in why else []
    )
    if "Permissions" not in why:
        await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [FIRST])


async def test_a_card_on_which_none_could_be_made_returns_beside_a_job_that_has_one(
    world: World,
    fakes: Fakes,  # noqa: F811
) -> None:
    await start(world, "j", WAIT, LOW)
    await world.said(f.JobStarted, "j")
    fakes.tell("nvidia", "nvmlGpuInstanceCreateComputeInstance 0 23")
    await start(world, "k", SHOW)
    await world.said(f.JobRefused, "k")
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [FIRST])
    assert [slices for _, slices in await there(world)] == [LOW]
    (world.state_dir / "go").touch()
    assert (await world.said(f.JobFinished, "j")).exit_code == 0


async def test_half_created_instance_quarantines_the_device_until_it_is_removed(
    world: World,
    fakes: Fakes,  # noqa: F811
) -> None:
    fakes.tell("nvidia", "nvmlGpuInstanceCreateComputeInstance 0 23", "nvmlGpuInstanceDestroy 0 19")
    await start(world, "j", SHOW)
    assert "could not be removed" in (await world.said(f.JobRefused, "j")).reason
    (fault,) = world.facts(f.GpuFaulted)
    assert (
        fault.uuid,
        fault.reason,
        "a MIG instance that no job owns is left" in fault.detail,
    ) == (FIRST, QUARANTINED, True)
    await asyncio.sleep(2 * returning.LOOK_S)
    assert world.facts(f.GpuRecovered) == []
    fakes.tell("nvidia")
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [FIRST])
    assert await there(world) == []


async def test_a_second_device_that_fails_takes_the_first_one_s_instance_back(world: World) -> None:
    order = world.order("j", SHOW)
    holds = (
        GpuHold(uuid=FIRST, share=50, isolation=MIG, mig_profile="3g.40gb", mig_slices=HIGH),
        GpuHold(uuid=SECOND, share=50, isolation=MIG, mig_profile="3g.40gb", mig_slices=HIGH),
    )
    await world.place(
        StartOrder(
            *[holds if name == "gpus" else getattr(order, name) for name in order.__struct_fields__]
        )
    )
    assert (
        "of GPU GPU-fake-1 was not made: Not Supported"
        in (await world.said(f.JobRefused, "j")).reason
    )
    assert await there(world) == []


async def test_an_instance_that_stays_after_its_job_quarantines_the_device_until_it_is_gone(
    world: World,
    fakes: Fakes,  # noqa: F811
) -> None:
    await start(world, "j", WAIT)
    await world.said(f.JobStarted, "j")
    fakes.tell("nvidia", "nvmlComputeInstanceDestroy 0 19")
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    assert "In use by another client" in released.checks["mig"]
    (fault,) = world.facts(f.GpuFaulted)
    assert (fault.uuid, fault.reason) == (
        FIRST,
        QUARANTINED,
    ) and "3g.40gb at slice 4" in fault.detail
    fakes.tell("nvidia")
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [FIRST])
    assert await there(world) == []


async def test_a_job_for_the_whole_card_is_refused_while_it_is_in_mig_mode(world: World) -> None:
    await start(world, "j", SHOW, 0)
    assert "is in MIG mode by now" in (await world.said(f.JobRefused, "j")).reason


async def test_after_a_kill_the_next_agent_removes_unowned_instances_and_keeps_used_ones(
    world: World,
) -> None:
    await start(world, "j", WAIT, HIGH)
    await world.said(f.JobStarted, "j")
    assert isinstance(world.real, LocalDriver)
    await world.real.control(FIRST, CreateMigInstance("1g.10gb", 1))
    await world.drop()
    await world.real.close()
    world.real = nvidia_alone()
    await world.begin()
    await world.until(lambda: not world.agent.tasks.work)
    assert await there(world) == [("MIG-fake-1000", HIGH)]
    (world.state_dir / "go").touch()
    assert (await world.said(f.JobReleased, "j")).checks["mig"] == "gone"
    assert await there(world) == [] and world.facts(f.GpuFaulted) == []


async def test_instances_of_a_killed_agent_are_removed_before_the_next_one_is_created(
    world: World,
) -> None:
    await start(world, "j", WAIT, LOW)
    await world.said(f.JobStarted, "j")
    assert isinstance(world.real, LocalDriver)
    await world.real.control(FIRST, CreateMigInstance("1g.10gb", 5))
    await start(world, "k", SHOW, HIGH)
    assert (await world.said(f.JobReleased, "k")).checks["mig"] == "gone"
    assert [slices for _, slices in await there(world)] == [LOW] and world.facts(f.JobRefused) == []
    (world.state_dir / "go").touch()
    await world.said(f.JobReleased, "j")


async def test_after_a_kill_the_instance_of_a_job_that_ended_meanwhile_is_removed_with_it(
    world: World,
) -> None:
    await start(world, "j", WAIT, HIGH)
    await world.said(f.JobStarted, "j")
    await world.drop()
    (world.state_dir / "go").touch()
    await asyncio.sleep(0.3)
    assert [slices for _, slices in await there(world)] == [HIGH]
    await world.begin()
    assert (await world.said(f.JobReleased, "j")).checks["mig"] == "gone"
    assert await there(world) == []


async def test_a_stranger_s_instance_in_use_is_named_when_the_agent_begins(
    world: World,
    fakes: Fakes,  # noqa: F811
) -> None:
    await world.drop()
    assert isinstance(world.real, LocalDriver)
    await world.real.control(FIRST, CreateMigInstance("1g.10gb", 1))
    fakes.tell("nvidia", "nvmlComputeInstanceDestroy 0 19")
    await world.begin()
    await world.until(lambda: len(world.facts(f.GpuFaulted)) == 1)
    (fault,) = world.facts(f.GpuFaulted)
    assert "(1g.10gb at slice 1): GPU GPU-fake-0: In use by another client" in fault.detail


async def test_simulated_cards_are_cut_the_same_way(tmp_path: Path) -> None:
    async with world_at(tmp_path / "state") as world:
        await start(world=world, job="j", script=SHOW, slices=HIGH, uuid=GpuId("GPU-n-0"))
        assert (await world.said(f.JobReleased, "j")).checks["mig"] == "gone"
        assert (await world.output("j")).data == b"MIG-n-0-0\n"
        await start(world=world, job="k", script=SHOW, slices=0b1100, uuid=GpuId("GPU-n-0"))
        assert "has no room for 3g.40gb at slice 2" in (await world.said(f.JobRefused, "k")).reason


async def tell(world: World, control: str, value: str, uuid: GpuId = FIRST) -> f.GpuControlled:
    """As the scheduler sends an operator's wish on, until its node has said what became of it."""
    world.scheduler.seq += 1
    order = ControlOrder(uuid, control, value, world.scheduler.seq)
    world.scheduler.controls[uuid, control] = order
    await world.bus.publish(orders(NODE), msgspec.msgpack.encode(Orders(EPOCH, (), (order,))))
    await world.until(
        lambda: order.request in [fact.request for fact in world.facts(f.GpuControlled)]
    )
    return next(fact for fact in world.facts(f.GpuControlled) if fact.request == order.request)


def registered(world: World) -> dict[GpuId, bool]:
    return {gpu.uuid: gpu.mig for gpu in world.facts(f.NodeRegistered)[-1].gpus}


async def test_the_mode_of_a_free_card_is_set_and_registered_while_a_job_lives_on_another(
    world: World,
) -> None:
    await start(world, "j", WAIT)
    await world.said(f.JobStarted, "j")
    assert (await tell(world, "mig", "on", SECOND)).outcome == "done"
    assert registered(world) == {FIRST: True, SECOND: True}
    kinds = [f.kind_of(fact) for commit in world.commits() for fact in commit.facts]
    assert kinds.index("gpu.controlled") > len(kinds) - 1 - kinds[::-1].index("node.registered")
    last = world.facts(f.NodeRegistered)[-1]
    assert (last.incarnation, [ref.job_id for ref in last.attempts]) == (2, ["j"])
    await start(world=world, job="k", script=SHOW, slices=HIGH, uuid=SECOND)
    assert (await world.said(f.JobReleased, "k")).checks["mig"] == "gone"
    (world.state_dir / "go").touch()
    assert (await world.said(f.JobFinished, "j")).exit_code == 0


async def test_change_of_mode_waits_for_the_card_s_jobs_and_removes_unowned_instances(
    world: World,
) -> None:
    await start(world, "j", WAIT)
    await world.said(f.JobStarted, "j")
    asking = asyncio.create_task(tell(world, "mig", "off"))
    await world.until(lambda: [fact.reason for fact in world.facts(f.GpuFaulted)] == ["mig_asked"])
    assert isinstance(world.real, LocalDriver)
    await world.real.control(FIRST, CreateMigInstance("1g.10gb", 1))
    (world.state_dir / "go").touch()
    assert (await asking).outcome == "done"
    assert registered(world) == {FIRST: False, SECOND: False} and await there(world) == []
    await world.until(lambda: len(world.facts(f.GpuRecovered)) == 1)
    await start(world, "k", SHOW, 0)
    assert (await world.said(f.JobFinished, "k")).exit_code == 0


async def test_a_card_that_lacks_it_says_so_and_one_that_needs_a_reset_for_it_is_reset(
    world: World,
    fakes: Fakes,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes.tell("nvidia", "nvmlDeviceGetMigMode 1 3", "nvmlDeviceSetMigMode 1 3")
    found = await tell(world, "mig", "on", SECOND)
    assert (found.outcome, found.detail) == ("lacking", "Not Supported")
    found = await tell(world, "compute-partition", "CPX", SECOND)
    assert (found.outcome, found.detail) == ("lacking", "NVIDIA's devices are divided by MIG")
    fakes.tell("nvidia", "pending 1 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert isinstance(world.real, LocalDriver)
    await world.real.close()
    found = await tell(world, "mig", "on", SECOND)
    assert (found.outcome, found.detail) == (
        "failed",
        "it counts after a reset, and it cannot be reset: nvidia-smi is not on PATH",
    )
    assert registered(world) == {FIRST: True, SECOND: False}
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ntouch {fakes.folder}/nvidia.reset\n")
    tool.chmod(0o755)
    assert (await tell(world, "mig", "on", SECOND)).outcome == "done"
    assert registered(world) == {FIRST: True, SECOND: True}


async def test_a_card_of_amd_is_divided_into_devices_that_jobs_see_by_number(
    tmp_path: Path,
    fakes: Fakes,  # noqa: F811
) -> None:
    fakes.tell("amd", "count * 2")
    driver = amd_alone()
    async with world_at(tmp_path / "state", real=driver) as world:
        world.agent.state.controls.policy = hot_policy("amd=power:60")
        await start(
            world=world,
            job="j",
            script=f"{SHOW}$ROCR_VISIBLE_DEVICES; sleep 1",
            slices=0,
            uuid=AMD_SECOND,
        )
        await world.said(f.JobStarted, "j")
        assert (await tell(world, "compute-partition", "CPX", AMD_FIRST)).outcome == "done"
        assert len(registered(world)) == world.agent.state.devices.count == 9 and GpuId(
            f"{AMD_FIRST}.7"
        ) in registered(world)
        await start(
            world=world,
            job="k",
            script="echo $ROCR_VISIBLE_DEVICES",
            slices=0,
            uuid=GpuId(f"{AMD_FIRST}.2"),
        )
        await world.said(f.JobFinished, "k")
        assert (await world.output("k")).data == b"2\n"
        assert (await world.said(f.JobFinished, "j")).exit_code == 0
        assert (
            await tell(world, "mig", "on", AMD_FIRST)
        ).detail == "AMD's devices are divided by partitions"
        assert (await tell(world, "compute-partition", "", AMD_FIRST)).outcome == "done"
        assert (
            list(registered(world))
            == [AMD_FIRST, AMD_SECOND]
            == list(world.agent.state.controls.hot)
        )
        await start(world=world, job="l", script=SHOW, slices=0, uuid=GpuId(f"{AMD_FIRST}.2"))
        assert (
            f"GPU {AMD_FIRST}.2 is no longer on this node"
            in (await world.said(f.JobRefused, "l")).reason
        )
    await driver.close()
