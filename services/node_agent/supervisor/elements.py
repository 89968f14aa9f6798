"""The elements that one attempt of a short array runs, one after the other.

Each element is started like a job's main process (`child.py`), and is over when nothing of it is
left (`ending.py`). An element begins only after the journal has recorded that. It ends with a
result, unless it was ended with its attempt: then its result is not known, and the retry policy of
the job decides. If the machine has no room for an element, or the journal cannot be written, the
attempt ends. All elements have the same pipes, which are read to the end after each. Tests:
tests/integration/test_short_elements.py, test_element_results.py.
"""

import contextlib
import errno
import os
import time
from typing import Any

from services.node_agent.supervisor import child
from services.node_agent.supervisor.element_journal import Journal, JournalError
from services.node_agent.supervisor.ending import NS_PER_S, TOLD_TO_END, Ending
from services.node_agent.supervisor.order import Order
from services.node_agent.supervisor.starter import Starter

# The machine has no room now, which is no fault of the element.
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# As in libs/common/element_runs.py and reasons.py, which this process must not import.
EXEC_FAILED = "exec_failed"
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
        self._names = [*map(os.fsencode, given["names"])]
        self._limit_ns: int = given["limit_s"] * NS_PER_S
        self._grace_ns: int = given["grace_s"] * NS_PER_S
        self._order = order
        self._place: int = given["first"]
        self._journal = Journal(self._place, len(self._numbers))
        self._failed = 0
        self._began_ns = 0
        self._failure = b""
        self._starter: Starter | None = None
        self._command: child.Command | None = None
        self._pid = 0
        self._ours = NOT_OPEN
        self._ends: child.Ends | None = None
        self._is_late = False
        self._mean_ns = FIRST_GUESS_NS
        self.detail = ""
        # Why no other element can begin in this attempt.
        self.trouble = ""

    @property
    def heading(self) -> bytes:
        """The line before the output of this element."""
        return b"== element %d ==\n" % self._numbers[self._place]

    @property
    def is_complete(self) -> bool:
        return self._place == len(self._numbers)

    def begin_first(self) -> child.Child:
        """Open the streams of all elements, and start the first one. Raises OSError."""
        self._ours, self._ends = child.open_streams(self._order)
        self._command = child.Command(self._order, self._ends)
        self._begin(self._command, None)
        self._starter = Starter(self._order, self._ends)
        return self._ours._replace(pid=self._pid)

    def _begin(self, command: child.Command, starter: Starter | None) -> None:
        """Start the next element. Raises OSError if it cannot be started."""
        self._journal.begin(self._place, self._mean_ns)
        number = b"%d" % self._numbers[self._place]
        self._began_ns, self._is_late = time.monotonic_ns(), False
        variables = dict.fromkeys(self._names, number)
        self._pid = 0
        try:
            if starter is None or not starter.start(variables):
                self._pid = command.start(variables)
        except OSError as error:
            if error.errno in PASSING:
                self._journal.retract(self._place)
            raise

    def begin_next(self) -> bool:
        """Start the next element that can be started; False if none is left or there is trouble."""
        assert self._command is not None
        while not self.is_complete and not self.trouble:
            try:
                self._begin(self._command, self._starter)
                return True
            except OSError as error:
                what = f"an element could not be started: {error}"
                if isinstance(error, JournalError) or error.errno in PASSING:
                    self.trouble = what
                    break
                self.detail = what
                self._end(child.EXIT_NOT_EXECUTABLE)
        return False

    @property
    def pid(self) -> int:
        """The main process of this element; 0 until it has begun."""
        if not self._pid and self._starter is not None:
            self._pid = self._starter.take_pid()
        return self._pid

    @property
    def starter_pid(self) -> int:
        """The starter; 0 while there is none."""
        return self._starter.pid if self._starter is not None else 0

    def has_starter_ended(self, pid: int) -> bool:
        """Note the end of a child; return whether it was the starter."""
        return self._starter is not None and self._starter.has_ended(pid)

    def is_all_ended(self) -> bool:
        """Return whether the supervisor has no children but the starter."""
        return self._starter is not None and self._starter.pid > 0 and self._starter.is_alone()

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
        raw, self._failure = self._failure, b""
        failure = child.explain_failure(raw, self._order) if raw else None
        if raw and failure is not None and _is_passing(raw):
            self._retract(failure[1])
            return
        if not raw and not self.pid:
            self._retract("its starter was ended")
            return
        result = _result(status, failure, ending.is_late)
        if ending.reason is not None and not ending.is_late:
            return
        if failure is not None:
            self.detail = failure[1]
        self._end(result)

    def read_failure(self) -> None:
        """Read the failure before exec that the element has reported."""
        self._failure = os.read(self._ours.status, child.FAILURE.size)

    def _retract(self, why: str) -> None:
        """End the attempt at an element that was never executed."""
        self.trouble = f"an element could not be started: {why}"
        with contextlib.suppress(JournalError):  # then it counts as begun
            self._journal.retract(self._place)

    def _end(self, result: int) -> None:
        try:
            self._journal.end(self._place, result)
        except JournalError as error:
            self.trouble = f"the result of an element could not be recorded: {error}"
            return
        self._place += 1
        self._failed += result != 0
        took_ns = time.monotonic_ns() - self._began_ns
        self._mean_ns += (took_ns - self._mean_ns) // MEAN_OF

    def describe(self, record: Any) -> None:  # noqa: ANN401 - an ExitRecord, of which few fields
        """Describe the end of an attempt: it completed if it has run all its elements."""
        if self.trouble and record["reason"] not in TOLD_TO_END:
            record["exit_code"], record["signal"] = None, None
            record["reason"], record["detail"] = EXEC_FAILED, self.trouble
            return
        if not self.is_complete:
            if record["exit_code"] == 0:
                record["exit_code"] = None
            return
        record["exit_code"], record["signal"] = int(self._failed > 0), None
        record["reason"] = "exited"
        what = f"{len(self._numbers)} elements have ended, {self._failed} of this attempt failed"
        record["detail"] = "; ".join(filter(None, (what, self.detail)))

    def close(self) -> None:
        with contextlib.suppress(JournalError):  # results that a power cut destroys count as lost
            self._journal.close()
        if self._starter is not None:
            self._starter.close()
        if self._ends is not None:
            child.close_ends(self._ends)


def _is_passing(raw: bytes) -> bool:
    """Return whether a failure before exec is the machine's, and may pass."""
    stage, number = child.FAILURE.unpack(raw)
    return stage == child.STAGE_SETUP or number in PASSING


def _result(status: int | None, failure: tuple[int, str] | None, is_late: bool) -> int:
    """Return the result of an element (`element_runs.py`)."""
    if failure is not None:
        return failure[0]
    if is_late:
        return AT_LIMIT
    if status is None:
        return SIGNAL_BASE
    return SIGNAL_BASE + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
