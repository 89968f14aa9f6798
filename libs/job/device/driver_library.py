"""A vendor's shared library: opened at its first call, every return code checked, every call
bounded in time.

All calls of one library run on one thread of their own, and the caller waits for the answer for at
most MUSTER_DRIVER_CALL_S seconds. If the time is over, the caller gets DeviceError HANGS with the
name of the call; the library is then closed for this process, because a driver that hangs may hold
locks that every later call needs. The stuck thread is a daemon: it does not keep the process from
ending. Decision 38 compares this with other ways. The hand-over costs some 20 us per call, which
no allocation of a pool pays: only physical memory, mappings, contexts and copies come here.
The own thread has a second use: the current context of the caller's threads stays as it is.

Tests: tests/vendors/test_library.py.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from libs.job.device.errors import Cause, DeviceError

CALL_S: Final = 60.0
CALL_VARIABLE: Final = "MUSTER_DRIVER_CALL_S"

T = TypeVar("T")
Arguments = Sequence[Any]
Answers = SimpleQueue[tuple[Any, BaseException | None]]
Words = Callable[["Library", int], tuple[str, str]]


class Description(NamedTuple):
    """A vendor's library, as the module of that vendor describes it.

    `functions`: by symbol, the types of the arguments; all return an int, 0 for success.
    `causes`: the codes that have a cause of their own; others are UNKNOWN.
    `words`: the driver's own name and text of a code; it runs on the library's thread.
    `start`: initialises the library; it runs once, before any other call.
    `needs`: the oldest version that has every function, for the error that names a missing one.
    """

    driver: str
    soname: str
    variable: str
    functions: Mapping[str, Arguments]
    causes: Mapping[int, Cause]
    words: Words
    start: Callable[["Library"], None]
    needs: str


class Library:
    """One vendor's library in this process.

    The file is `path`, else what the description's environment variable names, else its soname as
    the dynamic linker finds it.
    """

    def __init__(self, description: Description, path: str = "") -> None:
        self.description = description
        self.driver = description.driver
        self._path = path
        self._lock = threading.Lock()
        self._work: SimpleQueue[tuple[Callable[[], Any], Answers]] = SimpleQueue()
        self._process = 0
        self._thread = threading.Thread()
        self._opened: ctypes.CDLL | None = None
        self.started = False
        self._bound: dict[str, Callable[..., int]] = {}
        self._now = ""
        self._hangs = ""

    def call(self, name: str, *arguments: object, on: str = "") -> None:
        """Call one function. `on` names the object of the call, for the error.

        Raises DeviceError.
        """
        self.run(lambda: self.invoke(name, *arguments, on=on))

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the library's thread; it makes its calls by `invoke`.

        Nothing of another thread comes in between. Raises DeviceError.
        """
        self._check_process()
        limit_s = time_limit_s(self.driver)
        with self._lock:
            if self._hangs:
                raise self._hanging(f"{self._hangs} never returned, earlier in this process")
            self._begin()
            answers: Answers = SimpleQueue()
            self._work.put((work, answers))
            try:
                result, error = answers.get(timeout=limit_s)
            except Empty:
                self._hangs = self._now
                raise self._hanging(f"no answer within {limit_s:g} s") from None
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def invoke(self, name: str, *arguments: object, on: str = "") -> None:
        """Call one function and check its code; only inside of `run`. Raises DeviceError."""
        function = self.function(name)
        self._now = name
        code = function(*arguments)
        if code:
            raise self.error(code & 0xFFFFFFFF, name, on)

    def function(self, name: str) -> Callable[..., int]:
        """Return the function by its symbol. Raises DRIVER_TOO_OLD if the library lacks it."""
        bound = self._bound.get(name)
        if bound is None:
            try:
                found = getattr(self._open(), name)
            except AttributeError:
                text = f"this library has no such function; {self.description.needs} has it"
                raise DeviceError(
                    Cause.DRIVER_TOO_OLD, name, driver=self.driver, text=text
                ) from None
            found.argtypes = list(self.description.functions[name])
            found.restype = ctypes.c_int
            self._bound[name] = bound = found
        return bound

    def has(self, name: str) -> bool:
        """Return whether the library has the function."""
        return hasattr(self._open(), name)

    def error(self, code: int, call: str, on: str = "") -> DeviceError:
        """Return the typed error of a return code."""
        name, text = self.description.words(self, code)
        cause = self.description.causes.get(code, Cause.UNKNOWN)
        return DeviceError(cause, call, driver=self.driver, code=code, name=name, text=text, on=on)

    def refused(self, cause: Cause, call: str, text: str, on: str = "") -> DeviceError:
        """Return the error of a call that this process refuses before it reaches the driver."""
        return DeviceError(cause, call, driver=self.driver, text=text, on=on)

    def tell(self, name: str, *arguments: object) -> None:
        """Call a function that explains codes; its own code does not matter."""
        if self.has(name):
            getattr(self._open(), name)(*arguments)

    def text(self, name: str, code: int) -> str:
        """Return the text that a function returns for a code; empty if there is none."""
        if not self.has(name):
            return ""
        function = getattr(self._open(), name)
        function.restype = ctypes.c_char_p
        return decoded(function(ctypes.c_int(code)))

    def _hanging(self, text: str) -> DeviceError:
        return DeviceError(Cause.HANGS, self._hangs, driver=self.driver, text=text)

    def _check_process(self) -> None:
        if self._process not in (0, os.getpid()):
            text = f"process {self._process} opened the driver, and this is a fork of it"
            raise self.refused(Cause.NOT_INITIALISED, "fork", text)

    def _begin(self) -> None:
        self._process = os.getpid()
        if not self._thread.is_alive():
            name = f"muster-{self.driver}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        """Do the work of all callers, one after the other, for the life of the process."""
        while True:
            work, answers = self._work.get()
            bug = AssertionError(f"{self._now}: see the trace of thread {self._thread.name}")
            answer: tuple[Any, BaseException | None] = (None, bug)
            try:
                self._start()
                answer = (work(), None)
            except DeviceError as error:
                answer = (None, error)
            finally:
                answers.put(answer)

    def _start(self) -> None:
        if not self.started:
            self.description.start(self)
            self.started = True

    def _open(self) -> ctypes.CDLL:
        if self._opened is None:
            described = self.description
            path = self._path or os.environ.get(described.variable, "") or described.soname
            self._now = f"dlopen {path}"
            try:
                self._opened = ctypes.CDLL(path)
            except OSError as error:
                text = f"{error}; {described.variable} may name another file"
                raise self.refused(Cause.NO_LIBRARY, "dlopen", text, on=path) from None
        return self._opened


def decoded(text: bytes | None) -> str:
    """Decode a driver's text."""
    return (text or b"").decode(errors="replace")


def time_limit_s(driver: str) -> float:
    """Return how long a call may take, in seconds, from MUSTER_DRIVER_CALL_S.

    Raises DeviceError INVALID_VALUE.
    """
    value = os.environ.get(CALL_VARIABLE, "")
    try:
        limit_s = float(value) if value else CALL_S
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s <= threading.TIMEOUT_MAX:
        text = f"{CALL_VARIABLE} is {value!r}; give a number of seconds above 0, for example 60"
        raise DeviceError(Cause.INVALID_VALUE, CALL_VARIABLE, driver=driver, text=text)
    return limit_s
