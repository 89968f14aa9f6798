"""The journal of a batch: which of its elements began, and the result of those that ended.

The file has a head (the place of the first element, and the place before which elements may begin)
and an entry for each element. All its blocks are written before the first element begins, so a full
disk cannot stop it. The head is synced before an element behind it begins, for several elements at
a time. After a power cut all before the head may have begun. If only processes died, the entries
say exactly which have. The supervisor imports only the standard library. Tests:
tests/unit/test_element_journal.py.
"""

import os
import struct
from typing import NamedTuple

from services.node_agent.supervisor.records import sync_folder

NAME = "elements"
HEAD = struct.Struct("<II")
ENTRY = struct.Struct("<BxH")
EMPTY, BEGUN, ENDED = 0, 1, 2
# As many elements as take about this long are marked in one sync.
MARK_NS = 100_000_000
MARKED_MAX = 64
BYTES_MAX = 1 << 20


class Seen(NamedTuple):
    """What a journal says: results in order from the place `first` on, and how many have begun."""

    first: int
    results: list[int]
    begun: int


class Journal:
    """The journal of elements from `first` to before `end`, in the current directory."""

    def __init__(self, first: int, end: int) -> None:
        self._first = first
        self._end = end
        self._marked = first
        self._file = os.open(NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(self._file, HEAD.pack(first, first) + bytes(ENTRY.size * (end - first)))
        os.fsync(self._file)
        sync_folder(".")

    def begin(self, place: int, mean_ns: int) -> None:
        """Record that the element begins; return once it is sure to be known after a power cut."""
        if place >= self._marked:
            ahead = max(1, min(MARKED_MAX, MARK_NS // max(1, mean_ns)))
            self._marked = min(self._end, place + ahead)
            os.pwrite(self._file, HEAD.pack(self._first, self._marked), 0)
            os.fdatasync(self._file)
        self._write(place, BEGUN, 0)

    def end(self, place: int, result: int) -> None:
        self._write(place, ENDED, result)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, place: int, state: int, result: int) -> None:
        entry = ENTRY.pack(state, result)
        os.pwrite(self._file, entry, HEAD.size + ENTRY.size * (place - self._first))


def read(job_dir: str, same_boot: bool) -> Seen | None:
    """Return what the journal of an attempt says; None if there is none: then none has begun.

    `same_boot`: the machine has not restarted since.
    """
    try:
        file = os.open(f"{job_dir}/{NAME}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(file, BYTES_MAX)
    finally:
        os.close(file)
    if len(data) < HEAD.size:
        return None
    first, marked = HEAD.unpack_from(data)
    whole = (len(data) - HEAD.size) // ENTRY.size * ENTRY.size
    results: list[int] = []
    begun = first
    for state, result in ENTRY.iter_unpack(data[HEAD.size : HEAD.size + whole]):
        if state == EMPTY:
            break
        begun += 1
        if state == ENDED and len(results) == begun - first - 1:
            results.append(result)
    return Seen(first, results, begun if same_boot else max(begun, marked))
