"""The plug-ins of this process, and the guard through which each is called.

A plug-in that raises, returns no valid answer, answers differently for equal input, or takes too
long is noted as a fault and not called again by this process; the rule `disable` records that as a
fact. Time is measured only here, and its only effect is that fact. A plug-in is slow if it takes
more processor time than MEAN_NS per call, beyond ADVANCE_NS, however busy the machine is. A call
that does not return is interrupted.
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
# A call is interrupted at the second beat: a process that was stopped gets the first when it
# resumes.
HANG_S: Final = 0.5
# Every so many calls the plug-in is called twice, to compare the answers.
TWICE_EVERY: Final = 16
REASON_MAX: Final = 200


class HungUp(BaseException):
    """Raised inside a plug-in that does not return; a BaseException, so that the plug-in does not
    catch it.
    """


class Plugged:
    """The loaded plug-ins, as versions by name, and their faults."""

    def __init__(self) -> None:
        self.orders: dict[str, str] = {}
        self.scores: dict[str, str] = {}
        self.faults: list[PluginFault] = []

    def missing(self, cluster: Cluster) -> Iterator[str]:
        """Yield one line for each plug-in that the last term had and this process lacks, or has in
        another version.
        """
        for kind, before, now in (
            (ORDER, cluster.plugins.orders, self.orders),
            (SCORE, cluster.plugins.scores, self.scores),
        ):
            for name, version in before.items():
                if now.get(name) != version:
                    has = f"version {now[name]}" if name in now else "none"
                    yield (
                        f"the last scheduler had the {kind} {name}, version {version}; this one "
                        f"has {has}, and records that in TermBegan"
                    )


class Guard:
    """The guard around one plug-in.

    `right` tells whether a value is a valid answer; `otherwise` answers once the plug-in has
    failed.
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

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401  the arguments and results of any plug-in
        if self.is_bad:
            return self.otherwise(*arguments)
        reason, value = self._ask(arguments)
        if not reason:
            return value
        self.is_bad = True
        # A lone surrogate in the text of an exception would fit into no commit.
        self.fault(reason[:REASON_MAX].encode(errors="replace").decode())
        return self.otherwise(*arguments)

    def _ask(self, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """Return what is wrong with the plug-in, or an empty string and its answer."""
        self.calls += 1
        with _uncollected():
            began = time.thread_time_ns()
            try:
                with _time_limit():
                    value = self.call(*arguments)
                    again = self.call(*arguments) if self.calls % TWICE_EVERY == 1 else value
            except HungUp:
                return f"it did not return within {HANG_S * 2:g} s", None
            except BaseException as error:
                return f"it raised {type(error).__name__}: {error}", None
            self.owed_ns = max(0, self.owed_ns + time.thread_time_ns() - began - MEAN_NS)
        if not self.right(value):
            return f"it returned {value!r}, which is no valid answer", None
        if again != value:
            return f"it returned {value!r} and then {again!r} for equal input", None
        if self.owed_ns > ADVANCE_NS:
            return f"it takes more than {MEAN_NS // 1_000} us a call", None
        return "", value


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection inside, because a collection in a large cluster would count as the
    plug-in's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise HungUp into a call that runs for too long.

    Only the main thread can be interrupted. A timer that was set before goes on afterwards.
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
