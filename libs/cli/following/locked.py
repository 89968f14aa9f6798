"""A lock that is held while a command runs: acquire, renew, and end the command before the time of
the lock has passed.

The renewals run in a thread of their own, so a gateway that does not answer delays nothing here.
Times are of this machine's boot clock; `libs/client/lock_term.py` has the rule. Tests:
tests/integration/test_cli_lock.py.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.following.descendants import adopt_orphans, descendants
from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import complain
from libs.client.calls import path_of
from libs.client.lock_term import LockTerm
from libs.client.profile import Profile, away_s
from libs.client.timing import Patience
from libs.common.errors import MusterError
from libs.common.process.clock import SystemClock
from libs.embedded.living import die_with_parent

NS: Final = 1_000_000_000
# Between two looks at the command and the time.
STEP_S: Final = 0.05
# The wait for the lock's own end, after the gateway should have ended the claim.
PATIENT_S: Final = 30.0
# How long processes that do not end are killed again, and the pause between two passes.
KILL_S: Final = 10.0
KILL_PAUSE_S: Final = 0.01
# Between two tries to renew, as a part of the time to live.
AGAIN_PART: Final = 15
TEMPORARY: Final = (429, 502, 503, 504)
ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)

clock = SystemClock()


class NotHeld(MusterError):
    """The lock was not free in time."""


class Lost(MusterError):
    """The lock was lost while the command ran, and the command was ended."""

    exit_code = 124


class Holding:
    """A lock that is held: its token and its time.

    `is_refused`: a gateway said that this holder has no claim on the lock.
    """

    def __init__(self, profile: Profile, name: str, holder: str, ttl_s: int) -> None:
        self.profile = profile
        self.name = name
        self.body = {"holder": holder}
        self.ttl_s = ttl_s
        self.token = 0
        self.term = LockTerm(ttl_s * NS, 0)
        self.lost = ""
        self.is_refused = False
        self.over = threading.Event()

    def acquire(self, wait_s: int) -> None:
        """Acquire the lock. Raises NotHeld, Declined or Unreachable.

        An answer that took long, because the request waited in the queue, leaves little time. The
        request is then repeated, which renews the lock, before the command may start.
        """
        wish = {**self.body, "ttl": self.ttl_s, "wait": wait_s}
        until_s = time.monotonic() + wait_s + PATIENT_S
        patience, is_told = Patience(away_s()), False
        while time.monotonic() < until_s:
            sent_ns = clock.boot_ns()
            try:
                shown = self._ask("acquire", wish)
            except (Unreachable, Cut, Declined) as error:
                self._check(error, patience)
                continue
            patience.reset()
            if shown["state"] == "held":
                self.token, self.term = int(shown["token"]), LockTerm(self.ttl_s * NS, sent_ns)
                if clock.boot_ns() < self.term.renew_ns:
                    return
                continue
            if not is_told:
                complain(f"waiting for lock {self.name}: {shown['before']} before this one")
                is_told = True
        if self.token:
            raise NotHeld(
                f"lock {self.name} was granted, but each answer took longer than a third of its "
                f"time to live of {self.ttl_s} s: try again with a longer --ttl"
            )
        raise NotHeld(f"lock {self.name} was not free within {wait_s} s: try again")

    def _check(self, error: MusterError, patience: Patience) -> None:
        """Pause after an error that may pass, else raise it."""
        if isinstance(error, Declined) and error.status not in TEMPORARY:
            self.is_refused = True
            raise NotHeld(str(error)) if error.status == 409 else error
        pause_s = patience.pause_s(time.monotonic())
        if pause_s is None:
            raise error
        time.sleep(pause_s)

    def renew(self) -> None:
        """Renew until the lock is over or lost; the body of the thread.

        A command that must be killed by now, for example because this machine was paused, is not
        saved by a late renewal.
        """
        while not self.over.wait(max(0.0, (self.term.renew_ns - clock.boot_ns()) / NS)):
            sent_ns = clock.boot_ns()
            if sent_ns >= self.term.kill_ns:
                return
            try:
                self._ask("renew", self.body)
                self.term.renewed(sent_ns)
                continue
            except Declined as error:
                if error.status not in TEMPORARY:
                    self.lost = str(error)
                    return
            except (Unreachable, Cut):
                pass  # the term ends by itself
            self.over.wait(self.ttl_s / AGAIN_PART)

    def release(self) -> None:
        """Give the lock back, or leave its queue, unless a gateway said that there is no claim.

        A gateway that is away is no error: the lock ends by itself.
        """
        self.over.set()
        if self.lost or self.is_refused:
            return
        try:
            self._ask("release", self.body)
        except (Unreachable, Cut, Declined) as error:
            if self.token:
                complain(
                    f"lock {self.name} was not released ({error}): it is free {self.ttl_s} s after "
                    "its last renewal"
                )

    def _ask(self, what: str, body: Mapping[str, object]) -> Json:
        return ask(self.profile, "POST", path_of("locks", self.name, what), body=body)


@contextmanager
def held(holding: Holding, wait_s: int) -> Iterator[None]:
    """Hold the lock, and renew it meanwhile. Raises as `Holding.acquire`."""
    try:
        holding.acquire(wait_s)
        threading.Thread(target=holding.renew, daemon=True).start()
        yield
    finally:
        holding.release()


def run_held(holding: Holding, words: Sequence[str], wait_s: int) -> int:
    """Run a command while the lock is held, and return its exit code.

    Raises Lost if the lock was lost and the command ended; else as `Holding.acquire`.
    """
    with _forwarded() as forwarding, held(holding, wait_s):
        adopt_orphans()
        environ = {
            **os.environ,
            "MUSTER_LOCK": holding.name,
            "MUSTER_LOCK_TOKEN": str(holding.token),
        }
        with forwarding.starting():
            child = subprocess.Popen(  # nosec B603  the user's own command
                list(words), env=environ, preexec_fn=die_with_parent()
            )
            forwarding.command = child.pid
        try:
            code = _watched(holding, child)
        finally:
            forwarding.command = None
    return code if code >= 0 else 128 - code


def _watched(holding: Holding, child: "subprocess.Popen[bytes]") -> int:
    """Wait for the command's end. End it, with all that it started, when the lock is lost."""
    is_asked = False
    while True:
        try:
            return child.wait(STEP_S)
        except subprocess.TimeoutExpired:
            now_ns = clock.boot_ns()
        if holding.lost or now_ns >= holding.term.kill_ns:
            why = holding.lost or "no renewal was answered in its time to live"
            if left := kill_all(child):
                holding.lost = why  # it is not given back while they run
                complain(
                    f"processes {left} of the command cannot be killed and run without lock "
                    f"{holding.name}: end them"
                )
            raise Lost(f"lock {holding.name} was lost, and its command was killed: {why}")
        if now_ns >= holding.term.ask_ns and not is_asked:
            is_asked = True
            complain(f"lock {holding.name} is not renewed: asking its command to end (SIGTERM)")
            _signal([child.pid, *descendants(os.getpid())], signal.SIGTERM)


def kill_all(child: "subprocess.Popen[bytes]") -> list[int]:
    """Kill the command and all its descendants. Return those that run after KILL_S.

    A process can start another one after it was listed, so they are listed until none is left.
    """
    until_s = time.monotonic() + KILL_S
    _signal([child.pid, *descendants(os.getpid())], signal.SIGKILL)
    _reap()
    while (left := descendants(os.getpid())) and time.monotonic() < until_s:
        _signal(left, signal.SIGKILL)
        time.sleep(KILL_PAUSE_S)
        _reap()
    if not left:
        child.wait()
    return left


def _signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to the processes that exist and belong to this user."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _reap() -> None:
    """Take the exit codes of the descendants that this process adopted and that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class _Forwarding:
    """Forwards signals to the command; without one, lets them end this process.

    A signal that comes while the command is started waits until its process id is known.
    """

    def __init__(self) -> None:
        self.command: int | None = None
        self.is_starting = False
        self.waiting: list[int] = []

    def handle(self, number: int, _: FrameType | None) -> None:
        """The handler of the signals. Ctrl-C reaches the command from the terminal itself."""
        if self.command is None:
            if not self.is_starting:
                raise SystemExit(128 + number)
            self.waiting.append(number)
        elif number != signal.SIGINT or not os.isatty(0):
            os.kill(self.command, number)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let signals wait meanwhile."""
        self.is_starting = True
        try:
            yield
        finally:
            self.is_starting = False
        for number in self.waiting:
            self.handle(number, None)


@contextmanager
def _forwarded() -> Iterator[_Forwarding]:
    """Forward signals to the command."""
    forwarding = _Forwarding()
    before = {
        number: handler
        for number in (*ENDINGS, signal.SIGINT)
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, forwarding.handle)
    try:
        yield forwarding
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
