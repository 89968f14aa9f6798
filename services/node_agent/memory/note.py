"""A file in which the agent notes what a sibling process has, for the time when both end.

Jobs can fill the disk that holds it. Tests: tests/unit/test_memory_note.py.
"""

import asyncio
import threading
from pathlib import Path


class Note:
    """One note. If several threads write at once, the newest content stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._last = 0
        self._written = 0

    async def write(self, data: bytes) -> None:
        """Replace the note; empty data removes it. Raises OSError; then the note is unchanged."""
        self._last += 1
        await asyncio.to_thread(self._write, self._last, data)

    def _write(self, number: int, data: bytes) -> None:
        with self._writing:
            if number < self._written:
                return
            if data:
                fresh = self.path.with_suffix(".new")
                fresh.touch(mode=0o600)
                fresh.write_bytes(data)
                fresh.replace(self.path)
            else:
                self.path.unlink(missing_ok=True)
            self._written = number
