"""Walks, changes the owner of, and removes folders while a hostile job may change their entries.

The job may rename, link and replace entries at any moment. So every step is relative to an open
descriptor and follows no link, and the walk stays on one file system. It holds a fixed number of
descriptors and does not recurse, however deep the folders are. On the way up it checks that `..` is
the folder that it came from. Every privileged operation below a job's folder uses this module
(docs/decisions/0026). Tests: tests/attack/test_folder_walk.py, tests/unit/test_folder_walk.py.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# The unit of `st_blocks`, whatever the file system's own block is.
BLOCK_BYTES: Final = 512
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAMED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
OWNER_ONLY: Final = 0o700
OTHERS: Final = 0o077
# A living process of the job can move folders during a removal. The removal then starts again at
# the top, at most so many times.
REMOVE_PASSES: Final = 8
AT_EMPTY_PATH: Final = 0x1000

_libc = ctypes.CDLL(None, use_errno=True)

Enter = Callable[[str, int], int]


class Found(NamedTuple):
    """One entry that the walk has found.

    `folder` is the open folder that holds it. `opened` is the entry's own descriptor if it is a
    folder, else -1. The walk closes both.
    """

    folder: int
    name: str
    status: os.stat_result
    opened: int

    @property
    def is_folder(self) -> bool:
        return self.opened >= 0


class _Level(NamedTuple):
    """One folder between the top and the current one.

    `names` are the entries that are still to be visited.
    """

    name: str
    identity: tuple[int, int]
    names: list[str]


def entered(name: str, folder: int) -> int:
    """Open a folder by its name in another one. Raises OSError, also for a link."""
    return os.open(name, FOLDER, dir_fd=folder)


def walk(top: int, enter: Enter = entered, strict: bool = False) -> Iterator[Found]:
    """Yield all entries below the open folder `top`; a folder comes after its entries.

    Entries that vanish or cannot be opened are skipped. The walk ends when a folder was moved
    during it. With `strict` both raise OSError.
    """
    device = os.fstat(top).st_dev
    here = os.open(".", FOLDER, dir_fd=top)
    try:
        levels = [_level("", here)]
        while True:
            while levels[-1].names:
                name = levels[-1].names.pop()
                try:
                    status = os.stat(name, dir_fd=here, follow_symlinks=False)
                    inner = enter(name, here) if stat.S_ISDIR(status.st_mode) else -1
                except OSError:
                    if strict:
                        raise
                    continue
                if inner < 0:
                    yield Found(here, name, status, -1)
                    continue
                if os.fstat(inner).st_dev != device:
                    os.close(inner)
                    if strict:
                        raise OSError(errno.EXDEV, "is on another file system", name)
                    continue
                os.close(here)
                here = inner
                levels.append(_level(name, here))
            if len(levels) == 1:
                return
            done = levels.pop()
            opened, here = here, -1
            try:
                here = _parent_folder(opened, levels[-1], strict)
                if here < 0:
                    return
                yield Found(here, done.name, os.fstat(opened), opened)
            finally:
                os.close(opened)
    finally:
        if here >= 0:
            os.close(here)


def _level(name: str, folder: int) -> _Level:
    return _Level(name, _identity(folder), os.listdir(folder))


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _parent_folder(folder: int, level: _Level, strict: bool) -> int:
    """Return the folder that the walk came from; -1 if `folder` was moved in the meantime."""
    try:
        found = os.open("..", NAMED | os.O_DIRECTORY, dir_fd=folder)
        try:
            if _identity(found) != level.identity:
                raise OSError(errno.ESTALE, "was moved during the walk", level.name)
            return os.open(".", FOLDER, dir_fd=found)
        finally:
            os.close(found)
    except OSError:
        if strict:
            raise
        return -1


def give_tree(folder: int, name: str, uid: int, gid: int) -> None:
    """Give the folder `name` in `folder` and everything in it to another user: its content first,
    the folder itself last.

    No process of that user can enter before the last step, because the folder must belong to this
    process and be closed to others until then. Files with a second name are refused: the other name
    may be a file of root's. Raises OSError; the folder is still closed then.
    """
    top = entered(name, folder)
    try:
        status = os.fstat(top)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & OTHERS:
            raise OSError(
                errno.EPERM, "is not a folder of the agent's that is closed to others", name
            )
        for found in walk(top, strict=True):
            if found.is_folder:
                os.fchown(found.opened, uid, gid)
            else:
                give_file(found.folder, found.name, uid, gid)
        os.fchown(top, uid, gid)
    finally:
        os.close(top)


def give_file(folder: int, name: str, uid: int, gid: int) -> None:
    """Give one file or link of this process to another user.

    Raises OSError for anything else, and for a file with a second name.
    """
    opened = os.open(name, NAMED, dir_fd=folder)
    try:
        status = os.fstat(opened)
        kind = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if not kind or status.st_nlink != 1 or status.st_uid not in (os.geteuid(), uid):
            raise OSError(errno.EPERM, "is not a file of the agent's with one name only", name)
        if _libc.fchownat(opened, b"", uid, gid, AT_EMPTY_PATH) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
    finally:
        os.close(opened)


def size_of(path: str | os.PathLike[str], leave_out: str = "") -> int:
    """Return the bytes that the files below a folder take of the disk, without the files of one
    name.

    Holes of sparse files take none, and a file with several names counts once. Unreadable entries
    count nothing.
    """
    size = 0
    linked: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):
        top = os.open(path, FOLDER)
        try:
            for found in walk(top):
                inode = (found.status.st_dev, found.status.st_ino)
                if found.is_folder or found.name == leave_out or inode in linked:
                    continue
                if found.status.st_nlink > 1:
                    linked.add(inode)
                size += found.status.st_blocks * BLOCK_BYTES
        finally:
            os.close(top)
    return size


def remove_tree(path: str | os.PathLike[str]) -> bool:
    """Remove a folder with everything in it, or a file or link.

    Return whether it is gone. The folder that holds it must belong to the agent.
    """
    parent, name = os.path.split(os.fspath(path))
    with contextlib.suppress(OSError):
        holder = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if remove_below(holder, name):
                return True
        finally:
            os.close(holder)
    return not os.path.lexists(path)


def remove_below(holder: int, name: str) -> bool:
    """Remove an entry of the open folder `holder`, with everything in it.

    Return whether it is gone. Raises OSError.
    """
    return any(_remove(holder, name) for _ in range(REMOVE_PASSES))


def _remove(holder: int, name: str) -> bool:
    try:
        top = opened_up(name, holder)
    except FileNotFoundError:
        return True
    except OSError:
        return _unlinked(holder, name, is_folder=False)
    try:
        for found in walk(top, opened_up):
            _unlinked(found.folder, found.name, found.is_folder)
    finally:
        os.close(top)
    return _unlinked(holder, name, is_folder=True)


def _unlinked(folder: int, name: str, is_folder: bool) -> bool:
    try:
        (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def opened_up(name: str, folder: int) -> int:
    """Open a folder of this process's user; restore the owner's rights if a job removed them.

    The mode is changed through the open descriptor, so no link can redirect the change. Root needs
    no such change. Raises OSError.
    """
    named = os.open(name, NAMED | os.O_DIRECTORY, dir_fd=folder)
    try:
        status = os.fstat(named)
        closed = stat.S_IMODE(status.st_mode) & OWNER_ONLY != OWNER_ONLY
        if closed and status.st_uid == os.geteuid():
            os.chmod(f"/proc/self/fd/{named}", OWNER_ONLY)
        return os.open(".", FOLDER, dir_fd=named)
    finally:
        os.close(named)
