"""Watches the free space of the log's disk; warns, and restarts the server after a full disk.

After one failed write a nats-server accepts no other, even when there is space again: only a
restart helps. Test: tests/unit/test_disk_watch.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from libs.embedded.processes import Say

MIB: Final = 1 << 20
# Below this the launcher warns. A disk that was full has space again above it.
LOW_BYTES: Final = 64 * MIB
# Below this a write may have failed: the server writes blocks of up to 8 MiB.
FULL_BYTES: Final = 16 * MIB
# Pause between two looks, while the disk has much space and while it could be full in that time.
EVERY_S: Final = 1.0
NEAR_S: Final = 0.02
NEAR_BYTES: Final = 2 << 30


class DiskWatch:
    """The watch of one disk.

    `free` returns the bytes that may still be written. `restart` ends the server; the launcher then
    starts it again.
    """

    def __init__(
        self, place: Path, free: Callable[[], int], say: Say, restart: Callable[[], None]
    ) -> None:
        self.place = place
        self.free = free
        self.say = say
        self.restart = restart
        self.low = self.full = False

    def look(self) -> float:
        """Check the disk once. Return the time until the next look, in seconds.

        A disk may be full only for a moment, because the program that filled it removes its file.
        """
        free = self.free()
        self._take(free)
        return EVERY_S if free >= NEAR_BYTES else NEAR_S

    def _take(self, free: int) -> None:
        if free >= LOW_BYTES:
            self._has_room()
        elif free < FULL_BYTES and not self.full:
            self.low = self.full = True
            self.say(
                f"the disk of {self.place} is full: the log stores nothing and no job starts "
                f"until {LOW_BYTES // MIB} MiB are free"
            )
        elif not self.low:
            self.low = True
            self.say(
                f"only {free // MIB} MiB are free on the disk of {self.place}: free some space; "
                "on a full disk the log stores nothing and no job starts"
            )

    def _has_room(self) -> None:
        if self.full:
            self.say(
                f"the disk of {self.place} has space again: restarting nats-server, so that it "
                "accepts writes"
            )
            self.restart()
        self.low = self.full = False
