"""The Python stacks of a job's processes, without a debugger and without their help.

py-spy reads the memory of a process, where it is installed and permitted. Else a process that the
agent started has registered faulthandler (`libs/job/stacks`): a signal makes it write its stacks to
a memory file. The signal goes only to a process that has this file open and catches the signal, so
it ends no program.

A job chooses the names of its files and the contents of its memory. The agent therefore reads both
as the job's user (`ids`, see `acting_as`), and opens memory files only. Tests:
tests/integration/test_diagnosis_stacks.py.
"""

import ctypes
import math
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Final, TypedDict

import msgspec

from libs.common.diagnosis.evidence import FRAMES_MAX, TEXT_MAX, Frame
from libs.common.facts import UNDECODABLE
from libs.job.stacks import MEMORY_FILE, SIGNAL
from services.node_agent.diagnosis.bounded_output import output_of
from services.node_agent.directories.acting_as import acting_as
from services.node_agent.machine import processes

Stack = tuple[Frame, ...]

_libc = ctypes.CDLL(None, use_errno=True)


class PySpyFrame(TypedDict):
    """A frame in py-spy's JSON."""

    name: str
    filename: str
    line: int


class PySpyThread(TypedDict):
    """A thread in py-spy's JSON; the innermost frame is the first."""

    thread_name: str | None
    frames: list[PySpyFrame]


_threads = msgspec.json.Decoder(list[PySpyThread])

PY_SPY: Final = "py-spy"
FAULTHANDLER: Final = "faulthandler"
MAIN_THREAD: Final = "MainThread"
# One call of py-spy, and all looks at the stacks of one node.
PY_SPY_S: Final = 2.0
WRITTEN_S: Final = 0.5
WRITTEN_LOOK_S: Final = 0.005
DUMP_BYTES: Final = 256 * 1024
DESCRIPTORS_MAX: Final = 4_096
# The answer of one call of py-spy; a thread of a deep program has some 100 KiB.
PY_SPY_BYTES: Final = 4 << 20
LINE_MAX: Final = 999_999_999
LINK: Final = f"/memfd:{MEMORY_FILE} "
# Flags of fallocate(2), from <linux/falloc.h>.
KEEP_SIZE: Final = 1
PUNCH_HOLE: Final = 2
LINE: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>[0-9]{1,9}) in (?P<function>.*)')
THREAD: Final = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")


def py_spy_path() -> str:
    """Return the path of py-spy: beside this interpreter, or on PATH; empty without one."""
    beside = os.path.join(os.path.dirname(sys.executable), PY_SPY)
    return beside if os.access(beside, os.X_OK) else shutil.which(PY_SPY) or ""


def by_py_spy(path: str, pid: int, ids: Sequence[int] = (), limit_s: float = PY_SPY_S) -> Stack:
    """Return the stack of a process's main thread; empty if py-spy cannot read it in time.

    `--nonblocking` does not stop the process. py-spy runs as the job's user, so it can read nothing
    else, and without the agent's environment, which that user could read. Without `ids` the job
    runs as the agent's user; processes of other users are left out.
    """
    if not ids and not _is_own(pid):
        return ()
    command = [path, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        found = output_of(command, limit_s, PY_SPY_BYTES, ids=ids, env={})
        return _of_threads(_threads.decode(found.data)) if not found.fault else ()
    except (OSError, ValueError, *UNDECODABLE):
        return ()


def _is_own(pid: int) -> bool:
    """Return whether all user ids of a process are the agent's."""
    try:
        text = processes.read(f"/proc/{pid}/status", processes.MAX_STAT_BYTES)
    except OSError:
        return False
    found = next((line.split()[1:] for line in text.splitlines() if line.startswith(b"Uid:")), [])
    return set(map(int, found)) == {os.geteuid()}


def _of_threads(threads: Sequence[PySpyThread]) -> Stack:
    """Return the frames of the main thread in py-spy's answer. Raises ValueError."""
    if not threads:
        raise ValueError("py-spy's answer has no thread")
    main = next((one for one in threads if one["thread_name"] == MAIN_THREAD), threads[-1])
    return tuple(map(_frame, main["frames"][:FRAMES_MAX]))


def _frame(frame: PySpyFrame) -> Frame:
    line = min(max(frame["line"], 0), LINE_MAX)
    return Frame(frame["name"][:TEXT_MAX], frame["filename"][-TEXT_MAX:], line)


class Dump:
    """The memory file of one process, opened by the agent to read what faulthandler writes."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.size = descriptor, size

    def free(self, size: int) -> None:
        """Free the memory of what was read; the size of the file stays. Kernels may refuse."""
        _libc.fallocate(
            self.descriptor, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)
        )

    def close(self) -> None:
        os.close(self.descriptor)


def open_dump(pid: int, ids: Sequence[int] = ()) -> Dump | None:
    """Return the memory file of a process; None if it did not register faulthandler."""
    try:
        with acting_as(ids):
            return _dump_of(pid)
    except OSError:
        return None


def written_bytes(pid: int, ids: Sequence[int] = ()) -> int:
    """Return how many bytes of stacks a process ever wrote: they are no sign of its progress."""
    dump = open_dump(pid, ids)
    if dump is None:
        return 0
    dump.close()
    return dump.size


def _dump_of(pid: int) -> Dump | None:
    if not _catches_signal(pid):
        return None
    for name in os.listdir(f"/proc/{pid}/fd")[:DESCRIPTORS_MAX]:
        path = f"/proc/{pid}/fd/{name}"
        if os.readlink(path).startswith(LINK) and (dump := _opened(path)) is not None:
            return dump
    return None


def _opened(path: str) -> Dump | None:
    """Open a memory file.

    A file that the job mounted can have the same link, so its name proves nothing. The file is held
    by its path before it is opened: the job could put a device in its place, and opening a device
    can act on it.
    """
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        seen = os.fstat(held)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink or seen.st_dev != _memory_device():
            return None
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        return Dump(os.open(f"/proc/self/fd/{held}", flags), seen.st_size)
    finally:
        os.close(held)


@cache
def _memory_device() -> int:
    """Return the device number of memory files. Only the kernel puts files there."""
    descriptor = os.memfd_create(MEMORY_FILE)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def by_faulthandler(
    pids: Sequence[int], ids: Sequence[int] = (), deadline: float = math.inf
) -> dict[int, Stack]:
    """Return the stacks of the main threads of the processes that registered faulthandler.

    All are signalled first, so that their stacks are of about the same moment. What is written
    after the deadline (monotonic clock) is left out.
    """
    dumps: dict[int, Dump] = {}
    try:
        for pid in pids:
            if time.monotonic() >= deadline:
                break
            if (dump := open_dump(pid, ids)) is not None:
                dumps[pid] = dump
                if not _is_signalled(pid, ids):
                    dumps.pop(pid).close()
        return _written(dumps, min(deadline, time.monotonic() + WRITTEN_S))
    finally:
        for dump in dumps.values():
            dump.close()


def _is_signalled(pid: int, ids: Sequence[int]) -> bool:
    try:
        with acting_as(ids):
            return processes.send([pid], SIGNAL) > 0
    except OSError:
        return False


def _written(dumps: dict[int, Dump], deadline: float) -> dict[int, Stack]:
    """Wait for the stacks until the deadline."""
    found: dict[int, Stack] = {}
    sizes = {pid: dump.size for pid, dump in dumps.items()}
    while len(found) < len(dumps) and time.monotonic() < deadline:
        time.sleep(WRITTEN_LOOK_S)
        for pid, dump in dumps.items():
            size = os.fstat(dump.descriptor).st_size
            if pid not in found and size > dump.size and size == sizes[pid]:
                found[pid] = _parsed(_read(dump, size))
                dump.free(size)
            sizes[pid] = size
    return found


def _read(dump: Dump, size: int) -> str:
    """Return the end of what was written since the file was opened: its last thread is the main
    thread.
    """
    first = max(dump.size, size - DUMP_BYTES)
    return os.pread(dump.descriptor, DUMP_BYTES, first).decode(errors="replace")


def _parsed(text: str) -> Stack:
    """Return the frames of the last thread in faulthandler's text, which is the main thread."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if THREAD.match(line):
            frames = []
        elif (match := LINE.fullmatch(line)) is not None and len(frames) < FRAMES_MAX:
            frames.append(
                Frame(match["function"][:TEXT_MAX], match["file"][-TEXT_MAX:], int(match["line"]))
            )
    return tuple(frames)


def _catches_signal(pid: int) -> bool:
    """Return whether a process has a handler for the signal; without one it would end."""
    for line in processes.read(f"/proc/{pid}/status", processes.MAX_STAT_BYTES).splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
