"""The disk that holds the log: the time of a synced write, and whether it is a network disk."""

import ctypes
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

SYNCS: Final = 21
WRITE_BYTES: Final = 512
# Above this, users notice the time that the log needs.
SYNC_SLOW_MS: Final = 5.0
# f_type of statfs(2), from <linux/magic.h>.
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
    """The C struct statfs: the first field is used, the rest fits every architecture."""

    _fields_ = (("f_type", ctypes.c_long), ("rest", ctypes.c_byte * 504))


def network_kind(path: Path) -> str:
    """Return the kind of network file system that holds `path`, or its nearest existing parent.

    Empty for a local file system.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    found = _Statfs()
    if _libc.statfs(os.fsencode(path), ctypes.byref(found)) != 0:
        return ""
    return NETWORK_TYPES.get(found.f_type & 0xFFFFFFFF, "")


def sync_ms(directory: Path) -> float:
    """Return the median time of small synced writes in `directory`, in milliseconds.

    Raises OSError if the directory cannot be written.
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


def slow_warning(took_ms: float) -> str:
    """Return a warning for a disk that is slow; empty for a fast one."""
    if took_ms <= SYNC_SLOW_MS:
        return ""
    return (
        f"a synced write takes {took_ms:.1f} ms (more than {SYNC_SLOW_MS:.0f} ms), and every "
        f"commit waits for one: jobs start at least {3 * took_ms:.0f} ms later, and the log "
        f"stores about {1_000 / took_ms:.0f} commits per second; put --state on a local SSD"
    )
