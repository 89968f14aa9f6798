"""Lines from the kernel's log, or from a named pipe that stands in for it.

The event loop says when there is something to read. A missing pipe is made, and held open for
writing too, so that it has no end when its last writer closes it.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

READ_BYTES: Final = 64 << 10
LINE_BYTES_MAX: Final = 8 << 10
# One wake reads so many records, so that a flood does not stop everything else.
READS_MAX: Final = 256
# The log has overwritten records that were not read in time.
OVERWRITTEN: Final = errno.EPIPE


class LinePipe:
    """A source of lines; each whole line goes to `on_line`. Lines that are in a log already are
    skipped.
    """

    def __init__(self, path: Path, on_line: Callable[[str], None]) -> None:
        self.path, self.on_line = path, on_line
        self.descriptor = -1
        self.rest = b""

    def open(self, make: bool = False) -> None:
        """Open the source; `make`: make a pipe if nothing is there.

        Raises OSError if it may not be read or is a plain file, which cannot be waited for.
        """
        if make and not self.path.exists():
            os.mkfifo(self.path, 0o600)
        is_pipe = stat.S_ISFIFO(self.path.stat().st_mode)
        self.descriptor = os.open(
            self.path, (os.O_RDWR if is_pipe else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC
        )
        try:
            if not is_pipe:
                os.lseek(self.descriptor, 0, os.SEEK_END)
            asyncio.get_running_loop().add_reader(self.descriptor, self._read)
        except OSError:
            os.close(self.descriptor)
            self.descriptor = -1
            raise

    def close(self) -> None:
        if self.descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1

    def _read(self) -> None:
        for _ in range(READS_MAX):
            try:
                self._take(os.read(self.descriptor, READ_BYTES))
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != OVERWRITTEN:
                    self.close()
                    return

    def _take(self, data: bytes) -> None:
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest[-LINE_BYTES_MAX:]
        for line in lines:
            self.on_line(line.decode(errors="replace"))
