"""The progress of a pull, as lines that `muster model pull` and `muster logs` show."""

import threading
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 2.0
STEPS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress:
    """Counts the bytes of one copy, and says how far it is every few seconds."""

    def __init__(self, name: str, total_bytes: int, say: Callable[[str], None]) -> None:
        self.name, self.total_bytes, self.say = name, total_bytes, say
        self.have_bytes, self.came_bytes = 0, 0
        self.began_s = self.said_s = time.monotonic()
        self.lock = threading.Lock()

    def found(self, size_bytes: int) -> None:
        """Count bytes that were there already; negative if they are of no use."""
        with self.lock:
            self.have_bytes += size_bytes

    def came(self, size_bytes: int) -> None:
        """Count bytes that came now."""
        with self.lock:
            self.have_bytes += size_bytes
            self.came_bytes += size_bytes
            now_s = time.monotonic()
            if now_s - self.said_s < EVERY_S:
                return
            self.said_s = now_s
            self.say(self._line(now_s))

    def _line(self, now_s: float) -> str:
        rate = self.came_bytes / max(now_s - self.began_s, 0.001)
        percent = 100 * self.have_bytes // max(self.total_bytes, 1)
        left_s = (self.total_bytes - self.have_bytes) / max(rate, 1)
        return (
            f"{self.name}: {percent}%, {show(self.have_bytes)} of {show(self.total_bytes)}, "
            f"{show(int(rate))}/s, {left_s:.0f} s left"
        )


def show(size_bytes: int) -> str:
    """Return a size in the largest unit that fits: `0 B`, `1.4 GiB`."""
    step = min(max(size_bytes.bit_length() - 1, 0) // 10, len(STEPS) - 1)
    return f"{size_bytes / 1024**step:.1f} {STEPS[step]}" if step else f"{size_bytes} B"
