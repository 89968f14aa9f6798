"""Sends standard input to a job, by attempt and offset, so that a repeated request has no effect.

The node accepts what fits its buffer and answers with the next offset, or that the job reads no
more. A new attempt gets the input from its beginning, if it is not longer than KEPT_BYTES_MAX. The
forwarder runs on a daemon thread, because a read from a terminal cannot be cancelled. Tests:
tests/integration/test_cli_run_input.py.
"""

import os
import stat
import threading
from typing import Final

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import Json, job_path, send
from libs.cli.terminal.output import complain
from libs.client.profile import Profile

CHUNK_BYTES: Final = 65_536
KEPT_BYTES_MAX: Final = 4 << 20
# Pause after a request that made no progress; the job's end stops the requests.
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
# Temporary statuses: another attempt or offset, too early, errors of the gateway.
TEMPORARY: Final = (409, 425, 429, 500, 502, 503, 504)


def worth_forwarding() -> bool:
    """Return True if standard input is a pipe, a file, a socket, or our foreground terminal.

    False for a closed input and for /dev/null.
    """
    try:
        mode = os.fstat(0).st_mode
        if os.isatty(0):
            return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


class _Input:
    """The input that is kept for resending, from offset `begin` to offset `end`."""

    def __init__(self) -> None:
        self.begin = self.end = 0
        self.ended = False
        self._kept = bytearray()

    def read(self) -> None:
        """Wait for more input. Drop older input if more than KEPT_BYTES_MAX would be kept."""
        data = _read()
        self.ended = not data
        self.end += len(data)
        self._kept += data
        if len(self._kept) > KEPT_BYTES_MAX:
            self._kept, self.begin = bytearray(data), self.end - len(data)

    def after(self, offset: int) -> bytes:
        return bytes(self._kept[offset - self.begin :][:CHUNK_BYTES])


class Forwarder:
    """Forwards standard input. Call `start` for each attempt, and `stop` at the job's end."""

    def __init__(self, profile: Profile, job_id: str) -> None:
        self._profile = profile
        self._path = job_path(job_id, "stdin")
        self._news = threading.Event()
        self._stopped = False
        self._running = 0
        # The current attempt, the offset that it has accepted, and whether it reads no more.
        self._attempt = self._offset = 0
        self._closed = False
        self._pause_s = PAUSE_FIRST_S
        self._input = _Input()
        self._thread = threading.Thread(target=self._forward, name="stdin", daemon=True)

    def start(self, attempt: int) -> None:
        self._running = attempt
        self._news.set()
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._news.set()

    def _forward(self) -> None:
        while True:
            self._news.clear()
            if self._stopped:
                return
            if self._running > self._attempt and not self._begin(self._running):
                return
            if self._closed:
                self._news.wait()
            elif self._offset == self._input.end and not self._input.ended:
                self._input.read()
            elif not self._offer():
                return

    def _begin(self, attempt: int) -> bool:
        """Start feeding an attempt. Return False if the input's beginning is not kept."""
        self._attempt, self._offset, self._closed, self._pause_s = attempt, 0, False, PAUSE_FIRST_S
        if self._input.begin:
            complain(
                "the job was restarted and needs its input from the beginning, which is not kept; "
                "stop the job with Ctrl-C and submit it again"
            )
        return not self._input.begin

    def _offer(self) -> bool:
        """Send one piece; pause if it made no progress. Return False if the job reads no input."""
        data = self._input.after(self._offset)
        answer = self._put(
            data, eof=self._input.ended and self._offset + len(data) == self._input.end
        )
        if answer is None:
            return False
        taken = self._offset
        if answer.get("attempt", self._attempt) == self._attempt:
            self._closed = answer.get("closed") is True
            taken = int(answer.get("next_offset", self._offset))
        else:
            self._running = max(self._running, int(answer["attempt"]))
        if self._offset < taken <= self._input.end:
            self._offset, self._pause_s = taken, PAUSE_FIRST_S
        elif not self._closed:
            self._pause()
        return True

    def _pause(self) -> None:
        self._news.wait(self._pause_s)
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 1.5)

    def _put(self, data: bytes, eof: bool) -> Json | None:
        """Return the answer, empty after a temporary error; None if the job reads no input."""
        query = {"offset": self._offset, "eof": int(eof), "attempt": self._attempt}
        try:
            return send(self._profile, "PUT", self._path, query=query, payload=data)
        except Declined as error:
            return error.body if error.status in TEMPORARY else None
        except (Unreachable, Cut):
            return {}


def _read() -> bytes:
    """Return available input; empty at its end, or if the terminal is gone."""
    try:
        return os.read(0, CHUNK_BYTES)
    except OSError as error:
        complain(f"standard input cannot be read: {error.strerror}")
        return b""
