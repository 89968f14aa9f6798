"""Opens a file at a path that another user chose, and nothing that is not a file.

The open of a pipe may wait for ever, and the open of a device may have an effect. So the path is
first opened as a name only (O_PATH), which does neither. The content is opened only if the name
leads to a file. A caller that works for a job's user calls this in `acting_as`: both steps are then
checked with that user's rights. Tests: tests/unit/test_plain_file.py.
"""

import errno
import os
import stat
from typing import Final

NAMED: Final = os.O_PATH | os.O_CLOEXEC
CONTENT: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def opened(path: str) -> int:
    """Open a file for reading. Links are followed.

    Raises OSError, also if the path does not lead to a file.
    """
    named = os.open(path, NAMED)
    try:
        if not stat.S_ISREG(os.fstat(named).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", path)
        return os.open(f"/proc/self/fd/{named}", CONTENT)
    finally:
        os.close(named)


def beginning(path: str, size: int) -> tuple[bytes, int]:
    """Return the first `size` bytes of a file, and how large the file is. Raises OSError."""
    descriptor = opened(path)
    try:
        return os.read(descriptor, size), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
