"""Unpacks an untrusted archive into a new directory, completely or not at all.

tarfile reads the archive, but its extraction is not used, because its filters differ between
Python's patch releases. Only files, folders and links are accepted. Names are relative, without
`..` and unique, and links are created last, so nothing is ever written through a link. A link that
leads out of the directory is refused. Names, their depth, and bytes are bounded. Tests:
tests/unit/test_unpacking.py.
"""

import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from libs.common.errors import Refused
from libs.common.safety.folder_walk import remove_tree

COPY_BYTES: Final = 1 << 20
NAME_BYTES_MAX: Final = 4_096
# Folders within each other. Many programs recurse into folders, and fail in very deep ones.
DEPTH_MAX: Final = 256
# Errors that tarfile raises for bytes that are not an archive.
BROKEN: Final = (tarfile.TarError, EOFError, ValueError, ArithmeticError, RecursionError)


def unpack(
    archive: BinaryIO,
    folder: Path,
    files_max: int,
    go_on: Callable[[], bool] = lambda: True,
    stream: bool = False,
    leave_out: Callable[[str], None] | None = None,
) -> None:
    """Unpack the archive into the new directory `folder`; remove it again if anything fails.

    `go_on` is called between two members; False stops the work. `stream`: the archive cannot seek.
    With `leave_out` a link that leads out of the directory is skipped and reported to it instead of
    refused. Raises Refused.
    """
    os.mkdir(folder, 0o700)
    whole = False
    try:
        _link(
            folder,
            _unpack(archive, folder, files_max=files_max, go_on=go_on, stream=stream),
            leave_out,
        )
        whole = True
    except BROKEN as error:
        raise Refused(f"the archive is broken: {error or type(error).__name__}") from error
    except OSError as error:
        raise Refused(f"the archive cannot be unpacked: {error.strerror or error}") from error
    finally:
        if not whole:
            remove_tree(folder)


def _unpack(
    archive: BinaryIO, folder: Path, files_max: int, go_on: Callable[[], bool], stream: bool
) -> dict[str, str]:
    """Create files and folders. Return the links, which are created later."""
    links: dict[str, str] = {}
    modes: dict[str, int] = {}
    with tarfile.open(fileobj=archive, mode="r|" if stream else "r:", errorlevel=2) as tar:
        for count, member in enumerate(_members(tar), 1):
            name = _checked(member)
            if count > files_max:
                raise Refused(f"the archive holds more than {files_max} files")
            if not go_on():
                raise Refused("the job was stopped before it began")
            if member.issym():
                links[name] = member.linkname
                continue
            if member.isdir():
                os.mkdir(folder / name)
                modes[name] = member.mode
            else:
                _write(tar, member, folder / name)
    for name in reversed(modes):
        os.chmod(folder / name, modes[name] & 0o777 | 0o700)
    return links


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Iterate over the members. tarfile keeps none of them, so a long archive needs no memory."""
    while (member := tar.next()) is not None:
        yield member
        tar.members.clear()  # type: ignore[attr-defined]


def _checked(member: tarfile.TarInfo) -> str:
    """Return the member's name. Raises Refused if it is not allowed."""
    name = member.name
    shown = name[:128].encode("utf-8", "backslashreplace").decode()
    if not (member.isreg() or member.isdir() or member.issym()) or member.issparse():
        raise Refused(f"the archive holds {shown!r}, which is not a file, a folder or a link")
    parts = name.split("/")
    if (
        not name
        or "\0" in name
        or len(os.fsencode(name)) > NAME_BYTES_MAX
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise Refused(
            f"the archive holds the name {shown!r}, which is invalid or leads out of its directory"
        )
    if len(parts) > DEPTH_MAX:
        raise Refused(
            f"the archive holds {shown!r} with {len(parts)} levels of folders, and {DEPTH_MAX} are "
            "allowed: pack fewer folders into each other"
        )
    return name


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None, "the member is a file"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, member.mode & 0o777 | 0o600), "wb") as target:
        left = member.size
        while left > 0:
            data = source.read(min(left, COPY_BYTES))
            if not data:
                raise EOFError(f"it ends within {member.name[:128]}")
            target.write(data)
            left -= len(data)


def _link(folder: Path, links: dict[str, str], leave_out: Callable[[str], None] | None) -> None:
    """Create all links, then check them: where one leads may depend on another."""
    for name, target in links.items():
        os.symlink(target, folder / name)
    while out := [name for name in links if _points_outside(folder, name)]:
        if leave_out is None:
            raise Refused(
                f"the archive holds the link {out[0][:128]!r}, which leads out of its directory"
            )
        for name in out:
            os.unlink(folder / name)
            leave_out(name)
            del links[name]


def _points_outside(folder: Path, name: str) -> bool:
    return not (os.path.realpath(folder / name) + "/").startswith(os.path.realpath(folder) + "/")
