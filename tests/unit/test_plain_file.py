"""Files at paths that another user chose: only files are opened."""

import os
import socket
from pathlib import Path

import pytest

from libs.common.safety import plain_file


def test_the_beginning_and_the_size_of_a_file_are_returned_also_through_a_link(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    assert plain_file.beginning(str(tmp_path / "link"), 4) == (b"0123", 10)
    assert plain_file.beginning(str(tmp_path / "file"), 99) == (b"0123456789", 10)


def test_pipes_sockets_folders_and_devices_are_not_opened(tmp_path: Path) -> None:
    """To open the pipe would wait for ever: nothing writes to it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    before = os.listdir("/proc/self/fd")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket", "zero", "."):
            with pytest.raises(OSError, match="it is not a file"):
                plain_file.opened(f"{tmp_path}/{name}")
    with pytest.raises(FileNotFoundError):
        plain_file.opened(str(tmp_path / "none"))
    assert os.listdir("/proc/self/fd") == before
