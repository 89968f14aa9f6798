"""Pruning of ended jobs' output, with real supervisors, processes and directories.

The test plays the scheduler.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from libs.common import facts as f
from libs.common.errors import Unavailable
from libs.common.messages import PruneAsk, PruneDone
from libs.common.model import AttemptRef, JobId
from libs.common.subjects import ask_node
from services.node_agent.core.apply import USED_AGAIN
from services.node_agent.directories.retention import Keep
from services.node_agent.jobs import closing
from services.node_agent.supervisor import records
from tests.integration.agent_world import NODE, WAIT_S, World, world_at

ALL = PruneAsk(0, 0, False)
LARGE = "head -c 4194304 /dev/urandom > $MUSTER_JOB_DIR/data; echo hello"


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as world:
        yield world


async def ended(world: World, job: str, script: str = "echo hello", tenant: str = "t") -> Path:
    """Return the directory of a job that has ended and is forgotten."""
    await world.place(msgspec.structs.replace(world.order(job, script), tenant=tenant))
    await world.said(f.JobReleased, job)
    world.closed(job)
    job_dir = world.state_dir / "jobs" / f"{job}.1"
    await world.until((job_dir / records.DONE).exists)
    await world.until(lambda: f"{job}.1" in world.agent.jobs.kept.kept)  # type: ignore[attr-defined]
    return job_dir


async def prune(world: World, ask: PruneAsk) -> PruneDone:
    answer = await world.bus.request(ask_node(NODE, "prune"), msgspec.msgpack.encode(ask), WAIT_S)
    return msgspec.msgpack.decode(answer, type=PruneDone)


async def test_pruning_keeps_the_marker_and_reports_what_it_removed(world: World) -> None:
    job_dir = await ended(
        world,
        "j",
        (
            "mkdir -p $MUSTER_JOB_DIR/deep/er; echo x > $MUSTER_JOB_DIR/deep/er/f; chmod 500 "
            "$MUSTER_JOB_DIR/deep; echo hi"
        ),
    )
    size = sum(
        path.stat().st_blocks * 512
        for path in job_dir.rglob("*")
        if path.is_file() and path.name != records.DONE
    )
    done = await prune(world, ALL)
    assert (done.jobs, done.size_bytes, done.jobs_left, done.bytes_left) == (1, size, 0, 0)
    assert os.listdir(job_dir) == [records.DONE]


async def test_a_directory_that_a_person_removed_does_not_stop_the_pruning(world: World) -> None:
    removed, other = await ended(world, "gone"), await ended(world, "other")
    shutil.rmtree(removed)
    assert (await prune(world, ALL)).jobs == 2
    assert os.listdir(other) == [records.DONE]


async def test_a_pruned_attempt_is_not_started_again(world: World) -> None:
    order = await world.start("j", "echo once >> $MUSTER_JOB_DIR/../../ran")
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until(lambda: "j.1" in world.agent.jobs.kept.kept)  # type: ignore[attr-defined]
    await prune(world, ALL)
    await world.end()
    await world.begin()
    await world.scheduler.send(
        msgspec.structs.replace(order, incarnation=world.agent.state.incarnation)
    )
    assert (await world.said(f.JobRefused, "j")).reason == USED_AGAIN
    assert (world.state_dir / "ran").read_text() == "once\n"


async def test_dry_run_reports_the_same_and_removes_nothing(world: World) -> None:
    await ended(world, "j")
    tried = await prune(world, msgspec.structs.replace(ALL, dry_run=True))
    assert (await world.output("j")).data == b"hello\n"
    assert await prune(world, ALL) == tried


async def test_a_living_job_is_not_touched(world: World) -> None:
    await world.start("j", "echo here; trap 'exit 0' TERM; while :; do sleep 0.05; done")
    await world.said(f.JobStarted, "j")
    assert (await world.output("j", wait_ms=5_000)).data == b"here\n"
    assert (await prune(world, ALL)).jobs == 0
    assert (await world.output("j")).data == b"here\n"


async def test_oldest_directories_over_the_bounds_are_pruned(world: World) -> None:
    first, second = await ended(world, "first"), await ended(world, "second")
    sizes = [one.size_bytes for one in world.agent.jobs.kept.kept.values()]  # type: ignore[attr-defined]
    assert (await prune(world, PruneAsk(3_600, sum(sizes), False))).jobs == 0
    assert (await prune(world, PruneAsk(None, sizes[1], False))).jobs == 1
    assert not (first / records.EXIT).exists() and (second / records.EXIT).exists()


@pytest.mark.attack
async def test_a_sparse_file_of_one_job_prunes_no_other_job(world: World) -> None:
    world.agent.jobs.keep = Keep(size_bytes=8 << 20)  # type: ignore[attr-defined]
    first = await ended(world, "first")
    sparse = await ended(world, "sparse", "truncate -s 1T $MUSTER_JOB_DIR/hole; echo hello")
    await asyncio.sleep(0.3)
    assert (first / records.EXIT).exists() and (sparse / records.EXIT).exists()


@pytest.mark.attack
async def test_large_directories_of_a_tenant_prune_its_own_before_another_s(world: World) -> None:
    quiet = await ended(world, "quiet", tenant="quiet")
    world.agent.jobs.keep = Keep(size_bytes=6 << 20)  # type: ignore[attr-defined]
    large = [await ended(world, f"large{number}", LARGE, tenant="greedy") for number in range(3)]
    await world.until(lambda: not (large[1] / records.EXIT).exists())
    assert [(each / records.EXIT).exists() for each in (quiet, *large)] == [
        True,
        False,
        False,
        True,
    ]


async def test_node_answers_that_a_pruned_output_is_not_kept(world: World) -> None:
    await ended(world, "j")
    await prune(world, ALL)
    assert "no output of j attempt 1" in (await world.output("j")).error


async def test_agent_prunes_old_output_by_its_own_bounds(world: World) -> None:
    world.agent.jobs.keep = Keep(jobs=1)  # type: ignore[attr-defined]
    first = await ended(world, "first")
    second = await ended(world, "second")
    await world.until(lambda: not (first / records.EXIT).exists())
    assert (second / records.EXIT).exists()


async def test_uncopied_output_stays_until_it_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "COPY_AGAIN_S", 0.0)
    monkeypatch.setattr(closing, "LOOK_EVERY_S", 0.05)
    taken, world.outputs.put = world.outputs.put, refuse  # type: ignore[method-assign, assignment]
    await ended(world, "j")
    assert await prune(world, ALL) == PruneDone(
        jobs_left=1, bytes_left=(await prune(world, ALL)).bytes_left, uncopied=1
    )
    await world.end()
    world.outputs.put = taken  # type: ignore[method-assign]
    await world.begin()
    await world.until(lambda: "n.j.1.0.stdout" in world.outputs.values)
    async with asyncio.timeout(WAIT_S):
        while (await prune(world, ALL)).jobs_left:
            await asyncio.sleep(0.01)
    assert await world.agent.jobs.read_output(AttemptRef(JobId("j"), 1), "stdout", 0, 100) is None


async def refuse(key: str, data: bytes) -> None:
    raise Unavailable("the store is away")
