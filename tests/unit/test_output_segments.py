"""Output that rotates: offsets stay true, also when the supervisor died in the middle of a
rotation.
"""

import errno
import os
from pathlib import Path

import pytest

from services.node_agent.supervision import output
from services.node_agent.supervisor.pump import INDEX, Pump

LIMIT = 16_384
HALF = LIMIT // 2
WHOLE = bytes(n % 251 for n in range(5 * HALF))


def pumped(folder: Path, data: bytes, chunk: int = 1000) -> Pump:
    os.chdir(folder)
    read, write = os.pipe()
    pump = Pump(read, "stdout", LIMIT)
    for begin in range(0, len(data), chunk):
        os.write(write, data[begin : begin + chunk])
        pump.pump()
    os.close(write)
    return pump


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_offsets_name_the_same_bytes_after_rotations(folder: Path) -> None:
    total = 3 * HALF + 100
    pumped(folder, WHOLE[:total])
    piece = output.read(str(folder), "stdout", 0, 1 << 20)
    assert (piece.offset, piece.data) == (2 * HALF, WHOLE[2 * HALF : total])
    assert (
        output.read(str(folder), "stdout", 3 * HALF - 5, 10).data
        == WHOLE[3 * HALF - 5 : 3 * HALF + 5]
    )
    assert output.read(str(folder), "stdout", total + 50, 10) == (total, b"", False)


def test_a_job_without_output_reads_as_nothing_yet(folder: Path) -> None:
    assert output.read(str(folder), "stdout", 0, 10) == (0, b"", False)
    with pytest.raises(FileNotFoundError):
        output.read(str(folder / "nothing"), "stdout", 0, 10)


def test_the_end_is_told_only_with_the_last_byte(folder: Path) -> None:
    pumped(folder, b"0123456789")
    (folder / "exit.json").write_text("{}")
    assert output.read(str(folder), "stdout", 0, 9).end is False
    assert output.read(str(folder), "stdout", 0, 10).end is True


def test_a_rotation_cut_short_before_the_rename_is_read_right(folder: Path) -> None:
    pumped(folder, WHOLE[: 2 * HALF])
    (folder / "stdout.index").write_bytes(INDEX.pack(3, 2 * HALF))
    assert output.read(str(folder), "stdout", 0, 1 << 20) == (0, WHOLE[: 2 * HALF], False)


def test_a_rotation_cut_short_after_the_rename_is_read_right(folder: Path) -> None:
    pumped(folder, WHOLE[: 2 * HALF])
    (folder / "stdout.index").write_bytes(INDEX.pack(3, 2 * HALF))
    (folder / "stdout.log").rename(folder / "stdout.log.1")
    assert output.read(str(folder), "stdout", 0, 1 << 20) == (HALF, WHOLE[HALF : 2 * HALF], False)


def test_bytes_that_the_disk_refuses_are_counted_and_cost_no_offset(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, read_end, write_end = os.write, *os.pipe()
    pump = Pump(read_end, "stdout", LIMIT)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    for part, writing in ((b"aaa", real), (b"bbbb", full), (b"cc", real)):
        real(write_end, part)
        monkeypatch.setattr(os, "write", writing)
        pump.pump()
        monkeypatch.setattr(os, "write", real)
    assert (pump.stored, pump.dropped) == (5, 4)
    assert output.read(str(folder), "stdout", 0, 10).data == b"aaacc"


def test_the_tail_is_the_newest_bytes(folder: Path) -> None:
    pumped(folder, WHOLE[: HALF + 10])
    assert output.tail(str(folder), "stdout", 20) == (
        HALF - 10,
        WHOLE[HALF - 10 : HALF + 10],
        False,
    )
