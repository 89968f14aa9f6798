"""The Python stacks of a job's processes, without a debugger and without their help.

py-spy reads the memory of a process, where it is installed and permitted. Else a process that the
agent started has registered faulthandler (`libs/job/stacks`): a signal makes it write its stacks to
a memory file. The signal goes only to a process that has this file open and catches the signal, so
it ends no program. Tests: tests/integration/test_diagnosis_stacks.py.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final, TypedDict

from libs.common.diagnosis.evidence import FRAMES_MAX, TEXT_MAX, Frame
from libs.job.stacks import MEMORY_FILE, SIGNAL
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


PY_SPY: Final = "py-spy"
FAULTHANDLER: Final = "faulthandler"
MAIN_THREAD: Final = "MainThread"
# One call of py-spy, and all looks at the stacks of one node.
PY_SPY_S: Final = 2.0
WRITTEN_S: Final = 0.5
WRITTEN_LOOK_S: Final = 0.005
DUMP_BYTES: Final = 256 * 1024
DESCRIPTORS_MAX: Final = 4_096
# Flags of fallocate(2), from <linux/falloc.h>.
KEEP_SIZE: Final = 1
PUNCH_HOLE: Final = 2
LINE: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
THREAD: Final = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")


def py_spy_path() -> str:
    """Return the path of py-spy: beside this interpreter, or on PATH; empty without one."""
    beside = os.path.join(os.path.dirname(sys.executable), PY_SPY)
    return beside if os.access(beside, os.X_OK) else shutil.which(PY_SPY) or ""


def by_py_spy(path: str, pid: int) -> Stack:
    """Return the stack of a process's main thread; empty if py-spy cannot read it.

    `--nonblocking` does not stop the process. py-spy runs as the user of the process, so it can
    read nothing else.
    """
    command = [path, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        owner = os.stat(f"/proc/{pid}")
        is_other = owner.st_uid != os.geteuid()
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=PY_SPY_S,
            check=True,
            user=owner.st_uid if is_other else None,
            group=owner.st_gid if is_other else None,
        )
        return _of_threads(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def _of_threads(threads: list[PySpyThread]) -> Stack:
    """Return the frames of the main thread in py-spy's answer. Raises ValueError."""
    try:
        main = next((one for one in threads if one["thread_name"] == MAIN_THREAD), threads[-1])
        return tuple(map(_frame, main["frames"][:FRAMES_MAX]))
    except (LookupError, TypeError) as error:
        raise ValueError(f"py-spy's answer has another form: {error!r}") from error


def _frame(frame: PySpyFrame) -> Frame:
    return Frame(frame["name"][:TEXT_MAX], frame["filename"][-TEXT_MAX:], int(frame["line"]))


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


def open_dump(pid: int) -> Dump | None:
    """Return the memory file of a process; None if it did not register faulthandler."""
    try:
        if not _catches_signal(pid):
            return None
        for name in os.listdir(f"/proc/{pid}/fd")[:DESCRIPTORS_MAX]:
            path = f"/proc/{pid}/fd/{name}"
            if os.readlink(path).startswith(f"/memfd:{MEMORY_FILE} "):
                return _opened(path)
    except OSError:
        return None
    return None


def written_bytes(pid: int) -> int:
    """Return how many bytes of stacks a process ever wrote: they are no sign of its progress."""
    dump = open_dump(pid)
    if dump is None:
        return 0
    dump.close()
    return dump.size


def _opened(path: str) -> Dump | None:
    """Open a memory file. The process may have put another file in its place meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{MEMORY_FILE} "):
        return Dump(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    return None


def by_faulthandler(pids: Sequence[int]) -> dict[int, Stack]:
    """Return the stacks of the main threads of the processes that registered faulthandler.

    All are signalled first, so that their stacks are of about the same moment.
    """
    dumps: dict[int, Dump] = {}
    try:
        for pid in pids:
            if (dump := open_dump(pid)) is not None:
                dumps[pid] = dump
                if not processes.send([pid], SIGNAL):
                    dumps.pop(pid).close()
        return _written(dumps)
    finally:
        for dump in dumps.values():
            dump.close()


def _written(dumps: dict[int, Dump]) -> dict[int, Stack]:
    """Wait for the stacks, for at most WRITTEN_S in all."""
    found: dict[int, Stack] = {}
    deadline = time.monotonic() + WRITTEN_S
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
