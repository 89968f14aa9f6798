"""Watches the room on the disk that holds the log: says when it is short, and starts the server
again when a full disk has room again.

A nats-server of which one write has failed takes no other, whatever room there is later: only a new
start helps. Held by tests/unit/test_disk_watch.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from libs.embedded.processes import Say

MIB: Final = 1 << 20
# Below this it is said; above this a disk that was full is trusted again.
LOW_BYTES: Final = 64 * MIB
# Below this a write may have failed.
FULL_BYTES: Final = 2 * MIB
EVERY_S: Final = 1.0


class DiskWatch:
    """`free` gives the bytes that may still be written, `restart` ends the server, which its
    launcher starts again.
    """

    def __init__(
        self, place: Path, free: Callable[[], int], say: Say, restart: Callable[[], None]
    ) -> None:
        self.place = place
        self.free = free
        self.say = say
        self.restart = restart
        self.low = self.full = False

    def look(self) -> None:
        """One look; to be repeated every EVERY_S."""
        free = self.free()
        if free >= LOW_BYTES:
            self._has_room()
        elif free < FULL_BYTES and not self.full:
            self.low = self.full = True
            self.say(
                f"the disk under {self.place} is full: nothing is recorded and no job starts "
                f"before {LOW_BYTES // MIB} MiB are free"
            )
        elif not self.low:
            self.low = True
            self.say(
                f"only {free // MIB} MiB are free under {self.place}: free some, on a full "
                "disk nothing is recorded and no job starts"
            )

    def _has_room(self) -> None:
        if self.full:
            self.say(
                f"there is room under {self.place} again: the log's server is started again, "
                "to take writes"
            )
            self.restart()
        self.low = self.full = False
