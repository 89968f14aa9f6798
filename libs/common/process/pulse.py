"""The pulse of a service: a file that is touched while every part of the service makes progress.

A running event loop proves nothing: a process whose reader or decider hangs looks alive to its
service manager. So each part beats for itself, and the file is touched only when all have beaten
recently. A health check reads the file's age (`python -m libs.compose.alive`). Test:
tests/unit/test_pulse.py.
"""

import os
import time
from pathlib import Path
from typing import Final

# The parts of an agent.
CORE: Final = "core"
HEARTBEATS: Final = "heartbeats"
# A part that has not beaten for this long makes no progress.
STILL_S: Final = 20.0
# The file is written no more often than this.
EVERY_S: Final = 2.0


class Pulse:
    """A pulse in `file`, empty if no health check reads it. All `parts` must beat."""

    def __init__(self, file: str, *parts: str) -> None:
        self.path = Path(file) if file else None
        self.beaten = dict.fromkeys(parts, 0.0)
        self.written = 0.0

    def beat(self, *parts: str) -> None:
        """Note that these parts, or all if none is named, made progress.

        Raises OSError if the file cannot be written.
        """
        if self.path is None:
            return
        now = time.monotonic()
        for part in parts or tuple(self.beaten):
            self.beaten[part] = now
        if now - min(self.beaten.values()) < STILL_S and now - self.written >= EVERY_S:
            self.path.write_text(f"{os.getpid()}\n")
            self.written = now


NO_PULSE: Final = Pulse("")
