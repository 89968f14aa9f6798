"""Uploads on a node: a job starts in its unpacked upload or gets one clear refusal.

No other job waits for an upload.
"""

import asyncio
import errno
import io
import os
import tarfile
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import AttemptRef
from libs.common.subjects import ask_uploads
from libs.common.transport.uploads import Bounds, UploadAsk, UploadPiece
from services.node_agent.directories.job_directories import JobDirectories
from tests.integration.agent_world import NODE, World, world_at

PIECE = 4_096


def archive(**files: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


DATA = archive(hello=b"from far away\n")


class Gateway:
    """A gateway that serves `data`; it waits before each piece while `held`."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.refused = ""
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()

    async def answer(self, subject: str, data: bytes) -> bytes:
        mark = msgspec.msgpack.decode(data, type=UploadAsk).mark
        self.asked += 1
        await self.go.wait()
        piece = self.data[mark : mark + PIECE]
        return msgspec.msgpack.encode(
            UploadPiece(len(self.data), mark + len(piece), piece, self.refused)
        )


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def world(tmp_path: Path, gateway: Gateway) -> AsyncIterator[World]:
    async with world_at(tmp_path / "state") as found:
        await found.bus.subscribe(ask_uploads(NODE), gateway.answer, concurrent=True)
        yield found


async def start(world: World, job: str, script: str, sha: str, image: str = "") -> StartOrder:
    order = world.order(job, script)
    order = replace(order, spec=replace(order.spec, workdir="", upload=sha, image=image))
    world.scheduler.starts[AttemptRef(order.job_id, 1)] = order
    await world.scheduler.send(order)
    return order


def job_dir(world: World, job: str) -> Path:
    return world.state_dir / "jobs" / f"{job}.1"


async def test_the_directory_is_where_the_job_runs_and_is_its_own(world: World) -> None:
    for job in ("j1", "j2"):
        await start(world, job, "cat hello; pwd; echo more >> hello", sha256(DATA).hexdigest())
    for job in ("j1", "j2"):
        assert (await world.said(f.JobFinished, job)).exit_code == 0
        assert (
            await world.output(job)
        ).data.decode() == f"from far away\n{job_dir(world, job)}/files\n"
    assert world.of("j1") == ["job.started", "job.finished", "job.released"]


async def test_upload_of_a_refused_job_is_deleted(world: World) -> None:
    await start(world, "j1", "true", sha256(DATA).hexdigest(), image="busybox:1")
    assert "no container engine" in (await world.said(f.JobRefused, "j1")).reason
    assert not job_dir(world, "j1").exists()


@pytest.mark.parametrize(
    "wrong", ["other bytes", "cut off", "too large", "no archive", "hostile", "not kept", "no disk"]
)
async def test_an_upload_that_is_not_what_it_should_be_is_one_refusal_and_leaves_nothing(
    world: World, gateway: Gateway, wrong: str
) -> None:
    named = DATA
    if wrong == "other bytes":
        gateway.data = archive(hello=b"from elsewhere")
    if wrong == "cut off":
        gateway.data = DATA[:PIECE]
    if wrong == "too large":
        assert isinstance(world.agent.jobs, JobDirectories)
        world.agent.jobs.unpacking.bounds = Bounds(PIECE, 10)
    if wrong == "no archive":
        gateway.data = named = os.urandom(3 * PIECE)
    if wrong == "hostile":
        gateway.data = named = archive(**{"../../../hello": b"x"})
    if wrong == "no disk":
        assert isinstance(world.agent.jobs, JobDirectories)
        world.agent.jobs.unpacking.state_dir = Path("/proc")
    if wrong == "not kept":
        gateway.refused = "its upload is not kept any more"
    await start(world, "j1", "true", sha256(named).hexdigest())
    refusal = await world.said(f.JobRefused, "j1")
    expected = {
        "too large": "MUSTER_UPLOAD_BYTES",
        "no archive": "broken",
        "hostile": "leads out",
        "not kept": "not kept any more",
        "no disk": "cannot be kept on this node",
    }
    assert (
        expected.get(wrong, "another SHA-256") in refusal.reason
        and "j1.1 cannot be started" in refusal.reason
    )
    assert world.of("j1") == ["job.refused"] and not job_dir(world, "j1").exists()
    assert (
        not (world.state_dir / "hello").exists()
        and not (world.state_dir / "jobs" / "hello").exists()
    )


async def test_neither_heartbeats_nor_other_jobs_wait_for_an_upload(
    world: World, gateway: Gateway
) -> None:
    gateway.go.clear()
    for job in ("j1", "j2", "j3"):
        await start(world, job, "true", sha256(DATA).hexdigest())
    await world.until(lambda: gateway.asked > 0)
    beats = world.agent.heartbeats.granted
    await world.start("other", "true")
    await world.said(f.JobReleased, "other")
    await world.until(lambda: world.agent.heartbeats.granted[0] > beats[0])
    assert world.of("j1") == []
    gateway.go.set()
    for job in ("j1", "j2", "j3"):
        assert (await world.said(f.JobFinished, job)).exit_code == 0


async def test_job_stopped_during_its_upload_never_begins(world: World, gateway: Gateway) -> None:
    gateway.go.clear()
    await start(world, "j1", f"touch {world.state_dir}/began", sha256(DATA).hexdigest())
    await world.until(lambda: gateway.asked > 0)
    await world.scheduler.send(world.stop_order("j1"))
    await world.until(lambda: next(iter(world.agent.state.attempts.values())).stop is not None)
    gateway.go.set()
    assert "stopped before it" in (await world.said(f.JobRefused, "j1")).reason
    assert not (world.state_dir / "began").exists() and not job_dir(world, "j1").exists()


async def test_an_agent_that_dies_while_it_unpacks_leaves_nothing_that_stays(
    world: World, gateway: Gateway
) -> None:
    gateway.go.clear()
    await start(world, "j1", "true", sha256(DATA).hexdigest())
    await world.until(lambda: gateway.asked > 0)
    (job_dir(world, "j1") / "files").mkdir(parents=True)
    await world.drop()
    world.closed("j1")
    gateway.go.set()
    await world.begin()
    assert not job_dir(world, "j1").exists()
    await start(world, "j2", "cat hello", sha256(DATA).hexdigest())
    assert (await world.said(f.JobFinished, "j2")).exit_code == 0


async def test_an_archive_that_cannot_be_read_is_a_refusal(world: World) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield DATA
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    ref = AttemptRef(world.order("j1", "").job_id, 1)
    with pytest.raises(Refused, match="cannot be kept on this node: Input/output error"):
        await world.agent.jobs.unpack(ref, sha256(DATA).hexdigest(), pieces(), lambda: True)
    assert not job_dir(world, "j1").exists()


async def test_an_upload_of_an_attempt_that_was_started_before_is_not_unpacked_again(
    world: World,
) -> None:
    await start(world, "j1", "echo mine > hello", sha256(DATA).hexdigest())
    await world.said(f.JobReleased, "j1")

    async def pieces() -> AsyncIterator[bytes]:
        yield DATA

    with pytest.raises(Exception, match="was started before"):
        await world.agent.jobs.unpack(
            AttemptRef(world.order("j1", "").job_id, 1),
            sha256(DATA).hexdigest(),
            pieces(),
            lambda: True,
        )
    assert (job_dir(world, "j1") / "files" / "hello").read_text() == "mine\n"
