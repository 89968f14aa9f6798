"""Real jobs on simulated devices that hang, or only look so: how busy its devices are, each job
says itself.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agent_world import World
from msgspec.structs import replace
from test_device_errors import FIRST, SECOND, Played

from libs.common import facts as f
from libs.common.model import GpuHold, GpuId
from services.node_agent.devices.attempts import works
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.drivers.simulated import GIB

TIMEOUT_S = 2
BUSY = "echo 100% > $MUSTER_JOB_DIR/device-seconds; "


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Played]:
    made = Played(tmp_path / "state")
    made.driver.running = lambda: works(
        made.agent.state, JobDirectories(tmp_path / "state").device_s
    )
    await made.scheduler.listen()
    await made.begin()
    yield made
    await made.end()


async def runs(world: World, name: str, command: str, uuid: GpuId) -> None:
    await world.place(
        replace(world.order(name, command, hang_timeout_s=TIMEOUT_S), gpus=(GpuHold(uuid),))
    )
    await world.said(f.JobStarted, name)


async def test_a_job_that_spins_is_ended_as_hung_with_its_evidence_and_its_device_is_reset_and_back(
    world: Played,
) -> None:
    await runs(world, "stuck", BUSY + "exec sleep 100", FIRST)
    await runs(world, "writes", BUSY + "while :; do echo on; sleep 0.5; done", SECOND)
    finished = await world.said(f.JobFinished, "stuck")
    assert finished.reason == "hung" and finished.detail.startswith(
        f"no progress for {TIMEOUT_S} s while its GPUs were busy; the evidence"
    )
    await world.until(lambda: world.facts(f.GpuRecovered) != [])
    assert [(fact.uuid, fact.health, fact.reason) for fact in world.facts(f.GpuFaulted)] == [
        (FIRST, "offline", "no_progress"),
        (FIRST, "resetting", "reset"),
    ]
    assert world.facts(f.GpuRecovered)[0].checks["reset"] == "done"
    evidence = json.loads((world.state_dir / "evidence-stuck.1.json").read_text())
    (process,) = evidence["processes"]
    assert (
        process["name"] == "sleep"
        and len(process["threads"]) == 1
        and evidence["devices"][FIRST]["busy_percent"] >= 50
    )
    assert world.of("writes") == ["job.started"]


async def test_a_job_that_rests_does_not_hang_and_of_two_on_a_device_neither_is_judged(
    world: Played,
) -> None:
    await runs(world, "rests", "exec sleep 100", FIRST)
    await runs(world, "one", BUSY + "exec sleep 100", SECOND)
    await runs(world, "other", BUSY + "exec sleep 100", SECOND)
    await asyncio.sleep(2.5 * TIMEOUT_S)
    assert [world.of(job) for job in ("rests", "one", "other")] == [["job.started"]] * 3


async def test_a_job_over_its_memory_share_is_warned_then_ended_and_its_neighbour_runs_on(
    world: Played,
) -> None:
    world.driver.gpus[0] = replace(world.driver.gpus[0], memory_bytes=GIB)
    world.agent.state.devices.policy = replace(world.agent.state.devices.policy, share_grace_s=2)
    takes = f"exec {sys.executable} -c 'held = bytearray(200 << 20); import time; time.sleep(100)'"
    for name, command, part in (("greedy", takes, 10), ("modest", "exec sleep 100", 90)):
        await world.place(replace(world.order(name, command), gpus=(GpuHold(FIRST, part),)))
        await world.said(f.JobStarted, name)
    finished = await world.said(f.JobFinished, "greedy")
    (warned,) = world.facts(f.JobOverShare)
    assert (warned.job_id, warned.share_bytes, warned.grace_s, warned.used_bytes > 200 << 20) == (
        "greedy",
        GIB // 10,
        2,
        True,
    )
    assert finished.reason == "over_share" and f"its share is {GIB // 10}" in finished.detail
    assert world.of("greedy")[:3] == ["job.started", "job.over_share", "job.finished"] and world.of(
        "modest"
    ) == ["job.started"]
