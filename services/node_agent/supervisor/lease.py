"""The node's lease: one mapped file whose first eight bytes are the deadline on CLOCK_BOOTTIME,
little-endian nanoseconds. Another eight say how long before it jobs are asked to end.

Only the agent writes it, in place, because living supervisors keep their mapping. It is one aligned
eight-byte store, so no reader sees half a deadline. The boot id follows, because a deadline of
another boot means nothing; a new boot starts at 0, expired.
"""

import binascii
import mmap
import os
import sys

from services.node_agent.machine.processes import boot_id, boottime_ns

DEADLINE_BYTES = 8
BOOT_ID_BYTES = 36
# The words of the file: the deadline, the boot id in between, and the notice (0: NOTICE_NS).
WORDS = 7
NOTICE_WORD = 6
LEASE_BYTES = WORDS * DEADLINE_BYTES
NOTICE_NS = 2_000_000_000

# The name of a supervisor whose job heeds the lease (at most 15 characters), and of one without.
MARK = "muster:"
UNMARKED = "muster"

__all__ = ["Lease", "boottime_ns", "map_deadline", "mark_of"]


class Lease:
    """The agent's side. A lease that was never extended in this boot has expired."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < LEASE_BYTES:
                os.ftruncate(descriptor, LEASE_BYTES)
            self._map = mmap.mmap(descriptor, LEASE_BYTES)
        finally:
            os.close(descriptor)
        self._words = _words(self._map)
        self.path = path
        boot = boot_id().encode()
        if self._map[DEADLINE_BYTES : DEADLINE_BYTES + BOOT_ID_BYTES] != boot:
            self._words[0] = 0
            self._map[DEADLINE_BYTES : DEADLINE_BYTES + BOOT_ID_BYTES] = boot

    def extend(self, deadline_ns: int, notice_ns: int = 0) -> None:
        """Extend the lease; an earlier deadline changes nothing. `notice_ns` 0 keeps the notice."""
        if deadline_ns > self._words[0]:
            self.replace(deadline_ns, notice_ns)

    def replace(self, deadline_ns: int, notice_ns: int = 0) -> None:
        """Set the lease, also to an earlier deadline of a newer term.

        Supervisors see it within a second, because they never sleep longer.
        """
        self._words[0] = deadline_ns
        self._words[NOTICE_WORD] = notice_ns or self._words[NOTICE_WORD]

    def deadline_ns(self) -> int:
        return self._words[0]

    def close(self) -> None:
        self._words.release()
        self._map.close()


def map_deadline(path: str) -> "memoryview[int]":
    """Map the lease for a supervisor: element 0 is the deadline. Raises OSError or ValueError
    without a valid lease.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = LEASE_BYTES if os.fstat(descriptor).st_size >= LEASE_BYTES else DEADLINE_BYTES
        return _words(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def notice_ns(deadline: "memoryview[int]") -> int:
    """Return how long before the deadline the job is asked to end."""
    return (deadline[NOTICE_WORD] if len(deadline) > NOTICE_WORD else 0) or NOTICE_NS


def mark_of(path: str) -> str:
    """Return the name of supervisors under this lease, by which the lease watchdog knows them.

    It is of the file and not of its path: a state directory that was emptied has another lease.
    Raises OSError.
    """
    found = os.stat(path)
    return f"{MARK}{binascii.crc32(b'%d:%d' % (found.st_dev, found.st_ino)):08x}"


def _words(mapped: mmap.mmap) -> "memoryview[int]":
    assert sys.byteorder == "little", "lease files are little-endian and stored as machine words"
    return memoryview(mapped).cast("Q")


def deadline_of(path: str, ignored: bool) -> "memoryview[int] | None":
    """Map the lease of a job; None if it ignores the lease.

    A lease that cannot be read counts as expired.
    """
    if ignored:
        return None
    try:
        return map_deadline(path)
    except (OSError, ValueError):
        return memoryview(bytes(DEADLINE_BYTES)).cast("Q")
