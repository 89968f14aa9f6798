"""Copies folders of a job's user with the SHA-256 of every file, and compares them.

Files are opened as the job's user, so the agent reads nothing for a user that the user could not
read. Nothing here waits for a pipe or a device: other things than files are left out. Tests:
tests/unit/test_resident_trees.py.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.safety import plain_file
from services.node_agent.directories.acting_as import acting_as

# One list of files is part of a fact.
FILES_MAX: Final = 256
PATH_MAX: Final = 160
# Bounds of the walk below one folder. A path of PATH_MAX characters has at most 80 folders.
DEPTH_MAX: Final = 100
ENTRIES_MAX: Final = 100_000
# Characters of a path in a message.
SHOWN_MAX: Final = 1_024
PIECE_BYTES: Final = 8 << 20


class Differs(Exception):
    """A file is not what it should be; the text names it."""


def listed(
    top: str, ids: Sequence[int], follow: bool, files_max: int = FILES_MAX
) -> dict[str, int]:
    """Return the files below a folder with their sizes, by path.

    `follow`: links to files count as files, as in the cache of Hugging Face. Raises Refused.
    """
    found: dict[str, int] = {}
    try:
        with acting_as(ids):
            for entry in _below(top):
                status = os.stat(entry.path, follow_symlinks=follow)
                if stat.S_ISREG(status.st_mode):
                    found[os.path.relpath(entry.path, top)] = status.st_size
                if len(found) > files_max:
                    raise Refused(f"{top} has more than {files_max} files")
    except OSError as error:
        raise Refused(f"{shown(error.filename or top)} cannot be read: {error.strerror}") from error
    if long := [path for path in found if len(path) > PATH_MAX or not path.isprintable()]:
        raise Refused(f"{top} has the file name {long[0][:PATH_MAX]!r}, which cannot be recorded")
    return dict(sorted(found.items()))


def _below(top: str) -> Iterator[os.DirEntry[str]]:
    """Yield what is below a folder and is not a folder; links are not followed.

    Does not recurse: a user may put thousands of folders into each other. Raises OSError, and
    Refused beyond DEPTH_MAX or ENTRIES_MAX.
    """
    waiting, seen = [(top, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > ENTRIES_MAX:
                    raise Refused(f"{top} has more than {ENTRIES_MAX} files and folders")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
                else:
                    yield entry
        if waiting and waiting[-1][1] > DEPTH_MAX:
            raise Refused(f"{top} has more than {DEPTH_MAX} levels of folders")


def shown(path: str) -> str:
    """Return a path as text that can be recorded: names of files need not be UTF-8."""
    return path[:SHOWN_MAX].encode("utf-8", "backslashreplace").decode()


def copied(
    source: str,
    target: Path,
    sizes: Mapping[str, int],
    ids: Sequence[int],
    expected: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Copy files below one folder to another, and return their SHA-256.

    `sizes` are the files with their sizes, as `listed` returns them: room was found for so many
    bytes, and a file may grow meanwhile. Raises Differs at the first file that has another size or
    not the `expected` hash, Refused for one that cannot be read, and OSError for one that cannot be
    written.
    """
    hashes: dict[str, str] = {}
    for path, size in sizes.items():
        to = target / path
        to.parent.mkdir(parents=True, exist_ok=True)
        hashes[path] = _copy(f"{source}/{path}", to, ids, size)
        if expected is not None and hashes[path] != expected.get(path):
            raise Differs(
                f"{path} has the SHA-256 {hashes[path][:12]}, and "
                f"{expected.get(path, 'none')[:12]} is recorded"
            )
    if expected is not None and (missing := expected.keys() - hashes.keys()):
        raise Differs(f"{sorted(missing)[0]} is recorded and not there")
    return hashes


def _copy(source: str, target: Path, ids: Sequence[int], size: int) -> str:
    try:
        with acting_as(ids):
            descriptor = plain_file.opened(source)
    except OSError as error:
        raise Refused(f"{source} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256()
    with open(descriptor, "rb", buffering=0) as stream, open(target, "xb", buffering=0) as to:
        left = size
        while piece := _read(stream, min(PIECE_BYTES, left + 1), source):
            if len(piece) > left:
                raise Differs(f"{source} had {size} bytes when it was listed, and has more now")
            left -= len(piece)
            digest.update(piece)
            _write(to.fileno(), piece)
    if left:
        raise Differs(f"{source} had {size} bytes when it was listed, and has {size - left} now")
    return digest.hexdigest()


def _read(stream: FileIO, size: int, source: str) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise Refused(f"{source} cannot be read: {error.strerror}") from error


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def hashes_of(top: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the agent's own files; those that are missing are left out."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            with open(top / path, "rb") as stream:
                found[path] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            continue
    return found


def content_of(files: Mapping[str, str]) -> str:
    """Return one SHA-256 over all files and their hashes."""
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
