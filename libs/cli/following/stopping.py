"""Turns signals to `muster run` into requests about its job: the first asks it to stop, the second
kills it, the third leaves it.

So does the first when the gateway does not answer for TRIED_S.

A signal arrives while the main thread reads output; it is only noted there, and the request goes
out from a thread of its own, so that the output is followed until the job's real end. Tests:
tests/integration/test_cli_run.py.
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
from libs.cli.profile import Profile
from libs.cli.terminal.output import complain
from libs.common.errors import MusterError

CAUGHT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVE_AT: Final = 3
TRIED_S: Final = 5.0
PAUSE_S: Final = 0.2


class Stopping:
    """Catches from its creation on; acts from `watch` on.

    `asked` is the number of signals heard so far.
    """

    def __init__(self, profile: Profile) -> None:
        self.asked = 0
        self._profile = profile
        self._job_id = ""
        self._heard: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in CAUGHT:
            signal.signal(number, self._note)

    def watch(self, job_id: str) -> None:
        """From now on what was heard, and will be, is done to this job."""
        self._job_id = job_id
        threading.Thread(target=self._act, name="stopping", daemon=True).start()

    def stop_with(self, number: int) -> None:
        """As if this signal had come."""
        self.asked += 1
        self._heard.put(number)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.stop_with(number)
        if self.asked >= LEAVE_AT:
            self._leave(number)

    def _leave(self, number: int, why: str = "") -> None:
        os.write(
            2,
            (
                f"muster: left job {self._job_id or '(it may have been submitted: muster ps)'} "
                f"as it is{why}\n"
            ).encode(),
        )
        os._exit(128 + number)

    def _act(self) -> None:
        for count in range(1, LEAVE_AT):
            number = self._heard.get()
            try:
                self._ask(number, self._stop if count == 1 else self._kill)
            except MusterError as error:
                complain(f"cannot stop job {self._job_id}: {error}")

    def _ask(self, number: int, wish: Callable[[int], None]) -> None:
        """Whoever ends this command does not wait until the gateway is back."""
        began = time.monotonic()
        while True:
            try:
                return wish(number)
            except (Unreachable, Cut) as error:
                if time.monotonic() - began > TRIED_S:
                    self._leave(number, f", it may still run: {error}")
            time.sleep(PAUSE_S)

    def _stop(self, number: int) -> None:
        ask(
            self._profile,
            "POST",
            job_path(self._job_id, "cancel"),
            body={"signal": number, "user": self._profile.user},
        )
        again = "; Ctrl-C again kills it" if number == signal.SIGINT else ""
        complain(f"asked job {self._job_id} to stop ({signal.Signals(number).name}){again}")

    def _kill(self, _number: int) -> None:
        ask(
            self._profile, "POST", job_path(self._job_id, "kill"), body={"user": self._profile.user}
        )
        complain(f"killing job {self._job_id}; Ctrl-C again leaves without waiting for it")
