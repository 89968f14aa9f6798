"""Finds the ranks among the processes of an attempt, and reads their state in the kernel.

The ranks are found by the variables of launchers (RANK, WORLD_SIZE), which the agent sets for the
job's own process and a launcher such as torchrun changes for its children. A shell and the workers
of a data loader have the variables of their parents. If several processes have the same rank, the
oldest Python process that a launcher started counts. Tests:
tests/integration/test_diagnosis_collecting.py.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from libs.common.diagnosis.evidence import PROCESSES_MAX
from services.node_agent.diagnosis.stacks import written_bytes
from services.node_agent.machine import processes

ENVIRONMENT_BYTES: Final = 256 * 1024
SMALL_BYTES: Final = 4096
# Processes whose environments are read; a job may have any number.
LOOKED_AT_MAX: Final = 2_048
NAMES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NCCL_RAS_ADDR")
# Variables that torchrun and DeepSpeed's launcher set for the ranks only, and lack themselves.
LAUNCHED: Final = ("TORCHELASTIC_RUN_ID", "CROSS_RANK")
# System calls in which a thread waits, by number, for kernels that hide where.
CALLS: Final = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 35: "nanosleep", 45: "recvfrom", 47: "recvmsg",
               61: "wait4", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
               271: "ppoll", 281: "epoll_pwait"},
    "aarch64": {22: "epoll_pwait", 63: "read", 73: "ppoll", 98: "futex", 101: "nanosleep",
                115: "clock_nanosleep", 207: "recvfrom", 212: "recvmsg", 260: "wait4"},
}  # fmt: skip
PYTHON: Final = "python"


class RankProcess(NamedTuple):
    """A process that is a rank, with its start time and the variables of its launcher.

    `is_launched`: a launcher within the job started it. `is_python`: it runs a Python interpreter.
    """

    pid: int
    start_ticks: int
    name: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    ras: str
    is_launched: bool
    is_python: bool


class Reading(NamedTuple):
    """The state of a process in the kernel at one time; `state` is empty if it is gone."""

    state: str = ""
    cpu_ms: int = 0
    moved_bytes: int = 0
    threads: int = 0
    waits_in: str = ""


def rank_processes(pids: Sequence[int]) -> list[RankProcess]:
    """Return the processes that are ranks, by rank; at most PROCESSES_MAX."""
    found = [one for pid in pids[:LOOKED_AT_MAX] if (one := _rank_process(pid)) is not None]
    found.sort(key=lambda one: one.start_ticks)  # parents first
    # A launcher has the variables of the node, and its children those of more ranks.
    most = max((one.world for one in found), default=0)
    by_rank: dict[int, RankProcess] = {}
    for one in found:
        if one.world == most and one.rank >= 0 and _is_better(one, by_rank.get(one.rank)):
            by_rank[one.rank] = one
    return sorted(by_rank.values(), key=lambda one: one.rank)[:PROCESSES_MAX]


def reading(one: RankProcess, ids: Sequence[int] = ()) -> Reading:
    """Return the state of a process in the kernel. `ids` are those of the job's user."""
    seen = processes.process(one.pid)
    if seen is None or seen.start_ticks != one.start_ticks:
        return Reading()
    used = processes.use(one.pid)
    return Reading(
        state=seen.state,
        cpu_ms=int(1_000 * used.cpu_s) if used is not None else 0,
        moved_bytes=moved_bytes(one.pid, ids),
        threads=_threads(one.pid),
        waits_in=_waits_in(one.pid),
    )


def moved_bytes(pid: int, ids: Sequence[int] = ()) -> int:
    """Return the bytes that a process read and wrote, without those of its stacks."""
    return processes.moved_bytes(pid) - written_bytes(pid, ids)


def moved_in_all(pids: Sequence[int], ids: Sequence[int], deadline: float) -> int:
    """Return the bytes that an attempt's processes read and wrote, without those of their stacks.

    A job has any number of processes and descriptors, so processes beyond LOOKED_AT_MAX or after
    the deadline (monotonic clock) are left out.
    """
    moved = 0
    for pid in pids[:LOOKED_AT_MAX]:
        if time.monotonic() >= deadline:
            break
        moved += moved_bytes(pid, ids)
    return moved


def _is_better(one: RankProcess, before: RankProcess | None) -> bool:
    if before is None:
        return True
    return (one.is_launched, one.is_python) > (before.is_launched, before.is_python)


def _rank_process(pid: int) -> RankProcess | None:
    seen = processes.process(pid)
    values = _variables(pid)
    if seen is None or "RANK" not in values:
        return None
    return RankProcess(
        pid=pid,
        start_ticks=seen.start_ticks,
        name=seen.name,
        rank=_number(values.get("RANK")),
        world=_number(values.get("WORLD_SIZE")),
        local_rank=_number(values.get("LOCAL_RANK")),
        local_world=_number(values.get("LOCAL_WORLD_SIZE")),
        ras=values.get("NCCL_RAS_ADDR", ""),
        is_launched=any(name in values for name in LAUNCHED),
        is_python=_is_python(pid, seen.name),
    )


def _is_python(pid: int, name: str) -> bool:
    """Return whether a process runs a Python interpreter. Programs change their names, so the name
    counts only where the program's file is hidden.
    """
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(PYTHON)
    except OSError:
        return PYTHON in name


def _variables(pid: int) -> dict[str, str]:
    """Return the launcher's variables of a process; none if they may not be read."""
    try:
        pairs = processes.read(f"/proc/{pid}/environ", ENVIRONMENT_BYTES).split(b"\0")
    except OSError:
        return {}
    return dict(_named(pair.decode(errors="replace") for pair in pairs))


def _named(pairs: Iterable[str]) -> Iterable[tuple[str, str]]:
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in NAMES or name in LAUNCHED:
            yield name, value


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 8 else -1


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _waits_in(pid: int) -> str:
    """Return the kernel function, or else the system call, in which the main thread waits."""
    where = _text(f"/proc/{pid}/wchan")
    if where not in ("", "0"):
        return where
    number = _text(f"/proc/{pid}/syscall").partition(" ")[0]
    names = CALLS.get(os.uname().machine, {})
    return names.get(int(number), f"system call {number}") if number.isdecimal() else ""


def _text(path: str) -> str:
    try:
        return processes.read(path, SMALL_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
