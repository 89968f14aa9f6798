"""Host memory near devices, and pinned: the kernel's calls that Python's library lacks.

The pages of a memfd are allocated under the memory policy of the thread that allocates them, so the
policy is set for this one call. A machine without NUMA, or with another processor, gets memory from
anywhere. Pinned pages are locked through a mapping of the broker: they are never swapped out.
Tests: tests/unit/test_numa_policy.py.
"""

import ctypes
import errno
import mmap
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

# The number of the system call set_mempolicy, by processor.
SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
DEFAULT: Final = 0
BIND: Final = 2
NODES_MAX: Final = 1_024
_BITS: Final = 8 * ctypes.sizeof(ctypes.c_ulong)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def set_policy(mode: int, nodes: Sequence[int]) -> None:
    """Set the memory policy of this thread. Raises OSError."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"set_mempolicy is not known on {platform.machine()}")
    mask = (ctypes.c_ulong * (NODES_MAX // _BITS))()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    given = (ctypes.byref(mask), ctypes.c_ulong(NODES_MAX + 1)) if nodes else (None, 0)
    if _libc().syscall(number, mode, *given) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def allocate(descriptor: int, size: int, nodes: Sequence[int]) -> bool:
    """Allocate the pages of a memfd; return whether all lie on these memory nodes.

    If the nodes have no room, the pages come from anywhere. Raises OSError if there is none at all.
    """
    usable = [node for node in nodes if 0 <= node < NODES_MAX]
    if usable:
        with suppress(OSError):
            set_policy(BIND, usable)
            try:
                os.posix_fallocate(descriptor, 0, size)
                return True
            finally:
                set_policy(DEFAULT, ())
    os.posix_fallocate(descriptor, 0, size)
    return False


class Pinned:
    """Locked pages of a memfd, and the mapping through which they are locked."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping

    def release(self) -> None:
        """Unlock the pages. Call it before the memfd shrinks."""
        self._mapping.close()


def pinned(descriptor: int, size: int) -> Pinned | None:
    """Lock the pages of a memfd; None if the limit on locked memory does not allow it."""
    mapping = mmap.mmap(descriptor, size)
    place = ctypes.c_char.from_buffer(mapping)
    locked = _libc().mlock(ctypes.byref(place), ctypes.c_size_t(size)) == 0
    del place
    if locked:
        return Pinned(mapping)
    mapping.close()
    return None
