"""The memory of a device is cleared before anybody else has it; the receipt says how, and a device
of which it fails waits.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import World, world_at
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.error_catalogue import Seen
from libs.common.errors import Refused
from libs.common.messages import ControlOrder
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId
from services.node_agent.core.attempt import Attempt
from services.node_agent.core.observations import (
    DeviceControlled,
    DeviceErrorSeen,
    DeviceTroubleChanged,
    Observation,
)
from services.node_agent.drivers.readings import Command, Done, Lacking
from services.node_agent.health import scrubbing

DEVICE = GpuId("GPU-n-0")
OTHER = GpuId("GPU-n-1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path) as made:
        made.agent.state.release_ns = 300_000_000
        yield made


async def runs(world: World, job: str, script: str, *holds: GpuHold) -> None:
    await world.place(replace(world.order(job, script), gpus=holds or (GpuHold(DEVICE),)))


async def receipt(world: World, job: str) -> str:
    return (await world.said(f.JobReleased, job)).checks.get("scrub", "")


async def test_a_command_clears_each_device_of_a_job_before_it_is_released(
    world: World, tmp_path: Path
) -> None:
    world.agent.devices.scrub.command.command = f"echo $MUSTER_GPUS >> {tmp_path}/cleared"
    await runs(world, "j", "true", GpuHold(DEVICE), GpuHold(OTHER))
    assert await receipt(world, "j") == "done: command"
    assert sorted((tmp_path / "cleared").read_text().split()) == [DEVICE, OTHER]


async def test_a_reset_clears_it_too_and_says_what_it_was(world: World) -> None:
    world.agent.devices.scrub.command.command = "reset"
    await runs(world, "j", "true")
    assert await receipt(world, "j") == "done: reset (simulated: nothing was reset)"


async def test_settings_of_operators_are_applied_again_after_a_reset_and_refused_ones_are_named(
    world: World,
) -> None:
    told: list[Observation] = []
    world.agent.devices.scrub.command.command, world.agent.devices.scrub.tell = "reset", told.append
    wishes = [
        ControlOrder(DEVICE, control, value, 7)
        for control, value in (("power", "300"), ("ecc", "on"))
    ]
    world.agent.state.controls.wishes = {(order.uuid, order.control): order for order in wishes}
    world.scheduler.controls = dict(
        world.agent.state.controls.wishes
    )  # else the next full desired state takes them back
    await runs(world, "j", "true")
    assert (await receipt(world, "j")).startswith("done: reset")
    assert (await world.driver.sample())[DEVICE].power_cap_mw == 300_000
    assert [
        (one.order.control, one.order.outcome) for one in told if isinstance(one, DeviceControlled)
    ] == [("ecc", "lacking")]


async def test_where_there_is_no_way_the_receipt_says_so_and_the_device_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(uuid: GpuId, command: Command) -> Done | Lacking:
        return Lacking("nvidia-smi is not on PATH")

    world.agent.devices.scrub.command.command = "reset"
    monkeypatch.setattr(world.driver, "control", none)
    await runs(world, "j", "true")
    assert (
        await receipt(world, "j") == "not possible: nvidia-smi is not on PATH"
        and world.facts(f.GpuFaulted) == []
    )


async def test_a_device_whose_reset_is_refused_or_that_is_held_after_it_is_not_clean(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(uuid: GpuId, command: Command) -> Done | Lacking:
        raise Refused("GPU is in use")

    async def grabbed(uuid: GpuId, command: Command) -> Done | Lacking:
        world.driver.held[uuid] = "pid 5 uses it"
        return Done()

    world.agent.devices.scrub.command.command = "reset"
    monkeypatch.setattr(world.driver, "control", refused)
    assert await world.agent.devices.scrub.of([DEVICE]) == scrubbing.Scrubbed(
        "failed: GPU is in use", {DEVICE: "failed: GPU is in use"}
    )
    monkeypatch.setattr(world.driver, "control", grabbed)
    assert (
        await world.agent.devices.scrub.of([OTHER])
    ).result == "failed: after its reset pid 5 uses it"
    mixed = await world.agent.devices.scrub.of([DEVICE, OTHER])
    assert mixed.result == (
        f"GPU {DEVICE}: failed: GPU is in use; GPU {OTHER}: failed: after its reset pid 5 uses it"
    )


async def test_a_device_that_cannot_be_cleared_is_quarantined_until_it_is(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "AGAIN_S", 0.5)
    world.agent.devices.scrub.command.command = (
        f"test -e {tmp_path}/mended || {{ echo cannot write; exit 4; }}"
    )
    await runs(world, "j", "true")
    why = "failed: its command ended with 4: cannot write"
    assert await receipt(world, "j") == why
    (fault,) = world.facts(f.GpuFaulted)
    assert (fault.reason, fault.detail) == ("quarantined", f"its memory was not cleared: {why}")
    (tmp_path / "mended").touch()
    await world.until(lambda: world.facts(f.GpuRecovered) != [])
    assert world.facts(f.GpuRecovered)[0].checks == {
        "processes": "gone",
        "devices": "free",
        "scrub": "done: command",
    }


async def test_of_jobs_that_share_a_device_the_last_one_clears_it(
    world: World, tmp_path: Path
) -> None:
    world.agent.devices.scrub.command.command = f"echo once >> {tmp_path}/cleared"
    await runs(
        world, "long", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done", GpuHold(DEVICE, 50)
    )
    await world.said(f.JobStarted, "long")
    await runs(world, "short", "true", GpuHold(DEVICE, 50))
    assert await receipt(world, "short") == "not done: only free devices are scrubbed"
    (tmp_path / "go").touch()
    assert await receipt(world, "long") == "done: command"
    assert (tmp_path / "cleared").read_text() == "once\n"


async def test_job_start_waits_while_its_device_is_cleared(world: World, tmp_path: Path) -> None:
    world.agent.devices.scrub.command.command = (
        f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.02; done; touch "
        f"{tmp_path}/done"
    )
    await runs(world, "first", "true", GpuHold(DEVICE, 50))
    await world.until((tmp_path / "begun").exists)
    await runs(world, "second", f"test -e {tmp_path}/done", GpuHold(DEVICE, 50))
    await asyncio.sleep(0.3)
    assert world.of("second") == []
    (tmp_path / "go").touch()
    assert (await world.said(f.JobFinished, "second")).exit_code == 0


async def test_job_stopped_while_it_waits_never_begins(world: World, tmp_path: Path) -> None:
    world.agent.devices.scrub.command.command = (
        f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.02; done"
    )
    await runs(world, "first", "true", GpuHold(DEVICE, 50))
    await world.until((tmp_path / "begun").exists)
    await runs(world, "second", f"touch {tmp_path}/ran", GpuHold(DEVICE, 50))
    await world.until(lambda: "second.1" in world.agent.state.attempts)
    await world.scheduler.send(world.stop_order("second"))
    await world.until(lambda: world.agent.state.attempts["second.1"].stop is not None)
    (tmp_path / "go").touch()
    await world.said(f.JobRefused, "second")
    assert world.of("second") == ["job.refused"] and not (tmp_path / "ran").exists()


async def test_a_device_of_a_job_that_never_began_is_cleared_before_the_next_job(
    world: World, tmp_path: Path
) -> None:
    scrub = world.agent.devices.scrub
    scrub.command.command = f"echo once >> {tmp_path}/cleared"
    await runs(world, "long", "exec sleep 100", GpuHold(DEVICE))
    await world.said(f.JobStarted, "long")
    assert (await scrub.of([DEVICE])).result == scrubbing.LATER and not (
        tmp_path / "cleared"
    ).exists()
    await scrub.over("next.1", [DEVICE])
    assert not (tmp_path / "cleared").exists()
    del world.agent.state.attempts["long.1"]
    for _ in range(2):
        await scrub.over("next.1", [DEVICE, OTHER])
    assert (tmp_path / "cleared").read_text() == "once\n"


async def test_a_device_of_a_lost_attempt_is_cleared_under_the_next_agent(
    world: World, tmp_path: Path
) -> None:
    command = f"echo once >> {tmp_path}/cleared"
    world.agent.devices.scrub.command.command = command
    await runs(world, "long", "exec sleep 100", GpuHold(DEVICE))
    await world.said(f.JobStarted, "long")
    assert (await world.agent.devices.scrub.of([DEVICE])).result == scrubbing.LATER
    await world.drop()
    await world.begin()
    scrub = world.agent.devices.scrub
    scrub.command.command = command
    del world.agent.state.attempts["long.1"]
    for _ in range(2):
        await scrub.over("next.1", [DEVICE, OTHER])
    assert (tmp_path / "cleared").read_text() == "once\n"
    await scrub.open(world.agent.machine.boot_id)
    assert scrub.owed == {}


async def test_a_restart_of_the_machine_clears_the_devices(world: World) -> None:
    scrub = world.agent.devices.scrub
    scrub.command.command = "true"
    await scrub.owe([DEVICE])
    scrub.owed = {}
    await scrub.open("another boot")
    assert scrub.owed == {}


async def test_a_device_whose_next_job_is_refused_is_cleared_before_the_one_after(
    world: World, tmp_path: Path
) -> None:
    """The last job on a shared device ended while the next one was ordered."""
    scrub = world.agent.devices.scrub
    scrub.command.command = f"echo once >> {tmp_path}/cleared"
    await runs(world, "long", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done", GpuHold(DEVICE))
    await world.said(f.JobStarted, "long")
    next_ref = AttemptRef(JobId("next"), 1)
    world.agent.state.attempts["next.1"] = Attempt(ref=next_ref, phase="waiting", gpus=(DEVICE,))
    (tmp_path / "go").touch()
    assert await receipt(world, "long") == "not done: only free devices are scrubbed"
    assert not (tmp_path / "cleared").exists()
    world.agent.state.attempts["next.1"].phase = "refused"
    await scrub.over("third.1", [DEVICE])
    assert (tmp_path / "cleared").read_text() == "once\n"


async def test_a_clean_device_beside_an_unclean_one_is_cleared_before_the_next_job(
    world: World, tmp_path: Path
) -> None:
    scrub = world.agent.devices.scrub
    scrub.command.command = f"echo $MUSTER_GPUS >> {tmp_path}/cleared"
    world.driver.held = {DEVICE: "12 MiB of its memory are used"}
    await runs(world, "j", "true", GpuHold(DEVICE), GpuHold(OTHER))
    assert await receipt(world, "j") == "not done: only free devices are scrubbed"
    await scrub.over("next.1", [OTHER])
    assert (tmp_path / "cleared").read_text() == f"{OTHER}\n"


async def test_one_that_cannot_be_cleared_then_refuses_the_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Observation] = []
    scrub = world.agent.devices.scrub
    scrub.command.command = "false"
    monkeypatch.setattr(scrub, "tell", told.append)
    await scrub.of([DEVICE])
    scrub.owed[DEVICE] = None
    with pytest.raises(
        Refused, match="its memory was not cleared: failed: its command ended with 1"
    ):
        await scrub.over("next.1", [DEVICE])
    assert [(one.uuid, one.reason) for one in told if isinstance(one, DeviceTroubleChanged)] == [
        (DEVICE, "quarantined")
    ]


async def test_a_reset_of_a_card_waits_for_jobs_on_its_other_parts_and_a_scrub_command_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[GpuId] = []

    async def control(uuid: GpuId, command: Command) -> Done | Lacking:
        told.append(uuid)
        return Done()

    scrub, part = world.agent.devices.scrub, GpuId(f"{DEVICE}.1")
    monkeypatch.setattr(world.driver, "control", control)
    world.agent.state.attempts["other.1"] = Attempt(
        ref=AttemptRef(JobId("other"), 1), phase="launched", gpus=(part,)
    )
    scrub.command.command = "reset"
    assert (await scrub.of([DEVICE])).result == scrubbing.LATER and told == []
    scrub.command.command = "true"
    assert (await scrub.of([DEVICE])).result == "done: command"
    del world.agent.state.attempts["other.1"]
    scrub.command.command = "reset"
    assert (await scrub.of([DEVICE])).result == "done: reset" and told == [DEVICE]


async def test_job_start_on_another_part_of_a_card_waits_for_the_card_s_reset(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def control(uuid: GpuId, command: Command) -> Done | Lacking:
        begun.set()
        await go.wait()
        return Done()

    scrub = world.agent.devices.scrub
    scrub.command.command = "reset"
    monkeypatch.setattr(world.driver, "control", control)
    clearing = asyncio.create_task(scrub.of([DEVICE]))
    await begun.wait()
    waiting = asyncio.create_task(scrub.over("next.1", [GpuId(f"{DEVICE}.1")]))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    go.set()
    await asyncio.gather(clearing, waiting)


async def test_a_device_that_is_reset_while_it_is_quarantined_is_cleared_and_tried_by_one_at_a_time(
    world: World, tmp_path: Path
) -> None:
    alone = (
        f"mkdir {tmp_path}/busy || {{ touch {tmp_path}/two; exit 9; }}; sleep 1.5; rmdir "
        f"{tmp_path}/busy"
    )
    world.agent.devices.scrub.command.command = world.agent.devices.burn_in.command = alone
    world.driver.held = {DEVICE: "12 MiB of its memory are used"}
    await runs(world, "j", "true")
    await world.said(f.JobReleased, "j")
    world.agent.tell(
        DeviceErrorSeen(DEVICE, Seen("nvidia", "NVIDIA H100", "610", "xid 46"), "driver")
    )
    world.driver.held = {}
    await world.until(lambda: world.facts(f.GpuRecovered) != [])
    assert not (tmp_path / "two").exists()
    assert {fact.reason for fact in world.facts(f.GpuFaulted)} <= {"quarantined", "xid 46", "reset"}


async def test_a_node_that_cannot_scrub_says_so_for_real_devices_only(
    world: World,
) -> None:
    await runs(world, "j", "true")
    assert (await world.said(f.JobReleased, "j")).checks == {"processes": "gone", "devices": "free"}
    assert await world.agent.devices.scrub.of([DEVICE]) == scrubbing.Scrubbed(scrubbing.NO_WAY)
