"""The place in the output of a job that a follower has read, over broken connections and attempts.

Pure. Tests: tests/unit/test_client_lines.py, tests/integration/test_cli_run.py.
"""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any


class Position:
    """The offset up to which each stream of the current attempt has been read."""

    def __init__(self, starts: Mapping[str, int]) -> None:
        self.attempt = 0
        self.offsets = {"stdout": 0, "stderr": 0, **starts}

    def take(self, frame: Mapping[str, Any]) -> bytes:
        """Return the new bytes in a piece of output, and advance the offset."""
        stream, offset, data = frame["stream"], int(frame["offset"]), b64decode(frame["data"])
        fresh = data[max(0, self.offsets[stream] - offset) :]
        self.offsets[stream] = max(self.offsets[stream], offset + len(data))
        return fresh

    def begin(self, attempt: int) -> bool:
        """Start an attempt: its streams begin at 0.

        Return True if it follows an earlier attempt that was seen.
        """
        follows = 0 < self.attempt < attempt
        if follows:
            self.offsets = dict.fromkeys(self.offsets, 0)
        self.attempt = max(attempt, self.attempt)
        return follows
