"""A job's files as its node gives them: every byte below the working directory, also after the end,
and nothing outside of it.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common import facts as f
from libs.common.messages.file_messages import (
    MISSING,
    OUTSIDE,
    PART_BYTES,
    PART_NAMES,
    PRUNED,
    UNREADABLE,
    FileAsk,
    FilePart,
)
from libs.common.model import AttemptRef, JobId
from libs.common.subjects import ask_node
from tests.integration.agent_world import NODE, WAIT_S, World, world_at


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "state") as found:
        yield found


@pytest.fixture
async def root(world: World) -> Path:
    """The working directory of a job that has ended."""
    await world.start("j1", "true")
    await world.said(f.JobReleased, "j1")
    return world.state_dir


async def asked(
    world: World, path: bytes | str, job: str = "j1", offset: int = 0, after: bytes = b""
) -> FilePart:
    ask = FileAsk(
        job_id=JobId(job),
        attempt=1,
        path=path.encode() if isinstance(path, str) else path,
        offset=offset,
        after=after,
    )
    answer = await world.bus.request(ask_node(NODE, "files"), msgspec.msgpack.encode(ask), WAIT_S)
    return msgspec.msgpack.decode(answer, type=FilePart)


async def test_a_file_is_read_part_by_part_while_the_job_runs_and_after_its_end(
    world: World,
) -> None:
    data = os.urandom(PART_BYTES + 100)
    (world.state_dir / "sub").mkdir()
    (world.state_dir / "sub/model.bin").write_bytes(data)
    await world.start("j1", "sleep 60")
    await world.said(f.JobStarted, "j1")
    for _ in range(2):
        first = await asked(world, "sub/model.bin")
        second = await asked(world, f"{world.state_dir}/sub/model.bin", offset=PART_BYTES)
        assert (
            first.data + second.data == data
            and first.size_bytes == len(data)
            and first.identity == second.identity
        )
        await world.scheduler.send(world.stop_order("j1"))
        await world.said(f.JobReleased, "j1")
        await world.until(lambda: not world.agent.state.attempts)
        await asyncio.sleep(0.1)
    await world.end()
    await world.begin()
    assert (await asked(world, "sub/model.bin")).data == data[:PART_BYTES]


async def test_a_folder_is_its_names_in_order_a_page_at_a_time(world: World, root: Path) -> None:
    folder = root / "many"
    folder.mkdir()
    for number in range(PART_NAMES + 3):
        (folder / f"{number:05}").touch()
    (folder / "a-link").symlink_to("00000")
    (folder / "b-folder").mkdir()
    os.mkfifo(folder / "c-pipe")
    os.close(os.open(os.fsencode(folder) + b"/\xff", os.O_CREAT))
    first = await asked(world, "many")
    assert first.more and len(first.names) == PART_NAMES and first.names[0].name == b"00000"
    rest = await asked(world, "many", after=first.last)
    assert not rest.more
    assert [(each.name, each.kind, each.target) for each in rest.names[3:]] == [
        (b"a-link", "link", b"00000"),
        (b"b-folder", "folder", b""),
        (b"\xff", "file", b""),
    ]
    assert (await asked(world, b"many/\xff")).kind == "file"


@pytest.mark.parametrize(
    "way",
    [
        "..",
        "../secret",
        "/etc/passwd",
        "out",
        "out/secret",
        "sub/../../secret",
        "chain/secret",
        "above",
    ],
)
async def test_no_path_and_no_link_leads_out(world: World, root: Path, way: str) -> None:
    (root.parent / "secret").write_text("not yours")
    (root / "sub").mkdir()
    (root / "out").symlink_to("..")
    (root / "sub/up").symlink_to("../..")
    (root / "chain").symlink_to("sub/up")
    (root / "above").symlink_to(root.parent / "secret")
    found = await asked(world, way)
    assert found.fault == OUTSIDE and not found.data and not found.names


async def test_a_link_within_is_followed_and_one_that_leads_nowhere_is_missing(
    world: World, root: Path
) -> None:
    (root / "ckpt-300").mkdir()
    (root / "ckpt-300/w").write_text("x")
    (root / "latest").symlink_to("ckpt-300")
    (root / "absolute").symlink_to(root / "ckpt-300/w")
    (root / "broken").symlink_to("gone")
    assert (await asked(world, "latest/w")).data == (await asked(world, "absolute")).data == b"x"
    for path in ("broken", "nowhere", "latest/w/deeper"):
        assert (await asked(world, path)).fault == MISSING


async def test_special_files_do_not_block_the_agent(world: World, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert (await asked(world, "pipe")).fault == UNREADABLE
    assert (await asked(world, "a\0b")).fault == UNREADABLE


async def test_a_link_in_the_place_of_an_upload_s_directory_is_not_followed(
    world: World, root: Path
) -> None:
    (root / "real").mkdir()
    (root / "real/x").write_text("x")
    (root / "files").symlink_to("/etc")
    from services.node_agent.jobs.files import Fault, read

    with pytest.raises((Fault, OSError)):
        read(str(root / "files"), True, FileAsk(JobId("j1"), 1, b"passwd"))
    assert read(str(root / "real"), True, FileAsk(JobId("j1"), 1, b"x")).data == b"x"


async def test_an_attempt_of_which_nothing_is_here_is_named(world: World, root: Path) -> None:
    found = await asked(world, "x", job="j9")
    assert found.fault == PRUNED and "job j9, attempt 1" in found.text and NODE in found.text
    assert world.agent.jobs.root_of(AttemptRef(JobId("j1"), 1)) == (str(root), False, [])
