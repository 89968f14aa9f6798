"""Turns signals to `muster run` into requests: the first stops the job, the second kills it.

A third signal, or no answer of the gateway for TRIED_S, ends this command and leaves the job as it
is. The signal handler only records the signal; a thread sends the request, while the main thread
follows the output until the job's end. Tests:
tests/integration/test_cli_run_signals.py.
"""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from libs.cli.faults import Cut, Unreachable
from libs.cli.gateway import ask, job_path
from libs.cli.terminal.output import complain
from libs.client.profile import Profile
from libs.common.errors import MusterError

CAUGHT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVE_AT: Final = 3
TRIED_S: Final = 5.0
PAUSE_S: Final = 0.2


class Stopping:
    """Records signals from its creation on, and acts on them after `watch`.

    `count` is the number of signals so far.
    """

    def __init__(self, profile: Profile) -> None:
        self.count = 0
        self._profile = profile
        self._job_id = ""
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in CAUGHT:
            signal.signal(number, self._note)

    def watch(self, job_id: str) -> None:
        """Apply all recorded and future signals to this job."""
        self._job_id = job_id
        threading.Thread(target=self._act, name="stopping", daemon=True).start()

    def stop_with(self, number: int) -> None:
        """Act as if this signal had arrived."""
        self.count += 1
        self._signals.put(number)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.stop_with(number)
        if self.count >= LEAVE_AT:
            self._leave(number)

    def _leave(self, number: int, why: str = "") -> None:
        job = self._job_id or "(if it was submitted, muster ps shows it)"
        os.write(2, f"muster: left job {job}; it may still run{why}\n".encode())
        os._exit(128 + number)

    def _act(self) -> None:
        for nth in range(1, LEAVE_AT):
            number = self._signals.get()
            try:
                self._ask(number, self._stop if nth == 1 else self._kill)
            except MusterError as error:
                complain(f"cannot stop job {self._job_id}: {error}")

    def _ask(self, number: int, request: Callable[[int], None]) -> None:
        """Send a request, and leave the job if the gateway does not answer for TRIED_S."""
        began = time.monotonic()
        while True:
            try:
                return request(number)
            except (Unreachable, Cut) as error:
                if time.monotonic() - began > TRIED_S:
                    self._leave(number, f": {error}")
            time.sleep(PAUSE_S)

    def _stop(self, number: int) -> None:
        ask(
            self._profile,
            "POST",
            job_path(self._job_id, "cancel"),
            body={"signal": number, "user": self._profile.user},
        )
        again = "; press Ctrl-C again to kill it" if number == signal.SIGINT else ""
        complain(f"asked job {self._job_id} to stop ({signal.Signals(number).name}){again}")

    def _kill(self, _number: int) -> None:
        ask(
            self._profile, "POST", job_path(self._job_id, "kill"), body={"user": self._profile.user}
        )
        complain(f"killing job {self._job_id}; press Ctrl-C again to leave without waiting for it")
