"""The disk that holds the log: how long a synced write takes, and whether it lies on another
machine.
"""

import ctypes
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

SYNCS: Final = 21
WRITE_BYTES: Final = 512
# Above this the log's own speed is what a person waits for.
SYNC_SLOW_MS: Final = 5.0
# f_type of statfs(2), as <linux/magic.h> has them.
NETWORK_TYPES: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x00C36400: "Ceph",
    0x65735546: "FUSE",
    0x5346414F: "AFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01021997: "9p",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}

_libc = ctypes.CDLL(None, use_errno=True)


class _Statfs(ctypes.Structure):
    """Only the first field is read; the rest is room for every architecture's layout."""

    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 504))


def network_kind(path: Path) -> str:
    """The network file system that `path` (or its nearest existing parent) lies on; empty when it
    is a local one.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    found = _Statfs()
    if _libc.statfs(os.fsencode(path), ctypes.byref(found)) != 0:
        return ""
    return NETWORK_TYPES.get(found.f_type & 0xFFFFFFFF, "")


def sync_ms(directory: Path) -> float:
    """The median of small synced writes in `directory`, in milliseconds.

    Raises OSError when it cannot be written.
    """
    took = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".fsync-") as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(b"\0" * WRITE_BYTES)
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1_000


def slow_words(took_ms: float) -> str:
    """What a slow disk means; empty for a quick one."""
    if took_ms <= SYNC_SLOW_MS:
        return ""
    return (
        f"a synced write takes {took_ms:.1f} ms here (over {SYNC_SLOW_MS:.0f} ms): every "
        "commit waits for it, so a job starts at least "
        f"{3 * took_ms:.0f} ms later and about {1_000 / took_ms:.0f} commits a second are "
        "possible; put --state on a local SSD"
    )
