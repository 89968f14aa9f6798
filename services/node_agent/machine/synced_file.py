"""Small files that a power cut leaves either old or new, never torn.

Jobs can fill the disk of the agent's folders. So the files that an agent cannot do without have
reserved space (`exchange`). Tests: tests/unit/test_synced_file.py.
"""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

SPARE: Final = ".spare"
# The second spare file. It becomes the spare file where the first content used that one up.
NEXT: Final = ".next"
AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)


def replace(path: Path, data: bytes) -> None:
    """Replace a file; return once the new content survives a power cut.

    Other users cannot read it: jobs can pass the agent's folders. Raises OSError.
    """
    draft = path.with_suffix(".draft")
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    _sync_folder(path)


def exchange(path: Path, data: bytes) -> None:
    """Replace a file as `replace` does, without new space if the new content is not longer.

    The previous content stays in a spare file, and the next content is written over its blocks.
    Where the file system cannot exchange two names, the file is replaced as any other. Raises
    OSError; then the file is unchanged.
    """
    spare = path.with_suffix(SPARE)
    _overwrite(spare, data)
    if not _exchanged(spare, path):
        spare.rename(path)
        with contextlib.suppress(FileNotFoundError):
            path.with_suffix(NEXT).rename(spare)
        reserve(path, len(data))
    _sync_folder(path)


def reserve(path: Path, size: int) -> None:
    """Reserve the space for an `exchange` of `size` bytes, as far as the disk has it."""
    for suffix in (SPARE,) if path.exists() else (SPARE, NEXT):
        file = path.with_suffix(suffix)
        if not file.exists():
            with contextlib.suppress(OSError):
                _overwrite(file, b" " * size)


def _overwrite(path: Path, data: bytes) -> None:
    """Write over the blocks that the file has, and free those that are not needed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names; return whether the file system could."""
    try:
        call = _libc.renameat2
    except AttributeError:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(call(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
