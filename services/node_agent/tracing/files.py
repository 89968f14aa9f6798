"""The files that the processes of a capture write, in a folder that belongs to the job's user.

The job can put any number of names there, so each look is bounded. All functions block. Tests:
tests/attack/test_trace_door.py.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple

from services.node_agent.directories.acting_as import acting_as

# One process's file. A trace that becomes larger is cut off by its removal.
RAW_BYTES_MAX: Final = 256 << 20
# Names that count for one process: it writes one file, under a passing name first.
NAMES_MAX: Final = 16
# Entries of the folder that one look reads. The sockets of the job's processes are among them.
ENTRIES_MAX: Final = 16_384
FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Seen(NamedTuple):
    """The sizes of the files by token and name, and whether the look reached all entries.

    A token with more than NAMES_MAX names has one more than that here.
    """

    sizes: dict[str, dict[str, int]]
    whole: bool


def seen(folder: str, tokens: Collection[str]) -> Seen:
    """Return what these tokens have in the folder. Links count as nothing."""
    sizes = {token: dict[str, int]() for token in tokens}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, ENTRIES_MAX):
            mine = sizes.get(entry.name.partition("_")[0])
            if mine is not None and len(mine) <= NAMES_MAX:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    mine[entry.name] = status.st_size if stat.S_ISREG(status.st_mode) else 0
        return Seen(sizes, next(entries, None) is None)
    return Seen(sizes, True)


def opened(path: str, ids: list[int]) -> int:
    """Open a file that the job wrote, as the job's user. Raises OSError."""
    with acting_as(ids):
        descriptor = os.open(path, FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > RAW_BYTES_MAX:
        os.close(descriptor)
        raise OSError(0, "it is no file, or larger than it was")
    return descriptor


def clear(folder: str, trace: str) -> None:
    """Remove the trace's files, as far as one look reaches. The end of the attempt removes all."""
    names = list[str]()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, ENTRIES_MAX):
            if entry.name.startswith(f"{trace}-"):
                names.append(entry.name)
    remove(folder, names)


def remove(folder: str, names: Iterable[str]) -> None:
    """Remove files and links of a folder."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{name}")
