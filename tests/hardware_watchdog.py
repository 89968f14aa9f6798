"""A device that takes the place of /dev/watchdog in tests, and a lease watchdog that uses it.

No test can use a real device: it would reset this machine. The device is a named pipe, which keeps
what is written to it. The lease watchdog is the real program with one number replaced: it sets the
time limit by a request that pipes answer too (FIONREAD).
"""

import os
import struct
import termios
from pathlib import Path
from typing import Final

from services.node_agent.watchdog import lease_watchdog

WDIOC_SETTIMEOUT: Final = 0xC0045706
READ_BYTES: Final = 1 << 16


class HardwareWatchdog:
    """The device at `path`. A byte V releases it, any other one tends it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "hardware-watchdog")
        os.mkfifo(self.path)
        self._end = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def written(self) -> bytes:
        """Return what was written since the last call."""
        try:
            return os.read(self._end, READ_BYTES)
        except BlockingIOError:
            return b""

    def refuse(self, seconds: int) -> None:
        """Accept no time as short as this from now on: FIONREAD tells how many bytes wait."""
        end = os.open(self.path, os.O_WRONLY)
        os.write(end, bytes(seconds + 1))
        os.close(end)

    def remove(self) -> None:
        """Let every later write fail. Harmless if repeated."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


def program_for_pipes(folder: Path) -> str:
    """Return the path of a lease watchdog that can use a HardwareWatchdog."""
    data = Path(lease_watchdog.PROGRAM).read_bytes()
    number = struct.pack("<I", WDIOC_SETTIMEOUT)
    assert data.count(number) == 1
    path = folder / "watchdog-for-pipes"
    path.write_bytes(data.replace(number, struct.pack("<I", termios.FIONREAD)))
    path.chmod(0o755)
    return str(path)
