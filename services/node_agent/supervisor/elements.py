"""The elements that one attempt of a short array runs, one after the other.

Each element is started like a job's main process (`child.py`), and is over when nothing of it is
left (`ending.py`). An element begins only after the journal has recorded that. It ends with a
result, unless it was ended with its attempt: then its result is not known, and the retry policy of
the job decides. All elements have the same pipes, which are read to the end after each. Tests:
tests/integration/test_short_elements.py.
"""

import os
import time
from typing import Any, cast

from services.node_agent.supervisor import child
from services.node_agent.supervisor.element_journal import Journal
from services.node_agent.supervisor.ending import NS_PER_S, Ending
from services.node_agent.supervisor.order import Order

# As in libs/common/element_runs.py, which this process must not import.
SIGNAL_BASE = 256
AT_LIMIT = 512
# The weight of the newest run time in their mean is one of so many.
MEAN_OF = 8
NOT_OPEN = child.Child(0, stdout=-1, stderr=-1, stdin=-1, status=-1)
FIRST_GUESS_NS = NS_PER_S // 100


class Elements:
    """The elements of one attempt; None has begun yet. Works in the current directory."""

    def __init__(self, order: Order) -> None:
        given = order["elements"]
        self._numbers: list[int] = given["numbers"]
        self._names: list[str] = given["names"]
        self._limit_ns: int = given["limit_s"] * NS_PER_S
        self._grace_ns: int = given["grace_s"] * NS_PER_S
        self._order = order
        self._place: int = given["first"]
        self._journal = Journal(self._place, len(self._numbers))
        self._failed = 0
        self._began_ns = 0
        self._ours = NOT_OPEN
        self._ends: child.Ends | None = None
        self._is_late = False
        self._mean_ns = FIRST_GUESS_NS
        self.detail = ""

    @property
    def heading(self) -> bytes:
        """The line before the output of this element."""
        return b"== element %d ==\n" % self._numbers[self._place]

    @property
    def is_complete(self) -> bool:
        return self._place == len(self._numbers)

    def begin(self) -> child.Child:
        """Start the next element. Raises OSError if the machine has no room for a process."""
        if self._ends is None:
            self._ours, self._ends = child.open_streams(self._order)
        self._journal.begin(self._place, self._mean_ns)
        number = str(self._numbers[self._place])
        env = {**self._order["env"], **dict.fromkeys(self._names, number)}
        self._began_ns, self._is_late = time.monotonic_ns(), False
        pid = child.start_with(cast(Order, {**self._order, "env": env}), self._ends)
        return self._ours._replace(pid=pid)

    def begin_next(self) -> child.Child | None:
        """Start the next element that can be started; None if none is left."""
        while not self.is_complete:
            try:
                return self.begin()
            except OSError as error:
                self.detail = f"an element could not be started: {error}"
                self._end(child.EXIT_NOT_EXECUTABLE)
        return None

    def due_ns(self) -> int | None:
        """Return the time until this element reaches its limit; None if it has none any more."""
        if not self._limit_ns or self._is_late:
            return None
        return max(0, self._began_ns + self._limit_ns - time.monotonic_ns())

    def enforce(self, ending: Ending, now_ns: int) -> None:
        """End the element if its time is over."""
        if self.due_ns() == 0:
            self._is_late = True
            ending.end_late(self._grace_ns, now_ns)

    def ended(self, status: int | None, ending: Ending) -> None:
        """Record the end of the element, if it ended by itself or at its own time limit.

        An element that was told to end with its attempt has no result, whatever its exit code: a
        program may save its work and exit with 0.
        """
        failure = self._failure()
        result = _result(status, failure, ending.is_late)
        if ending.reason is not None and not ending.is_late:
            return
        if failure is not None:
            self.detail = failure[1]
        self._end(result)

    def _failure(self) -> tuple[int, str] | None:
        """Return the failure before exec that the element reported."""
        try:
            raw = os.read(self._ours.status, child.FAILURE.size)
        except BlockingIOError:
            return None
        return child.explain_failure(raw, self._order)

    def _end(self, result: int) -> None:
        self._journal.end(self._place, result)
        self._place += 1
        self._failed += result != 0
        took_ns = time.monotonic_ns() - self._began_ns
        self._mean_ns += (took_ns - self._mean_ns) // MEAN_OF

    def describe(self, record: Any) -> None:  # noqa: ANN401 - an ExitRecord, of which few fields
        """Describe the end of an attempt: it completed if it has run all its elements."""
        if not self.is_complete:
            if record["exit_code"] == 0:
                record["exit_code"] = None
            return
        record["exit_code"], record["signal"] = int(self._failed > 0), None
        record["reason"] = "exited"
        what = f"{len(self._numbers)} elements have ended, {self._failed} of this attempt failed"
        record["detail"] = "; ".join(filter(None, (what, self.detail)))

    def close(self) -> None:
        self._journal.close()
        if self._ends is not None:
            child.close_ends(self._ends)


def _result(status: int | None, failure: tuple[int, str] | None, is_late: bool) -> int:
    """Return the result of an element (`element_runs.py`)."""
    if failure is not None:
        return failure[0]
    if is_late:
        return AT_LIMIT
    if status is None:
        return SIGNAL_BASE
    return SIGNAL_BASE + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
