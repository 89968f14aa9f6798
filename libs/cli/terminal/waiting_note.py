"""Prints on stderr why a job still waits: after NOTICE_S, and when the explanation changes."""

import threading
from typing import Final

from libs.cli.gateway import ask, job_path
from libs.cli.jobs import NEVER_HELD
from libs.cli.terminal.output import complain
from libs.client.profile import Profile
from libs.common.errors import MusterError

NOTICE_S: Final = 1.0
AGAIN_S: Final = 15.0


class WaitingNote:
    """A background thread that prints notes until `started`. Errors are not reported."""

    def __init__(self, profile: Profile, job_id: str) -> None:
        self._profile = profile
        self._job_id = job_id
        self._started = threading.Event()
        threading.Thread(target=self._watch, name="waiting", daemon=True).start()

    def started(self) -> None:
        self._started.set()

    def _watch(self) -> None:
        printed, pause_s, has_advised = "", NOTICE_S, False
        while not self._started.wait(pause_s):
            answer = self._answer()
            if answer and answer != printed and not self._started.is_set():
                complain(f"job {self._job_id} waits: {answer}")
                printed = answer
                if NEVER_HELD in answer and not has_advised:
                    complain(
                        f"Ctrl-C gives up; muster why {self._job_id} shows what would help; "
                        "--reject-if-impossible refuses such a job at once"
                    )
                    has_advised = True
            pause_s = AGAIN_S

    def _answer(self) -> str:
        try:
            return str(ask(self._profile, "GET", job_path(self._job_id, "why")).get("answer") or "")
        except MusterError:
            return ""
