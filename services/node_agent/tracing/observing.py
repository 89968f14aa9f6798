"""Reads what a traced process is and uses, from /proc. Nothing here touches a GPU. All blocks.

Tests: tests/integration/test_tracing_agent.py.
"""

import contextlib
import os
from collections.abc import Collection
from itertools import islice
from typing import Final, NamedTuple

from services.node_agent.machine import processes
from services.node_agent.tracing.subscribers import libraries_of

ENVIRONMENT_BYTES: Final = 1 << 20
MAPS_BYTES: Final = 4 << 20
COMMAND_BYTES: Final = 256
# Threads of one process that count, the oldest first.
THREADS_MAX: Final = 4_096
RANK: Final = b"RANK="
# The name of the thread of Muster's library. PyTorch's has no name of its own.
TRACER: Final = b"muster-trace"
TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """The processor time of a process and of its tracing threads, at one moment."""

    at_ns: int
    process_ns: int
    tracer_ns: int


def rank_of(pid: int, member_rank: int) -> int:
    """Return the rank that the process was started with; else the rank of its member."""
    with contextlib.suppress(OSError):
        for pair in _read(f"/proc/{pid}/environ", ENVIRONMENT_BYTES).split(b"\0"):
            if pair.startswith(RANK) and pair[len(RANK) :].isdigit():
                return int(pair[len(RANK) :][:9])
    return member_rank


def command_of(pid: int) -> str:
    """Return the beginning of the process's command line."""
    with contextlib.suppress(OSError):
        line = processes.read(f"/proc/{pid}/cmdline", COMMAND_BYTES)[:COMMAND_BYTES]
        return line.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return ""


def libraries(pid: int) -> tuple[str, ...]:
    """Return the names of the libraries that the process has loaded."""
    with contextlib.suppress(OSError):
        return libraries_of(_read(f"/proc/{pid}/maps", MAPS_BYTES).decode(errors="ignore"))
    return ()


def threads(pid: int) -> set[str]:
    """Return the ids of the process's threads, at most THREADS_MAX."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as entries:
        return {entry.name for entry in islice(entries, THREADS_MAX)}
    return set()


def used(pid: int, at_ns: int, tracers: Collection[str]) -> Used:
    """Return the processor time that the process has used until now, and that of its tracers."""
    return Used(at_ns, _process_ns(pid), sum(_thread_ns(pid, thread) for thread in tracers))


def cupti_threads(pid: int) -> set[str]:
    """Return the threads of Muster's CUPTI library."""
    return {thread for thread in threads(pid) if _name_of(pid, thread) == TRACER}


def is_running(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    found = processes.process(pid)
    return found is not None and found.state not in "ZX"


def _read(path: str, limit: int) -> bytes:
    """Return a file of /proc up to `limit`; the kernel gives it in pages of whole lines."""
    with open(path, "rb", buffering=0) as file:
        found = b""
        while len(found) < limit and (part := file.read(limit - len(found))):
            found += part
    return found


def _process_ns(pid: int) -> int:
    try:
        raw = processes.read(f"/proc/{pid}/stat", processes.MAX_STAT_BYTES)
    except OSError:
        return 0
    fields = raw[raw.rindex(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * TICK_NS


def _thread_ns(pid: int, thread: str) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        path = f"/proc/{pid}/task/{thread}/schedstat"
        return int(processes.read(path, processes.MAX_STAT_BYTES).split()[0])
    return 0


def _name_of(pid: int, thread: str) -> bytes:
    with contextlib.suppress(OSError):
        return processes.read(f"/proc/{pid}/task/{thread}/comm", processes.MAX_STAT_BYTES).strip()
    return b""
