"""Sends this process's standard input to a job, by offset, so that a repeated request changes nothing.

The job's node takes what it has room for and says how far it has come; the rest is offered again. The end of the input is sent
as `eof`. Runs on a daemon thread: a read from a terminal cannot be broken off. Tests: tests/integration/test_cli_run.py.
"""

import os
import stat
import threading
from collections.abc import Callable
from typing import Final

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import job_path, send
from libs.cli.output import complain
from libs.cli.profile import Profile

CHUNK_BYTES: Final = 65_536
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
EOF_AGAIN_S: Final = 0.5
EOF_AGAIN_MAX_S: Final = 10.0
TRIES_MAX: Final = 600
NOT_TAKEN: Final = -1
# Conflict (with `next_offset`: another place), too early, and the gateway's own faults pass; anything else ends it.
PASSING: Final = (409, 425, 429, 500, 502, 503, 504)


def worth_forwarding() -> bool:
    """A pipe, a file, a socket, or a terminal that is ours to read from; not a closed input and not /dev/null."""
    try:
        mode = os.fstat(0).st_mode
        if os.isatty(0):
            return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


class Forwarder:
    """`start` once the job runs; `stop` when it has ended."""

    def __init__(self, profile: Profile, job_id: str) -> None:
        self._profile = profile
        self._path = job_path(job_id, "stdin")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="stdin", daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopped.is_set():
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _forward(self) -> None:
        offset = 0
        while not self._stopped.is_set():
            data = _read()
            if not self._offer(offset, data, eof=not data):
                return
            offset += len(data)
            if not data:
                self._repeat_end(offset)
                return

    def _repeat_end(self, offset: int) -> None:
        """An end that came before the job could take it is answered like one that was taken, so it is said until the job has ended."""
        pause_s = EOF_AGAIN_S
        while not self._stopped.wait(pause_s) and self._put(offset, b"", eof=True) is not None:
            pause_s = min(EOF_AGAIN_MAX_S, pause_s * 2)

    def _offer(self, offset: int, data: bytes, eof: bool) -> bool:
        """Until all of it is taken. False: the job takes no more."""
        pause = _Pause(self._stopped.wait)
        start = offset
        while not self._stopped.is_set():
            taken = self._put(offset, data[offset - start :], eof)
            if taken is None:
                return False
            if taken >= start + len(data):
                return True
            if NOT_TAKEN < taken < start:
                complain("the job was started again and asks for its input from the beginning, which is gone")
                return False
            if taken > offset:
                offset, pause = taken, _Pause(self._stopped.wait)
            elif not pause.again():
                complain("the job does not take its standard input; the rest of it is not sent")
                return False
        return False

    def _put(self, offset: int, data: bytes, eof: bool) -> int | None:
        """How far the job has its input now; None when it takes no more. A passing fault leaves it where it was."""
        try:
            answer = send(self._profile, "PUT", self._path, {"offset": offset, "eof": int(eof)}, data)
        except Declined as error:
            if error.status not in PASSING:
                return None
            answer = error.body
        except (Unreachable, Cut):
            return NOT_TAKEN
        found = answer.get("next_offset")
        return found if isinstance(found, int) else NOT_TAKEN


class _Pause:
    """Growing pauses, TRIES_MAX of them."""

    def __init__(self, wait: Callable[[float], bool]) -> None:
        self._wait = wait
        self._left = TRIES_MAX
        self._next_s = PAUSE_S

    def again(self) -> bool:
        self._left -= 1
        self._wait(self._next_s)
        self._next_s = min(PAUSE_MAX_S, self._next_s * 1.5)
        return self._left > 0


def _read() -> bytes:
    """What there is; empty at the end, or when the terminal has gone."""
    try:
        return os.read(0, CHUNK_BYTES)
    except OSError as error:
        complain(f"standard input cannot be read: {error.strerror}")
        return b""
