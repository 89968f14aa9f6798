"""The same directory gives the same archive anywhere; what is ignored stays out; what cannot be
sent is named.
"""

import io
import os
import socket
from pathlib import Path

import pytest

from libs.cli.formats.packing import Packed, pack
from libs.common.errors import Refused
from libs.common.safety.unpacking import unpack
from libs.common.transport.uploads import Bounds

BOUNDS = Bounds(1 << 20, 100)


def fill(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src/train.py").write_text("print('hello')")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    (folder / "latest").symlink_to("src/train.py")
    return folder


def packed(folder: Path, bounds: Bounds = BOUNDS) -> Packed:
    return pack(folder, io.BytesIO(), bounds)


def names(folder: Path, tmp_path: Path) -> list[str]:
    """Return the paths that `unpack` creates from the packed folder."""
    file, into = io.BytesIO(), tmp_path / "unpacked"
    pack(folder, file, BOUNDS)
    file.seek(0)
    unpack(file, into, 100)
    return sorted(str(path.relative_to(into)) for path in into.rglob("*"))


def test_equal_directories_have_equal_names(tmp_path: Path) -> None:
    first, second = fill(tmp_path / "a"), fill(tmp_path / "b")
    os.utime(second / "run.sh", (1, 1))
    (second / "src/train.py").chmod(0o600)
    assert packed(first) == packed(second)
    (second / "src/train.py").write_text("print('other')")
    assert packed(first).sha256 != packed(second).sha256
    (first / "run.sh").chmod(0o644)
    assert packed(first).sha256 != packed(fill(tmp_path / "c")).sha256


def test_an_archive_unpacks_to_the_same_directory(tmp_path: Path) -> None:
    assert names(fill(tmp_path / "a"), tmp_path) == [
        "empty",
        "latest",
        "run.sh",
        "src",
        "src/train.py",
    ]
    assert (tmp_path / "unpacked/latest").read_text() == "print('hello')" and os.access(
        tmp_path / "unpacked/run.sh", os.X_OK
    )


def test_files_named_by_the_ignore_file_stay_out(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a")
    for name in (
        "data/big",
        "src/x.pyc",
        "keep.pyc",
        ".git/HEAD",
        ".muster/keys/seed",
        "docs/build/x",
        "build/y",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".gitignore").write_text("/data\n*.pyc\n!/keep.pyc\n/build/\n# nothing\n\n")
    kept = [
        ".gitignore",
        "docs",
        "docs/build",
        "docs/build/x",
        "empty",
        "keep.pyc",
        "latest",
        "run.sh",
        "src",
        "src/train.py",
    ]
    assert names(folder, tmp_path) == kept


def test_musterignore_replaces_gitignore(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a")
    (folder / ".gitignore").write_text("*.sh\n")
    (folder / ".musterignore").write_text("src/\n!.git/\n")
    (folder / ".git").mkdir()
    (folder / "latest").unlink()
    assert names(folder, tmp_path) == [".git", ".gitignore", ".musterignore", "empty", "run.sh"]


@pytest.mark.parametrize("target", ["/etc/hosts", "../../elsewhere", "src/../../a2"])
def test_a_link_out_of_the_directory_is_refused_by_name(tmp_path: Path, target: str) -> None:
    folder = fill(tmp_path / "a")
    (folder / "out").symlink_to(target)
    with pytest.raises(Refused, match=r"out is a link out of the directory .*musterignore"):
        packed(folder)
    (folder / ".musterignore").write_text("out\n")
    packed(folder)


def test_a_directory_over_the_bounds_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a")
    with open(folder / "weights", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Refused, match=r"1 MiB at weights.*musterignore"):
        packed(folder)
    (folder / "weights").unlink()
    with pytest.raises(Refused, match="exceeds 3 files"):
        packed(folder, Bounds(1 << 20, 3))


def test_special_files_are_skipped_and_reported(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        assert packed(folder).left_out == ("pipe", "s")
    assert packed(folder).sha256 == packed(fill(tmp_path / "b")).sha256


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "none"):
        with pytest.raises(Refused, match=f"{name} .*--upload needs a directory"):
            packed(tmp_path / name)
