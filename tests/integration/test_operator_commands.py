"""Commands of the operator's on one device: what they are told, their end, and what follows for a
device that comes back.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from agent_world import World, world_at

from libs.common import facts as f
from libs.common.model import Gpu, GpuId
from services.node_agent.health.operator_command import WORDS_MAX, OperatorCommand
from services.node_agent.jobs.environment import passed_on
from services.node_agent.machine import processes

DEVICE = GpuId("GPU-n-0")
GPU = Gpu(
    uuid=DEVICE,
    index=0,
    vendor="nvidia",
    model="H100",
    memory_bytes=80 << 30,
    pci_bus="0000:01:00.0",
)
WITHIN_MS = 10_000


async def said(command: str, within_ms: int = WITHIN_MS) -> str:
    return await OperatorCommand(command, within_ms, passed_on(os.environ), lambda: [GPU]).on(
        DEVICE
    )


async def test_operator_command_gets_one_device_and_succeeds_with_exit_code_0() -> None:
    asked = (
        f'[ "$MUSTER_GPUS" = {DEVICE} ] && [ "$CUDA_VISIBLE_DEVICES" = {DEVICE} ] && [ '
        "$MUSTER_GPU_PCI = 0000:01:00.0 ] && [ $PWD = / ]"
    )
    assert await said(asked) == await said("") == ""
    assert await OperatorCommand("false", WITHIN_MS, {}, list).on(DEVICE) == ""


async def test_operator_command_on_the_first_part_of_a_divided_card_gets_no_other_part() -> None:
    """AMD's library takes the id of the card for all of its parts."""
    parts = [
        msgspec.structs.replace(GPU, uuid=GpuId(uuid), index=index, vendor="amd")
        for index, uuid in enumerate(("GPU-a", "GPU-b", "GPU-b.1"))
    ]
    command = OperatorCommand(
        '[ "$ROCR_VISIBLE_DEVICES" = 1 ]', WITHIN_MS, passed_on(os.environ), lambda: parts
    )
    assert await command.on(GpuId("GPU-b")) == ""


async def test_report_contains_the_last_output_of_an_operator_command_within_a_bound() -> None:
    assert (
        await said("echo first; echo the memory is bad >&2; exit 3")
        == "its command ended with 3: the memory is bad"
    )
    long = await said("yes 0123456789 | head -c 10000000 | tr -d '\\n'; exit 1")
    assert len(long) < WORDS_MAX + 40 and await said("exit 2") == "its command ended with 2"


async def test_operator_command_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path,
) -> None:
    assert (
        await said(f"sleep 300 & echo $! > {tmp_path}/pid; wait", 300)
        == "its command was not done within 300 ms"
    )
    pid = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(5):
        while (seen := processes.process(pid)) is not None and seen.state != "Z":
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("code", [0, 3])
async def test_whatever_an_operator_command_started_ends_with_it(tmp_path: Path, code: int) -> None:
    begin = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 300' >/dev/null 2>&1 &"
    wait = f"until [ -s {tmp_path}/pid ]; do sleep 0.02; done"
    assert ("" if code == 0 else "its command ended with 3") == await said(
        f"{begin} {wait}; exit {code}"
    )
    seen = processes.process(int((tmp_path / "pid").read_text()))
    assert seen is None or seen.state == "Z"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path) as made:
        made.agent.state.release_ns = 300_000_000
        yield made


@pytest.mark.parametrize(
    ("command", "back"), [("true", True), ("echo it computes wrong; false", False)]
)
async def test_a_device_that_was_quarantined_is_tried_before_it_comes_back(
    world: World, command: str, back: bool
) -> None:
    world.agent.devices.burn_in.command = command
    world.driver.held = {DEVICE: "12 MiB of its memory are used"}
    await world.start("j", "true")
    await world.said(f.JobReleased, "j")
    world.driver.held = {}
    await world.until(
        lambda: bool(world.facts(f.GpuRecovered) if back else len(world.facts(f.GpuFaulted)) > 1)
    )
    found = [(fact.reason, fact.verdict, fact.detail) for fact in world.facts(f.GpuFaulted)][1:]
    failed = (
        "burn_in_failed",
        "reboot_node",
        "it was tried, and its command ended with 1: it computes wrong",
    )
    assert found == ([] if back else [failed]) and (world.facts(f.GpuRecovered) != []) is back
