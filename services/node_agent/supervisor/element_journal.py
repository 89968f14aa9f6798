"""The journal of a batch: which of its elements began, and the result of those that ended.

The file has a head (the place of the first element, and the place before which elements may begin)
and an entry for each element. All its blocks are written before the first element begins, so a full
disk cannot stop it. The head is synced before an element behind it begins, for several elements at
a time. After a power cut all before the head may have begun. If only processes died, the entries
say exactly which have. The file gets its name once it is whole, so without one none has begun, and
of one that is damaged all may have. The supervisor imports only the standard library. Tests:
tests/unit/test_element_journal.py.
"""

import errno
import os
import struct
from typing import NamedTuple

from services.node_agent.supervisor.records import sync_folder

NAME, NEW = "elements", "elements.new"
HEAD = struct.Struct("<II")
ENTRY = struct.Struct("<BxH")
EMPTY, BEGUN, ENDED = 0, 1, 2
# As many elements as take about this long are marked in one sync.
MARK_NS = 100_000_000
MARKED_MAX = 64
BYTES_MAX = 1 << 20
# As BATCH_MAX in libs/common/element_runs.py, which this process must not import.
ELEMENTS_MAX = 1_000


class Seen(NamedTuple):
    """The content of a journal: results in order, from the place `first` on, and how many began."""

    first: int
    results: list[int]
    begun: int


DAMAGED = Seen(0, [], ELEMENTS_MAX)


class JournalError(OSError):
    """The journal could not be written, so no other element may begin."""


class Journal:
    """The journal of elements from `first` to before `end`, in the current directory.

    A method that writes raises JournalError if it cannot.
    """

    def __init__(self, first: int, end: int) -> None:
        self._first = first
        self._end = end
        self._marked = first
        self._file = os.open(NEW, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._put(0, HEAD.pack(first, first) + bytes(ENTRY.size * (end - first)))
        os.fsync(self._file)
        os.rename(NEW, NAME)
        sync_folder(".")

    def begin(self, place: int, mean_ns: int) -> None:
        """Record that the element begins; return once it is sure to be known after a power cut."""
        if place >= self._marked:
            ahead = max(1, min(MARKED_MAX, MARK_NS // max(1, mean_ns)))
            self._marked = min(self._end, place + ahead)
            self._put(0, HEAD.pack(self._first, self._marked))
            self._sync()
        self._write(place, BEGUN, 0)

    def retract(self, place: int) -> None:
        """Record that the element that was to begin has not."""
        self._write(place, EMPTY, 0)

    def end(self, place: int, result: int) -> None:
        self._write(place, ENDED, result)

    def close(self) -> None:
        """Close the journal, once its results are sure to be known after a power cut."""
        try:
            self._sync()
        finally:
            os.close(self._file)

    def _write(self, place: int, state: int, result: int) -> None:
        self._put(HEAD.size + ENTRY.size * (place - self._first), ENTRY.pack(state, result))

    def _put(self, at: int, data: bytes) -> None:
        try:
            written = os.pwrite(self._file, data, at)
        except OSError as error:
            raise JournalError(error.errno, error.strerror) from error
        if written != len(data):
            raise JournalError(errno.EIO, f"only {written} of {len(data)} bytes were written")

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise JournalError(error.errno, error.strerror) from error


def read(job_dir: str, same_boot: bool) -> Seen | None:
    """Return what the journal of an attempt says; None if there is none: then none has begun.

    If it cannot be read, all may have begun. `same_boot`: the machine has not restarted since.
    """
    try:
        data = _bytes_of(f"{job_dir}/{NAME}")
    except FileNotFoundError:
        return None
    except OSError:
        return DAMAGED
    if len(data) < HEAD.size:
        return DAMAGED
    first, marked = HEAD.unpack_from(data)
    entries = (len(data) - HEAD.size) // ENTRY.size
    results: list[int] = []
    begun = first
    for state, result in ENTRY.iter_unpack(data[HEAD.size : HEAD.size + entries * ENTRY.size]):
        if state == EMPTY:
            break
        begun += 1
        if state == ENDED and len(results) == begun - first - 1:
            results.append(result)
    if entries < marked - first:
        return Seen(first, results, ELEMENTS_MAX)
    return Seen(first, results, begun if same_boot else max(begun, marked))


def _bytes_of(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, BYTES_MAX)
    finally:
        os.close(file)
