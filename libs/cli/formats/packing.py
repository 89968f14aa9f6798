"""Packs a directory for `--upload` into a reproducible archive, named by its SHA-256.

Entries are sorted and have no times, no owners, and only the executable bit of their modes, so the
same directory gives the same archive on every machine. Files that `.musterignore` (or, without one,
`.gitignore`) names stay out; only the file at the top is read. Tests: tests/unit/test_packing.py.
"""

import hashlib
import os
import tarfile
from collections.abc import Iterator
from io import BufferedRandom, BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from pathspec import GitIgnoreSpec

from libs.common.errors import Refused
from libs.common.transport.uploads import Bounds

IGNORE_FILES: Final = (".musterignore", ".gitignore")
# Excluded by default: a version history, and a cluster's state with its keys. To include one, put
# `!.git/` into the ignore file.
EXCLUDED: Final = (".git/", ".muster/")
BLOCK: Final = 512
# The padded end of an archive.
END_BYTES: Final = 10_240


class Packed(NamedTuple):
    """A packed directory. `left_out` names sockets, pipes and devices, which are not packed."""

    sha256: str
    size_bytes: int
    files: int
    left_out: tuple[str, ...]


def pack(directory: Path, archive: BufferedRandom | BytesIO, bounds: Bounds) -> Packed:
    """Write the archive of `directory` to an empty file.

    Raises Refused with the path and the reason, before large files are read.
    """
    walk = _Walk(directory, bounds)
    names = list(walk)
    with tarfile.open(
        fileobj=archive, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8"
    ) as tar:
        for name in names:
            _add(tar, directory, name)
    size = archive.tell()
    archive.seek(0)
    return Packed(
        hashlib.file_digest(archive, "sha256").hexdigest(), size, len(names), tuple(walk.left_out)
    )


class _Walk:
    """The names below a directory that are not ignored, each folder before its content."""

    def __init__(self, directory: Path, bounds: Bounds) -> None:
        self.directory, self.bounds = directory, bounds
        self.ignored = GitIgnoreSpec.from_lines([*EXCLUDED, *_ignore_lines(directory)])
        self.left_out: list[str] = []
        self.files = 0
        self.bytes = END_BYTES

    def __iter__(self) -> Iterator[str]:
        return self._below("")

    def _below(self, folder: str) -> Iterator[str]:
        try:
            entries = sorted(os.scandir(self.directory / folder), key=lambda entry: entry.name)
        except OSError as error:
            raise Refused(
                f"cannot read {self.directory / folder} ({error.strerror}): --upload needs a "
                "directory"
            ) from error
        for entry in entries:
            name = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if self.ignored.match_file(name + "/" * is_folder):
                continue
            if not (is_folder or entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                self.left_out.append(name)
                continue
            self._count(entry, name)
            yield name
            if is_folder:
                yield from self._below(name + "/")

    def _count(self, entry: "os.DirEntry[str]", name: str) -> None:
        size = (
            entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
        )
        self.files += 1
        self.bytes += BLOCK + -(-size // BLOCK) * BLOCK
        what = f"{self.directory} is too large to upload"
        if self.bytes > self.bounds.size_bytes:
            raise Refused(
                f"{what}: it exceeds {self.bounds.size_bytes >> 20} MiB at {name}; "
                "exclude files in "
                ".musterignore"
            )
        if self.files > self.bounds.files:
            raise Refused(
                f"{what}: it exceeds {self.bounds.files} files at {name}; exclude files in "
                ".musterignore"
            )


def _ignore_lines(directory: Path) -> list[str]:
    for name in IGNORE_FILES:
        try:
            return (directory / name).read_text(errors="surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise Refused(f"cannot read {directory / name}: {error.strerror}") from error
    return []


def _add(tar: tarfile.TarFile, directory: Path, name: str) -> None:
    """Add an entry with the metadata that the content determines."""
    path = directory / name
    member = tarfile.TarInfo(name)
    try:
        if path.is_symlink():
            member.type, member.linkname, member.mode = (
                tarfile.SYMTYPE,
                _target(directory, name),
                0o777,
            )
            tar.addfile(member)
        elif path.is_dir():
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        else:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                member.size, member.mode = (
                    status.st_size,
                    0o755 if status.st_mode & 0o100 else 0o644,
                )
                tar.addfile(member, file)
    except OSError as error:
        raise Refused(
            f"cannot upload {path} ({error.strerror or 'it changed while it was read'})"
        ) from error


def _target(directory: Path, name: str) -> str:
    """Return the target of a symbolic link.

    Raises Refused if it points out of the directory, because a node does not have the target.
    """
    target, root = os.readlink(directory / name), os.path.realpath(directory)
    if os.path.isabs(target) or not (os.path.realpath(directory / name) + "/").startswith(
        root + "/"
    ):
        raise Refused(
            f"{directory / name} is a link out of the directory (to {target}): exclude it in "
            ".musterignore, or copy its target"
        )
    return target
