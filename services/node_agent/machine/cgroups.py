"""The control groups of jobs: one per supervisor, and so one per attempt, because a supervisor
serves one attempt at a time.

A supervisor enters its group before it waits for an order, so every process of a job is born there
and stays there, whatever sessions and parents it makes. A start only writes the limits. cgroup v1,
v2 and both side by side work. A controller that is missing is not an error: `Home.lost` says which
and why. Standard library only. Tests: tests/integration/test_cgroups.py.
"""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypedDict

from services.node_agent.machine import device_filter
from services.node_agent.machine.cgroup_files import (
    CONTROLLERS,
    CPU,
    CPUS,
    DEVICES,
    MEMORY,
    MOUNTS,
    PROCESSES,
    READ_BYTES,
    UNIFIED,
    constant,
    enter,
    exists,
    hierarchies,
    is_v2,
    made,
    read,
    write,
)

PERIOD_US: Final = 100_000
QUOTA_MIN_US: Final = 1_000
LEAVE_TRIES: Final = 50
LEAVE_AGAIN_S: Final = 0.01
# A group that still holds more than this (files in memory, shared segments) is not reused.
LEFT_MAX_BYTES: Final = 64 << 20


class Limits(TypedDict, total=False):
    """The limits of one attempt; 0, empty or missing means no limit.

    `cpus` and `memory_nodes` are lists as the kernel writes them. `denied` are the devices that no
    process of the attempt may open: [major, minor].
    """

    cpus_milli: int
    memory_bytes: int
    cpus: str
    memory_nodes: str
    denied: list[list[int]]


class Home(NamedTuple):
    """The directories of this agent's groups by controller, and why other controllers
    are missing.
    """

    dirs: dict[str, str]
    lost: dict[str, str]


def prepare(parent: str, name: str, mounts: str = MOUNTS) -> Home:
    """Make PARENT/NAME in every hierarchy, and remove empty groups of supervisors that
    have ended.
    """
    home = Home({}, {})
    found = hierarchies(mounts)
    for controller in CONTROLLERS:
        try:
            if not parent or not {
                controller,
                UNIFIED if controller == DEVICES else controller,
            } & set(found):
                raise OSError(
                    0,
                    "no control group of this kind is mounted"
                    if parent
                    else "MUSTER_CGROUP is empty",
                    controller,
                )
            home.dirs[controller] = _home_of(controller, found, f"{parent}/{name}")
        except OSError as error:
            home.lost[controller] = f"{error.filename}: {error.strerror}"
    if parent and UNIFIED in found:
        with contextlib.suppress(OSError):
            home.dirs[UNIFIED] = made(found[UNIFIED], f"{parent}/{name}", "")
    _remove_empty(home.dirs)
    return home


def leave(home: Mapping[str, str]) -> None:
    """Remove the groups of supervisors that are about to end; those of jobs that go on stay."""
    for _ in range(LEAVE_TRIES):
        if not _remove_empty(home):
            return
        time.sleep(LEAVE_AGAIN_S)


def _remove_empty(home: Mapping[str, str]) -> bool:
    """Remove empty groups; return whether any is left."""
    groups = [
        (path, entry.name)
        for path in set(home.values())
        for entry in os.scandir(path)
        if entry.is_dir()
    ]
    for path, name in groups:
        remove({"": path}, name)
    return any(os.path.exists(f"{path}/{name}") for path, name in groups)


def _home_of(controller: str, found: Mapping[str, str], below: str) -> str:
    """Return the directory for a controller.

    Devices are a filter of v2 if the kernel accepts one, else a controller of v1.
    """
    if controller == DEVICES and UNIFIED in found:
        try:
            os.close(device_filter.load(()))
            return made(found[UNIFIED], below, "")
        except OSError:
            if DEVICES not in found:
                raise
    path = made(found[controller], below, controller)
    for name, _ in _files(controller, path, {}):
        os.stat(f"{path}/{name}")  # a kernel may have the controller and not the bound
    return path


class Group:
    """The group of this process, once it has entered.

    Without a hierarchy it limits nothing. Its files stay open for the supervisor's whole life,
    because opening costs more than reading.
    """

    def __init__(self, dirs: Mapping[str, str]) -> None:
        self.dirs = dict(dirs)
        self._open: dict[str, int] = {}
        self._kills = 0
        self._wanted: Limits | None = None
        self._texts: list[tuple[str, str]] = []
        self._broken: OSError | None = None
        self._denied: set[tuple[int, int]] = set()

    @classmethod
    def enter(cls, home: Mapping[str, str], name: str) -> "Group":
        group = cls({controller: f"{path}/{name}" for controller, path in home.items()})
        try:
            for path in sorted(set(group.dirs.values())):
                enter(path)
            group.limit({})
            # these open what is read later, before the supervisor counts its descriptors
            group.new_memory_kills()
            group.others()
            group.is_fresh()
            group._shared_bytes(group.dirs.get(MEMORY, ""))
        except OSError as error:
            group._broken = error
        return group

    @property
    def path(self) -> str:
        """The directory that lists and kills the processes; in v2 if there is one."""
        return self.dirs.get(UNIFIED) or next(iter(self.dirs.values()), "")

    def limit(self, wanted: Limits) -> None:
        """Set the limits of the next attempt.

        Raises OSError if the kernel refuses a limit, or refused to let this process in; then no job
        may start here.
        """
        if self._broken is not None:
            raise self._broken
        if wanted != self._wanted:
            self._wanted = wanted
            self._texts = [
                (f"{path}/{name}", text)
                for each, path in self.dirs.items()
                for name, text in _files(each, path, wanted)
            ]
        for file, text in self._texts:
            if self._read(file) != f"{text}\n".encode():  # a read costs less than a write
                self._write(file, text)
        self.deny(wanted.get("denied", []))

    def deny(self, denied: list[list[int]]) -> None:
        """Deny these devices and allow all others, also to processes that run.

        A device that stays denied can never be opened in between. A group that never denied any is
        left alone. Raises OSError.
        """
        path, wanted = self.dirs.get(DEVICES, ""), {(major, minor) for major, minor in denied}
        if not path or not (wanted or self._denied):
            return
        before, self._denied = self._denied, self._denied | wanted
        if path == self.dirs.get(UNIFIED):
            device_filter.attach(path, sorted(wanted))
        else:
            for major, minor in sorted(wanted):
                write(f"{path}/devices.deny", f"c {major}:{minor} rwm")
            for major, minor in sorted(before - wanted):
                write(f"{path}/devices.allow", f"c {major}:{minor} rwm")
        self._denied = wanted

    def new_memory_kills(self) -> int:
        """Return how many processes the kernel killed for lack of memory since the last call."""
        path = self.dirs.get(MEMORY, "")
        words = (
            self._read(
                f"{path}/memory.events" if is_v2(path) else f"{path}/memory.oom_control"
            ).split()
            if path
            else []
        )
        before, self._kills = (
            self._kills,
            int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0,
        )
        return self._kills - before

    def is_fresh(self) -> bool:
        """Return whether another attempt may use the group: no memory is left that only a deletion
        would free.

        The total is read first, because the kernel needs longer for the kinds.
        """
        path = self.dirs.get(MEMORY, "")
        total = (
            self._read(f"{path}/{'memory.current' if is_v2(path) else 'memory.usage_in_bytes'}")
            if path
            else b""
        )
        return int(total or 0) <= LEFT_MAX_BYTES or self._shared_bytes(path) <= LEFT_MAX_BYTES

    def _shared_bytes(self, path: str) -> int:
        _, _, shared = self._read(f"{path}/memory.stat").partition(b"\nshmem ")
        return int(shared.split(maxsplit=1)[0] if shared else 0)

    def others(self) -> list[int]:
        """Return the processes of the group, except its supervisor."""
        if not is_v2(self.path):  # v1 repeats old content through an open descriptor for a second
            return [pid for pid in members(self.path) if pid != os.getpid()]
        content = b""
        while part := self._read(f"{self.path}/cgroup.procs", len(content)):
            content += part
        return [pid for pid in map(int, content.split()) if pid != os.getpid()]

    def _write(self, path: str, text: str) -> None:
        """Write a file of the group. Raises OSError, which names the file."""
        try:
            os.pwrite(self._file(path), text.encode(), 0)
        except OSError as error:
            raise OSError(
                error.errno, f"{os.strerror(error.errno or 0)}, of {text!r}", path
            ) from None

    def _read(self, path: str, offset: int = 0) -> bytes:
        """Return a file's content; empty if there is none. Lists of processes come in parts."""
        try:
            return os.pread(self._file(path), READ_BYTES, offset)
        except OSError:
            return b""

    def _file(self, path: str) -> int:
        if path not in self._open:
            writable = os.stat(path).st_mode & 0o200
            self._open[path] = os.open(
                path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
            )
        return self._open[path]


def take_in(home: Mapping[str, str], name: str, pid: int) -> str:
    """Move a process that belongs to no job into a group of its own; return the group's path."""
    group = Group({controller: f"{path}/{name}" for controller, path in home.items()})
    for path in sorted(set(group.dirs.values())):
        try:
            enter(path, pid)
        except OSError:
            group.dirs = {
                controller: each for controller, each in group.dirs.items() if each != path
            }
    return group.path


def members(path: str) -> list[int]:
    """Return the processes of a group; none if the group is gone."""
    return [int(pid) for pid in read(f"{path}/cgroup.procs").split()] if path else []


def kill(path: str) -> None:
    """Kill all processes of a group: at once if the kernel can, else each one."""
    try:
        write(f"{path}/cgroup.kill", "1")
    except OSError:
        for pid in members(path):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def remove(home: Mapping[str, str], name: str) -> None:
    """Remove a group from every hierarchy. A group that is not empty stays until `prepare` finds it
    again.
    """
    for path in set(home.values()):
        with contextlib.suppress(OSError):
            os.rmdir(f"{path}/{name}")


def name_of(pid: int, start_ticks: int) -> str:
    """Return the name of a supervisor's group; no other process ever has it."""
    return f"{pid}.{start_ticks}"


def _files(controller: str, path: str, wanted: Limits) -> Iterator[tuple[str, str]]:
    """Yield the files of one controller's group and the value to write into each."""
    v2, memory, cpus_milli = (
        is_v2(path),
        wanted.get("memory_bytes", 0),
        wanted.get("cpus_milli", 0),
    )
    none = "max" if v2 else "-1"
    if controller == MEMORY:
        yield "memory.max" if v2 else "memory.limit_in_bytes", str(memory) if memory else none
        if exists(f"{path}/memory.swap.max"):
            yield "memory.swap.max", "0" if memory else none
    elif controller == CPU:
        quota = str(max(QUOTA_MIN_US, cpus_milli * PERIOD_US // 1_000)) if cpus_milli else none
        yield ("cpu.max", f"{quota} {PERIOD_US}") if v2 else ("cpu.cfs_quota_us", quota)
    elif controller == CPUS:
        for name, text in (
            ("cpuset.cpus", wanted.get("cpus", "")),
            ("cpuset.mems", wanted.get("memory_nodes", "")),
        ):
            yield (
                name,
                text or constant(f"{os.path.dirname(path)}/{name}{'.effective' if v2 else ''}"),
            )
    elif controller == PROCESSES:
        yield "pids.max", str(processes_max())


@functools.cache
def processes_max() -> int:
    """Return half of the processes that the machine can hold: a job's forks leave room
    for others.
    """
    return (
        min(
            int(constant(f"/proc/sys/kernel/{name}") or 1 << 15)
            for name in ("pid_max", "threads-max")
        )
        // 2
    )
