"""Files of the agent that keep their space on a disk."""

import os
from pathlib import Path

import pytest

from services.node_agent.machine import synced_file


def test_a_file_takes_over_the_blocks_of_the_content_before(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    synced_file.exchange(path, b"1" * 4_096)
    files = {os.stat(tmp_path / name).st_ino for name in ("known.json", "known.spare")}
    for data in (b"2" * 4_096, b"3" * 100, b"4" * 4_096):
        synced_file.exchange(path, data)
        assert path.read_bytes() == data
        found = {os.stat(tmp_path / name).st_ino for name in os.listdir(tmp_path)}
        assert found == files
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_where_names_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synced_file, "_libc", object())
    for data in (b"one", b"two", b"three"):
        synced_file.exchange(tmp_path / "known.json", data)
        assert (tmp_path / "known.json").read_bytes() == data


def test_the_content_before_stays_if_the_next_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    synced_file.exchange(path, b"before")
    (tmp_path / "known.spare").unlink()
    (tmp_path / "known.spare").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        synced_file.exchange(path, b"after")
    assert path.read_bytes() == b"before" and not (tmp_path / "elsewhere").exists()


def test_space_is_reserved_before_there_is_a_file(tmp_path: Path) -> None:
    synced_file.reserve(tmp_path / "known.json", 8_192)
    reserved = {path.stat().st_ino: path.stat().st_size for path in tmp_path.iterdir()}
    assert [*reserved.values()] == [8_192] * 2 and not (tmp_path / "known.json").exists()
    for data in (b"x" * 8_192, b"y" * 8_192):
        synced_file.exchange(tmp_path / "known.json", data)
        synced_file.reserve(tmp_path / "known.json", 8_192)
        assert (tmp_path / "known.json").read_bytes() == data
    assert {path.stat().st_ino for path in tmp_path.iterdir()} == reserved.keys()
