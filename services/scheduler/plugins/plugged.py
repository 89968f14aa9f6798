"""What a scheduler's process has of plug-ins, and how each is asked: under a guard that never
raises.

A plug-in that raises, gives what is no answer, answers twice differently, or takes too long is
noted as a fault, and asked no more by this process; the rule `disable` makes a fact of it. Time is
measured here and nowhere else, and what follows of it is that fact alone. Slow is who takes more
processor time than MEAN_NS a call, with ADVANCE_NS in hand, however busy the machine is; who does
not come back at all is interrupted.
"""

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from libs.common.state.cluster import Cluster
from libs.common.state.plugins import ORDER, SCORE, PluginFault

MEAN_NS: Final = 100_000
ADVANCE_NS: Final = 100_000_000
# Interrupted at the second beat: a process that was stopped hears the first when it goes on.
HANG_S: Final = 0.5
# Every so many calls it is asked twice.
TWICE_EVERY: Final = 16
REASON_MAX: Final = 200


class HungUp(BaseException):
    """Raised inside of a plug-in that does not come back; not to be caught there by mistake."""


class Plugged:
    """Versions by name of what was loaded, and what went bad since."""

    def __init__(self) -> None:
        self.orders: dict[str, str] = {}
        self.scores: dict[str, str] = {}
        self.faults: list[PluginFault] = []

    def missing(self, cluster: Cluster) -> Iterator[str]:
        """What the scheduler of the term before had and this one has not, or in another version:
        one line each.
        """
        for kind, before, now in (
            (ORDER, cluster.plugins.orders, self.orders),
            (SCORE, cluster.plugins.scores, self.scores),
        ):
            for name, version in before.items():
                if now.get(name) != version:
                    has = f"version {now[name]}" if name in now else "none"
                    yield (
                        f"the scheduler before had the {kind} {name}, version {version}; this "
                        f"one has {has}, and its TermBegan says so"
                    )


class Guard:
    """Asks a plug-in.

    `right` says whether something is an answer; `otherwise` answers for it once it went bad.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        fault: Callable[[str], None],
        right: Callable[[Any], bool],
        otherwise: Callable[..., Any],
    ) -> None:
        self.call = call
        self.fault = fault
        self.right = right
        self.otherwise = otherwise
        self.is_bad = False
        self.calls = 0
        self.owed_ns = 0

    def __call__(self, *asked: Any) -> Any:  # noqa: ANN401  whatever a plug-in of its kind is asked and answers
        if self.is_bad:
            return self.otherwise(*asked)
        reason, value = self._ask(asked)
        if not reason:
            return value
        self.is_bad = True
        self.fault(reason[:REASON_MAX])
        return self.otherwise(*asked)

    def _ask(self, asked: tuple[Any, ...]) -> tuple[str, Any]:
        """What is wrong with it, else nothing and its answer."""
        self.calls += 1
        with _uncollected():
            began = time.thread_time_ns()
            try:
                with _interrupted():
                    value = self.call(*asked)
                    again = self.call(*asked) if self.calls % TWICE_EVERY == 1 else value
            except HungUp:
                return f"it did not come back within {HANG_S * 2:g} s", None
            except BaseException as error:
                return f"it raised {type(error).__name__}: {error}", None
            self.owed_ns = max(0, self.owed_ns + time.thread_time_ns() - began - MEAN_NS)
        if not self.right(value):
            return f"it gave {value!r}, which is no answer", None
        if again != value:
            return f"asked twice the same it gave {value!r} and {again!r}", None
        if self.owed_ns > ADVANCE_NS:
            return f"it takes more than {MEAN_NS // 1_000} us a call", None
        return "", value


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing is collected inside: that takes long in a large cluster, and would be held against
    whoever is asked just then.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _interrupted() -> Iterator[None]:
    """Raises HungUp into what runs inside for too long.

    Only the main thread can be interrupted; a timer that was set goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    beats, inside = 0, True

    def beat(number: int, frame: FrameType | None) -> None:
        nonlocal beats
        beats += 1
        if inside and beats > 1:
            raise HungUp

    handler = signal.signal(signal.SIGALRM, beat)
    left = signal.setitimer(signal.ITIMER_REAL, HANG_S, HANG_S)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, handler)
