"""Processes as /proc shows them, and signals to them. Linux and the standard library only.

A process is known by its pid *and* its start time, because pids are reused. A list of children can
miss one while siblings exit, so a sweep repeats until nothing is left.
"""

import contextlib
import ctypes
import functools
import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
MAX_STAT_BYTES = 4096
READ_BYTES = 16 * 1024
MAX_READ_BYTES = 4 * 1024 * 1024
GONE = (FileNotFoundError, ProcessLookupError)

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """A process, from /proc/PID/stat.

    `start_ticks` counts clock ticks since boot; `terminal` is 0 without one.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    name: str
    terminal: int = 0


class Use(NamedTuple):
    """The resources that a process used; `cpu_s` includes children that it waited for."""

    pid: int
    cpu_s: float
    memory_bytes: int


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process. Raises OSError if the kernel refuses."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def rename(name: str) -> None:
    """Set the name of this process, which /proc/PID/stat and ps show."""
    _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


@functools.cache
def boot_id() -> str:
    """Return the id of this boot, read once; the zygote reads it before any fork."""
    return read("/proc/sys/kernel/random/boot_id", MAX_STAT_BYTES).decode().strip()


def process(pid: int) -> Process | None:
    """Return a process; None if there is none. A zombie has state Z."""
    try:
        raw = read(f"/proc/{pid}/stat", MAX_STAT_BYTES)
    except GONE:
        return None
    end = raw.rindex(b")")
    fields, name = raw[end + 2 :].split(), raw[raw.index(b"(") + 1 : end].decode(errors="replace")
    return Process(
        pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        name=name,
        terminal=int(fields[4]),
    )


def use(pid: int) -> Use | None:
    """Return what a process used; None if there is none."""
    try:
        raw = read(f"/proc/{pid}/stat", MAX_STAT_BYTES)
    except GONE:
        return None
    fields = raw[raw.rindex(b")") + 2 :].split()
    ticks = sum(map(int, fields[11:15]))
    return Use(pid, ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def moved_bytes(pid: int) -> int:
    """Return the bytes that a process and its waited-for children read and wrote; 0 if that is not
    readable.
    """
    try:
        lines = read(f"/proc/{pid}/io", MAX_STAT_BYTES).splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar:", b"wchar:")))


def is_living(pid: int, start_ticks: int) -> bool:
    """Return whether this very process runs or is stopped; a zombie is dead."""
    found = process(pid) if pid > 0 else None
    return found is not None and found.start_ticks == start_ticks and found.state not in "ZX"


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children(pid: int) -> list[int]:
    """Return the children of every thread of a process, zombies included."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, read(f"/proc/{pid}/task/{thread}/children", MAX_READ_BYTES).split())
    except GONE:
        return (
            found
            if os.path.exists(f"/proc/self/task/{os.getpid()}/children")
            else _children_by_scan(pid)
        )
    return found


def descendants(pid: int) -> list[int]:
    """Return all processes below one, parents before children."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop(0)
        found.append(child)
        waiting += children(child)
    return found


def environment_holds(pid: int, wanted: Iterable[bytes], proc: str = "/proc") -> bool:
    """Return whether the process was started with all of these NAME=value pairs.

    False if its environment may not be read. Waits for a process that hangs in a driver
    (`environments.py` does not).
    """
    try:
        pairs = set(read(f"{proc}/{pid}/environ", MAX_READ_BYTES).split(b"\0"))
    except OSError:
        return False
    return all(pair in pairs for pair in wanted)


def send(pids: Iterable[int], number: int) -> int:
    """Signal each process that exists and is ours; return how many were reached."""
    reached = 0
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
        reached += 1
    return reached


def kill_below(pid: int, spare: Iterable[int] = ()) -> list[int]:
    """Kill all descendants of this process except the trees below `spare`; return them.

    Process groups are killed first: the kernel does that in one step, so a group that forks cannot
    escape. No descendant shares a group with a foreign process, because each job has its own
    session.
    """
    spared = set(spare)
    found = [child for child in children(pid) if child not in spared]
    for child in list(found):
        found += descendants(child)
    mine = os.getpgid(pid)
    for group in sorted({seen.group for seen in map(process, found) if seen is not None} - {mine}):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    send(found, signal.SIGKILL)
    return found


def boot_ns_of(start_ticks: int) -> int:
    """Return a process's start on the boot clock; up to one tick late, never early."""
    return (start_ticks + 1) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def boottime_ns() -> int:
    """Return the clock of leases, which never goes back and counts suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _children_by_scan(pid: int) -> list[int]:
    """Return the children by a scan of /proc, for kernels without /proc/PID/task/TID/children."""
    found = [process(other) for other in all_pids()]
    return [other.pid for other in found if other is not None and other.parent == pid]


def read(path: str, limit: int) -> bytes:
    """Return the beginning of a small file of /proc.

    Reads are small, because a large buffer would cost every caller fresh pages.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = part = os.read(descriptor, min(limit, READ_BYTES))
        while part and len(found) < limit and len(found) >= MAX_STAT_BYTES:
            part = os.read(descriptor, READ_BYTES)
            found += part
    finally:
        os.close(descriptor)
    return found
