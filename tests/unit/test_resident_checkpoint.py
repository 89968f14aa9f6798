"""The SHA-256 of a checkpoint's files: read once, read again after a change, compared."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.messages import KeepOrder
from libs.common.model import GpuId
from libs.common.state.kept import kept_key
from services.node_agent.core.keeping import Keeps
from services.node_agent.resident import checkpoint
from services.node_agent.resident.checkpoint import Checkpoints
from services.node_agent.resident.device_orders import DeviceOrders
from services.node_agent.resident.trees import Differs

WAIT_S = 20.0
PAST_NS = 10 * checkpoint.SETTLED_NS


def order(folder: Path, **files: str) -> KeepOrder:
    return KeepOrder(
        model="chat",
        tier="gpu",
        tenant="default",
        request=1,
        number=1,
        state="filling",
        weights=str(folder),
        files={name.replace("_", "."): digest for name, digest in files.items()},
    )


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.mkdir()
    (made / "one.bin").write_bytes(b"one")
    (made / "two.bin").write_bytes(b"two")
    return made


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files were written long ago."""
    now_ns = time.time_ns
    monkeypatch.setattr(checkpoint.time, "time_ns", lambda: now_ns() + PAST_NS)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    digest = checkpoint.hash_of

    def counted(stream: BinaryIO, size: int, wanted: Callable[[], bool]) -> str:
        found.append("file")
        return digest(stream, size, wanted)

    monkeypatch.setattr(checkpoint, "hash_of", counted)
    return found


@pytest.mark.usefixtures("later")
def test_files_are_read_once_also_by_the_next_agent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reads(monkeypatch)
    files = {"one.bin": sha(b"one"), "two.bin": sha(b"two")}
    for _ in range(2):
        known = Checkpoints(tmp_path / "state" / "known.json")
        for _ in range(2):
            assert known.read(order(folder), ()) == files
    assert len(read) == 2


@pytest.mark.usefixtures("later")
def test_a_file_that_changed_is_read_again_also_with_its_old_size_and_time(
    folder: Path, tmp_path: Path
) -> None:
    known = Checkpoints(tmp_path / "known.json")
    known.read(order(folder), ())
    before = os.stat(folder / "one.bin")
    with open(folder / "one.bin", "r+b") as stream:
        stream.write(b"eno")
    os.utime(folder / "one.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known.read(order(folder), ())["one.bin"] == sha(b"eno")


def test_a_file_that_changed_a_moment_ago_is_not_trusted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reads(monkeypatch)
    known = Checkpoints(tmp_path / "known.json")
    known.read(order(folder), ())
    known.read(order(folder), ())
    assert len(read) == 4 and not known.known


@pytest.mark.parametrize(
    "recorded",
    [
        {"one_bin": sha(b"1"), "two_bin": sha(b"two")},
        {"one_bin": sha(b"one")},
        {"one_bin": sha(b"one"), "two_bin": sha(b"two"), "three_bin": sha(b"three")},
    ],
)
def test_a_checkpoint_that_differs_from_the_recorded_one_is_refused(
    folder: Path, tmp_path: Path, recorded: dict[str, str]
) -> None:
    with pytest.raises(Differs, match=r"\.bin has the SHA-256 .*, and .* is recorded"):
        Checkpoints(tmp_path / "known.json").read(order(folder, **recorded), ())


@pytest.mark.usefixtures("later")
def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = checkpoint.hash_of

    def slow(stream: BinaryIO, size: int, wanted: Callable[[], bool]) -> str:
        with open(folder / "one.bin", "ab") as more:
            more.write(b"more")
        return digest(stream, size, wanted)

    monkeypatch.setattr(checkpoint, "hash_of", slow)
    with pytest.raises(Refused, match=r"one\.bin changed while it was read"):
        Checkpoints(tmp_path / "known.json").read(order(folder), ())


def test_an_empty_or_missing_folder_is_refused(tmp_path: Path) -> None:
    known = Checkpoints(tmp_path / "known.json")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in ((empty, "has no files"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(Refused, match=words):
            known.read(order(path), ())


@pytest.mark.usefixtures("later")
def test_files_beyond_the_bound_are_forgotten(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "KNOWN_MAX", 1)
    known = Checkpoints(tmp_path / "known.json")
    known.read(order(folder), ())
    assert list(known.known) == [f"{folder}/two.bin"]


def test_files_that_are_far_too_large_for_their_devices_are_not_read(
    folder: Path, tmp_path: Path
) -> None:
    """A sparse file costs its owner nothing, and would be read for ever."""
    os.truncate(folder / "one.bin", 1 << 43)
    asked = replace(order(folder), gpu_bytes={GpuId("g"): 1 << 30})
    with pytest.raises(Refused, match="more than 64 times the 1073741824 bytes that its devices"):
        Checkpoints(tmp_path / "known.json").read(asked, ())


def test_reading_ends_when_the_files_are_not_wanted_any_more(folder: Path, tmp_path: Path) -> None:
    os.truncate(folder / "one.bin", 1 << 43)
    answers = iter((True, False))
    with pytest.raises(Refused, match="not wanted on this node any more"):
        Checkpoints(tmp_path / "known.json").read(order(folder), (), lambda: next(answers))


async def test_a_tenants_large_files_delay_no_other_tenant(folder: Path, tmp_path: Path) -> None:
    """The first file would be read for hours; its reading ends with the call."""
    large = tmp_path / "large"
    large.mkdir()
    (large / "file").touch()
    os.truncate(large / "file", 1 << 43)
    first = replace(order(large), tenant="first", model="a")
    second = replace(order(folder), tenant="second", model="b")
    orders = DeviceOrders(tmp_path / "state", tmp_path / "sockets", lambda order: ())
    keeps = Keeps(wanted={kept_key(each.model, "gpu"): each for each in (first, second)})
    orders.keeps = lambda: keeps
    reading = asyncio.create_task(orders.read(first))
    await asyncio.sleep(0)
    assert len(await asyncio.wait_for(orders.read(second), WAIT_S)) == 2
    assert not reading.done()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    async with asyncio.timeout(WAIT_S):
        while orders.readers.reads:
            await asyncio.sleep(0.01)
    await orders.close()
