"""The node's lease: one mapped file per node, whose first eight bytes are the deadline on
CLOCK_BOOTTIME, little-endian nanoseconds.

The agent alone writes it, in place, never by a new file: living supervisors keep their mapping. One
aligned eight-byte store, so no reader sees half a deadline. The boot id follows, because a deadline
of the boot before means nothing; a new boot begins at 0, expired.
"""

import mmap
import os
import sys

from services.node_agent.machine.processes import boot_id, boottime_ns

DEADLINE_BYTES = 8
BOOT_ID_BYTES = 36

__all__ = ["Lease", "boottime_ns", "map_deadline"]


class Lease:
    """The agent's side. A lease that was never extended in this boot has expired."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < DEADLINE_BYTES + BOOT_ID_BYTES:
                os.ftruncate(descriptor, DEADLINE_BYTES + BOOT_ID_BYTES)
            self._map = mmap.mmap(descriptor, DEADLINE_BYTES + BOOT_ID_BYTES)
        finally:
            os.close(descriptor)
        self._words = _words(self._map)
        self.path = path
        boot = boot_id().encode()
        if self._map[DEADLINE_BYTES:] != boot:
            self._words[0] = 0
            self._map[DEADLINE_BYTES:] = boot

    def extend(self, deadline_ns: int) -> None:
        """Never back: a deadline before the stored one changes nothing."""
        if deadline_ns > self._words[0]:
            self._words[0] = deadline_ns

    def replace(self, deadline_ns: int) -> None:
        """Back too, to a newer term's lease.

        A supervisor sees it within a second, for it never sleeps longer.
        """
        self._words[0] = deadline_ns

    def deadline_ns(self) -> int:
        return self._words[0]

    def close(self) -> None:
        self._words.release()
        self._map.close()


def map_deadline(path: str) -> "memoryview[int]":
    """The supervisors' side: element 0 is the deadline.

    Raises OSError or ValueError when there is no such lease.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _words(mmap.mmap(descriptor, DEADLINE_BYTES, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def _words(mapped: mmap.mmap) -> "memoryview[int]":
    assert sys.byteorder == "little", "lease files are little-endian and stored as machine words"
    return memoryview(mapped)[:DEADLINE_BYTES].cast("Q")
