"""Sends this process's standard input to a job, by attempt and offset, so that a repeated request
changes nothing.

The job's node takes what it has room for, says how far it has come, and at the end that it wants no
more. A new attempt is given the input from its beginning, as far as that is kept here
(KEPT_BYTES_MAX). Runs on a daemon thread: a read from a terminal cannot be broken off. Tests:
tests/integration/test_cli_run.py.
"""

import os
import stat
import threading
from typing import Final

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import Json, job_path, send
from libs.cli.profile import Profile
from libs.cli.terminal.output import complain

CHUNK_BYTES: Final = 65_536
KEPT_BYTES_MAX: Final = 4 << 20
# Between two requests of which the first moved nothing; the job's end bounds them.
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
# Another attempt or offset, too early, and the gateway's own faults pass; anything else ends it.
PASSING: Final = (409, 425, 429, 500, 502, 503, 504)


def worth_forwarding() -> bool:
    """A pipe, a file, a socket, or a terminal that is ours to read from; not a closed input and not
    /dev/null.
    """
    try:
        mode = os.fstat(0).st_mode
        if os.isatty(0):
            return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


class _Input:
    """What was read, from `begin` on; `end` is the offset behind the last byte."""

    def __init__(self) -> None:
        self.begin = self.end = 0
        self.ended = False
        self._kept = bytearray()

    def read(self) -> None:
        """Waits for more. What was sent before is let go once it is too much to keep."""
        data = _read()
        self.ended = not data
        self.end += len(data)
        self._kept += data
        if len(self._kept) > KEPT_BYTES_MAX:
            self._kept, self.begin = bytearray(data), self.end - len(data)

    def after(self, offset: int) -> bytes:
        return bytes(self._kept[offset - self.begin :][:CHUNK_BYTES])


class Forwarder:
    """`start` with each attempt that runs; `stop` when the job has ended."""

    def __init__(self, profile: Profile, job_id: str) -> None:
        self._profile = profile
        self._path = job_path(job_id, "stdin")
        self._news = threading.Event()
        self._stopped = False
        self._running = 0
        # The attempt that is fed, how far it has taken its input, and whether it wants no more.
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
        """False: the new attempt cannot be given what it asks for."""
        self._attempt, self._offset, self._closed, self._pause_s = attempt, 0, False, PAUSE_FIRST_S
        if self._input.begin:
            complain(
                "the job was started again and asks for its input from the beginning, which "
                "is gone; Ctrl-C ends it"
            )
        return not self._input.begin

    def _offer(self) -> bool:
        """One request; a pause when it moved nothing. False: the job takes no input."""
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
        """The answer, empty for a fault that passes; None when the job takes no input."""
        query = {"offset": self._offset, "eof": int(eof), "attempt": self._attempt}
        try:
            return send(self._profile, "PUT", self._path, query, data)
        except Declined as error:
            return error.body if error.status in PASSING else None
        except (Unreachable, Cut):
            return {}


def _read() -> bytes:
    """What there is; empty at the end, or when the terminal has gone."""
    try:
        return os.read(0, CHUNK_BYTES)
    except OSError as error:
        complain(f"standard input cannot be read: {error.strerror}")
        return b""
