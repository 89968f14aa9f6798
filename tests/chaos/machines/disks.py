"""A file system of a machine's own, in a file, which can be filled and can lose its power.

A power cut is the file system's shutdown without a flush of its journal: what was not synced is
gone, as behind a disk that kept its promises. It is kinder than a real one, because no sector is
torn. Only the machine's own processes see the file system: `powered.py` mounts it in a mount
namespace that ends with them.
"""

import fcntl
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.chaos.machines.network import run

# EXT4_IOC_SHUTDOWN, which is XFS_IOC_GOINGDOWN too, and its flag for "do not flush the journal".
SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
FILL: Final = "fill"
# What is left to other files of a full disk.
LEFT_BYTES: Final = 16 << 10
# The last part of a disk fills at 200 MB a second, as by a program that writes as fast as it can.
SLOWLY_BYTES: Final = 160 << 20
STEP_BYTES: Final = 2 << 20
STEP_S: Final = 0.01
# The major number of loop devices.
LOOP_MAJOR: Final = 7


class Disk:
    """The disk of one machine: `image` holds it, `place` is where its processes see it.

    While the file `off` exists, the machine does not start. While `full` exists, the disk stays
    full.
    """

    def __init__(self, folder: Path, name: str, size_bytes: int) -> None:
        self.image = folder / f"{name}.img"
        self.place = folder / name
        self.off = folder / f"{name}.off"
        self.full = folder / f"{name}.full"
        self.size_bytes = size_bytes

    def make(self, files: Mapping[str, str]) -> None:
        """Make a file system with these files: path on it -> text."""
        self.place.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(self.size_bytes)
        with tempfile.TemporaryDirectory(dir=self.place.parent) as source:
            for path, text in files.items():
                target = Path(source) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
                target.chmod(0o600)
            run("mkfs.ext4", "-q", "-m", "0", "-d", source, str(self.image))

    def fill(self, pid: int) -> None:
        """Use the free space, as process `pid` of the machine sees it. Raises OSError if it does
        not see the disk.
        """
        self.full.touch()
        place = self.seen_by(pid)
        with self._opened(pid) as folder:
            handle = os.open(place / FILL, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                _use(handle, _free(folder) - SLOWLY_BYTES)
                while self.full.exists() and (left := _free(folder) - LEFT_BYTES) > 0:
                    _use(handle, min(left, STEP_BYTES))
                    time.sleep(STEP_S)
            finally:
                os.close(handle)

    def free(self, pid: int | None) -> None:
        """Give the space back; if no process sees the disk, `powered.py` does it at the next
        start.
        """
        self.full.unlink(missing_ok=True)
        if pid is not None:
            with suppress(OSError), self._opened(pid):
                (self.seen_by(pid) / FILL).unlink()

    def cut_power(self, pid: int) -> None:
        """Lose everything that was not synced. The caller then kills the machine's processes.

        Raises OSError if process `pid` does not see the disk.
        """
        with self._opened(pid) as folder:
            fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))

    @contextmanager
    def _opened(self, pid: int) -> Iterator[int]:
        """Open the disk as that process sees it. Raises OSError unless it is a file system in a
        file: the same path on the machine that runs this must never be filled or shut down.
        """
        folder = os.open(self.seen_by(pid), os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.major(os.fstat(folder).st_dev) != LOOP_MAJOR:
                raise OSError(f"process {pid} does not see {self.image} at {self.place}")
            yield folder
        finally:
            os.close(folder)

    def seen_by(self, pid: int) -> Path:
        """Return the path of the disk in the mount namespace of that process."""
        return Path(f"/proc/{pid}/root{self.place}")

    def command(self, *words: str) -> list[str]:
        """Return the command that runs `words` on this disk."""
        started = ["-m", "tests.chaos.machines.powered", str(self.image), str(self.place)]
        alone = ["unshare", "--mount", "--propagation", "private"]
        return [*alone, sys.executable, *started, *words]


def _free(folder: int) -> int:
    """Return the free bytes of the disk that an opened folder is on."""
    found = os.fstatvfs(folder)
    return found.f_bavail * found.f_frsize


def _use(handle: int, size: int) -> None:
    """Make an opened file larger by `size` bytes of the disk."""
    if size > 0:
        os.posix_fallocate(handle, os.fstat(handle).st_size, size)
