"""An agent that cannot stop, close or forget a job, or has very many old directories: it stays."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from agent_world import NODE, WAIT_S, World, world_at
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.errors import Unavailable
from libs.common.messages import PruneAsk, PruneDone
from libs.common.model import AttemptRef, JobId
from libs.common.subjects import ask_node
from services.node_agent.directories import kept_directories, stops
from services.node_agent.directories.kept_directories import Scanned
from services.node_agent.jobs import closing
from services.node_agent.supervision import control_client
from services.node_agent.supervisor import records

WHILE_S = 0.3


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


async def test_a_stop_that_cannot_reach_the_supervisor_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "AGAIN_S", 0.05)
    connected, failed = control_client._connected, []

    def without_descriptors(job_dir: str) -> object:
        if len(failed) < 8:
            failed.append(job_dir)
            raise OSError(24, "Too many open files")
        return connected(job_dir)

    await world.start("j", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done")
    assert (await world.output("j", wait_ms=5_000)).data == b"ready\n"
    monkeypatch.setattr(control_client, "_connected", without_descriptors)
    await world.scheduler.send(world.stop_order("j"))
    assert (await world.said(f.JobFinished, "j")).exit_code == 3
    assert len(failed) == 8 and not world.life.done()


async def test_a_stop_is_not_repeated_after_a_later_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "AGAIN_S", 0.01)
    connected, are_free = control_client._connected, asyncio.Event()

    def without_descriptors(job_dir: str) -> object:
        if not are_free.is_set():
            raise OSError(24, "Too many open files")
        return connected(job_dir)

    script = "trap 'exit 3' TERM; trap 'exit 4' INT; echo ready; while :; do sleep 0.02; done"
    await world.start("j", script)
    assert (await world.output("j", wait_ms=5_000)).data == b"ready\n"
    monkeypatch.setattr(control_client, "_connected", without_descriptors)
    ref, ends = AttemptRef(JobId("j"), 1), []
    for number in (signal.SIGTERM, signal.SIGINT):
        ends.append(asyncio.create_task(world.agent.jobs.stop(ref, number, 60_000)))
        await asyncio.sleep(0.05)
    assert [end.done() for end in ends] == [True, False]
    are_free.set()
    assert (await world.said(f.JobFinished, "j")).exit_code == 4
    await asyncio.gather(*ends)


async def test_a_stop_ends_if_a_later_one_was_done_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "AGAIN_S", WHILE_S)
    connected = control_client._connected

    def without_descriptors(job_dir: str) -> object:
        raise OSError(24, "Too many open files")

    await world.start("j", "trap 'exit 4' INT; echo ready; while :; do sleep 0.02; done")
    assert (await world.output("j", wait_ms=5_000)).data == b"ready\n"
    ref = AttemptRef(JobId("j"), 1)
    monkeypatch.setattr(control_client, "_connected", without_descriptors)
    first = asyncio.create_task(world.agent.jobs.stop(ref, signal.SIGTERM, 60_000))
    await asyncio.sleep(WHILE_S / 3)
    monkeypatch.setattr(control_client, "_connected", connected)
    await world.agent.jobs.stop(ref, signal.SIGINT, 60_000)
    await asyncio.wait_for(first, WAIT_S)
    assert (await world.said(f.JobFinished, "j")).exit_code == 4


async def test_job_whose_supervisor_can_never_be_reached_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "AGAIN_S", 0.01)

    async def unreachable(*asked: object) -> None:
        raise Unavailable("its supervisor cannot be asked")

    await world.start("j", "exec sleep 100")
    await world.said(f.JobStarted, "j")
    monkeypatch.setattr(control_client, "ask_until_listening", unreachable)
    await world.scheduler.send(world.stop_order("j", grace_ms=1))
    await world.said(f.JobFinished, "j")
    assert not world.life.done()


async def test_a_closing_that_fails_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "LOOK_EVERY_S", 0.05)
    rename, failed = os.rename, []

    def broken(source: str, target: str) -> None:
        if str(target).endswith(records.DONE) and not failed:
            failed.append(target)
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", broken)
    await world.end()
    await world.begin()  # its closings look in the shorter interval
    await world.start("j", "true")
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    assert failed and not world.life.done()


async def test_job_whose_directory_a_person_removed_does_not_end_the_agent(world: World) -> None:
    await world.start("j", "until [ -e ../go ]; do sleep 0.02; done")
    await world.said(f.JobStarted, "j")
    world.agent.closing.at_once = asyncio.Semaphore(0)
    (world.state_dir / ".." / "go").touch()
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until(lambda: world.agent.closing.waiting > 0)
    shutil.rmtree(world.state_dir / "jobs" / "j.1")
    world.agent.closing.at_once.release()
    await world.until(lambda: world.agent.closing.waiting == 0)
    await world.start("next", "exit 4")
    assert (await world.said(f.JobFinished, "next")).exit_code == 4
    assert world.agent.closing.failed == []


async def test_agent_registers_before_it_has_read_the_directories_of_ended_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in ("first", "second"):
        await world.start(job, "echo hello")
        await world.said(f.JobReleased, job)
        world.closed(job)
        await world.until((world.state_dir / "jobs" / f"{job}.1" / records.DONE).exists)
    await world.end()
    go, scan = threading.Event(), kept_directories._scan

    def slow(job_dir: str) -> Scanned:
        go.wait()
        return scan(job_dir)

    monkeypatch.setattr(kept_directories, "_scan", slow)
    try:
        await world.begin()
        await world.start("third", "exit 4")
        assert (await world.said(f.JobFinished, "third")).exit_code == 4
        world.closed("third")
        await world.until((world.state_dir / "jobs" / "third.1" / records.DONE).exists)
        kept = world.agent.jobs.kept  # type: ignore[attr-defined]
        assert not kept.kept
    finally:
        go.set()
    await world.until(lambda: len(kept.kept) == 3)
    assert list(kept.kept) == ["first.1", "second.1", "third.1"]
    assert kept.size_bytes == sum(one.size_bytes for one in kept.kept.values())


async def test_agent_ends_while_it_reads_the_directories_of_ended_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("j", "echo hello")
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    await world.end()
    go = threading.Event()
    monkeypatch.setattr(kept_directories, "_scan", lambda job_dir: go.wait())
    await world.begin()
    try:
        await world.end()
    finally:
        go.set()


async def test_a_directory_that_cannot_be_read_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start("j", "echo hello")
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    await world.end()

    def broken(job_dir: str) -> Scanned:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(kept_directories, "_scan", broken)
    await world.begin()
    await world.until(world.agent.jobs.kept.loaded.is_set)  # type: ignore[attr-defined]
    await world.agent.jobs.prune()
    assert world.agent.jobs.kept.kept == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", ["_scan", "listdir"])
async def test_directories_are_read_again_after_descriptors_were_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(kept_directories, "LOAD_AGAIN_S", 0.05)
    await world.place(replace(world.order("j", "echo hello"), rank=3))
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.until((world.state_dir / "jobs" / "j.1" / records.DONE).exists)
    await world.end()
    are_free, failed, jobs_dir = threading.Event(), [], world.state_dir.resolve() / "jobs"

    def without_descriptors(real: Callable[[str], object], path: str) -> object:
        if (
            path == (jobs_dir if fails == "listdir" else f"{jobs_dir}/j.1")
            and not are_free.is_set()
        ):
            failed.append(path)
            raise OSError(24, "Too many open files")
        return real(path)

    await world.begin()
    await world.until(world.agent.jobs.kept.loaded.is_set)  # type: ignore[attr-defined]
    (jobs_dir / "j.1" / kept_directories.UNCOPIED).touch()
    kept = kept_directories.KeptDirectories(jobs_dir)
    world.agent.jobs.kept = kept  # type: ignore[attr-defined]
    owner = kept_directories if fails == "_scan" else os
    monkeypatch.setattr(owner, fails, partial(without_descriptors, getattr(owner, fails)))
    loading = asyncio.create_task(kept.load())
    await world.until(lambda: len(failed) > 1)
    ask = msgspec.msgpack.encode(PruneAsk(0, 0, False))
    answer = await world.bus.request(ask_node(NODE, "prune"), ask, WAIT_S)
    done = msgspec.msgpack.decode(answer, type=PruneDone)
    assert done == PruneDone(error="it still reads its old directories: try again later")
    are_free.set()
    await loading
    assert list(kept.kept) == ["j.1"] and kept.held == {"j.1": 3}


async def test_a_release_check_that_fails_quarantines_the_device_and_the_agent_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(uuids: object) -> object:
        raise RuntimeError("a bug")

    world.agent.state.release_ns = 300_000_000
    monkeypatch.setattr(world.driver, "unclean", broken)
    await world.start("j", "true")
    released = await world.said(f.JobReleased, "j")
    assert "a bug" in released.checks["processes"]
    assert [fault.reason for fault in world.facts(f.GpuFaulted)] == ["quarantined"]
