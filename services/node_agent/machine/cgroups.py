"""The control groups in which jobs are: one for each supervisor, and so for each attempt, because a
supervisor serves one at a time.

A supervisor enters its group before it waits for an order, and all that it forks is born there:
whatever a job does with its sessions and parents, it stays in, and a start costs no more than
writing down its limits. cgroup v1, v2 and both side by side. What cannot be had here is not an
error: `Home.lost` says what and why. Standard library only. Tests:
tests/integration/test_cgroups.py.
"""

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypedDict

from services.node_agent.machine import device_filter

MOUNTS: Final = "/proc/self/mountinfo"
# v2 is one hierarchy: it is wanted for itself too, because it kills a group at once, and filters
# its devices.
UNIFIED: Final = "unified"
MEMORY, CPU, CPUS, PROCESSES, DEVICES = "memory", "cpu", "cpuset", "pids", "devices"
CONTROLLERS: Final = (MEMORY, CPU, CPUS, PROCESSES, DEVICES)
PERIOD_US: Final = 100_000
QUOTA_MIN_US: Final = 1_000
ENTER_TRIES: Final = 3
LEAVE_TRIES: Final = 50
LEAVE_AGAIN_S: Final = 0.01
READ_BYTES: Final = 1 << 16
# A group with more than this left in it (files and segments in memory, which are charged to it) is
# not given to another job.
LEFT_MAX_BYTES: Final = 64 << 20


class Limits(TypedDict, total=False):
    """Of one attempt; what is 0, empty or not there is not bound.

    `cpus` and `memory_nodes` are lists as the kernel writes them, `denied` the devices that nothing
    of it may open: [major, minor].
    """

    cpus_milli: int
    memory_bytes: int
    cpus: str
    memory_nodes: str
    denied: list[list[int]]


class Home(NamedTuple):
    """The directory for this agent's groups in each hierarchy, by controller; why a controller is
    not there.
    """

    dirs: dict[str, str]
    lost: dict[str, str]


def prepare(parent: str, name: str, mounts: str = MOUNTS) -> Home:
    """Makes PARENT/NAME in every hierarchy, and removes what is empty there: whose supervisors have
    ended.
    """
    home = Home({}, {})
    found = _hierarchies(mounts)
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
            home.dirs[UNIFIED] = _made(found[UNIFIED], f"{parent}/{name}", "")
    _remove_empty(home.dirs)
    return home


def leave(home: Mapping[str, str]) -> None:
    """Removes the groups of supervisors that are about to end; those of jobs that go on stay."""
    for _ in range(LEAVE_TRIES):
        if not _remove_empty(home):
            return
        time.sleep(LEAVE_AGAIN_S)


def _remove_empty(home: Mapping[str, str]) -> bool:
    """Whether any is left."""
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
    """Devices are a filter of v2 where the kernel takes one, and a controller of v1 where it does
    not.
    """
    if controller == DEVICES and UNIFIED in found:
        try:
            os.close(device_filter.load(()))
            return _made(found[UNIFIED], below, "")
        except OSError:
            if DEVICES not in found:
                raise
    path = _made(found[controller], below, controller)
    for name, _ in _files(controller, path, {}):
        os.stat(f"{path}/{name}")  # a kernel may have the controller and not the bound
    return path


class Group:
    """The group of this process, once it has entered.

    One of no hierarchy limits nothing. Its files stay open for the supervisor's whole life: to look
    one up costs more than what it says.
    """

    def __init__(self, dirs: Mapping[str, str]) -> None:
        self.dirs = dict(dirs)
        self._open: dict[str, int] = {}
        self._kills = 0
        self._wanted: Limits | None = None
        self._texts: list[tuple[str, str]] = []
        self._broken: OSError | None = None
        self._filtered = False

    @classmethod
    def enter(cls, home: Mapping[str, str], name: str) -> "Group":
        group = cls({controller: f"{path}/{name}" for controller, path in home.items()})
        try:
            for path in sorted(set(group.dirs.values())):
                _enter(path)
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
        """Where its processes are told, and killed: by v2 where that is."""
        return self.dirs.get(UNIFIED) or next(iter(self.dirs.values()), "")

    def limit(self, wanted: Limits) -> None:
        """Raises OSError when the kernel refuses what was asked for, or to let this process in:
        then no job may start here.
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
            if (
                self._read(file) != f"{text}\n".encode()
            ):  # which costs less than to write the same again
                self._write(file, text)
        self._deny(wanted.get("denied", []))

    def _deny(self, denied: list[list[int]]) -> None:
        """Of a group in which nothing was ever denied nothing is asked."""
        path = self.dirs.get(DEVICES, "")
        if path and (denied or self._filtered):
            self._filtered = True
            if path == self.dirs.get(UNIFIED):
                device_filter.attach(path, [(major, minor) for major, minor in denied])
                return
            _write(f"{path}/devices.allow", "a")
            for major, minor in denied:
                _write(f"{path}/devices.deny", f"c {major}:{minor} rwm")

    def new_memory_kills(self) -> int:
        """How many of its processes the kernel has ended for want of memory since this was last
        asked.
        """
        path = self.dirs.get(MEMORY, "")
        words = (
            self._read(
                f"{path}/memory.events" if _is_v2(path) else f"{path}/memory.oom_control"
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
        """Whether another attempt may be in it: no memory is that only a deletion would free.

        Of what kind it is costs the kernel more to say than how much there is.
        """
        path = self.dirs.get(MEMORY, "")
        all_of_it = (
            self._read(f"{path}/{'memory.current' if _is_v2(path) else 'memory.usage_in_bytes'}")
            if path
            else b""
        )
        return int(all_of_it or 0) <= LEFT_MAX_BYTES or self._shared_bytes(path) <= LEFT_MAX_BYTES

    def _shared_bytes(self, path: str) -> int:
        _, _, shared = self._read(f"{path}/memory.stat").partition(b"\nshmem ")
        return int(shared.split(maxsplit=1)[0] if shared else 0)

    def others(self) -> list[int]:
        """Who is in it beside its supervisor."""
        if not _is_v2(
            self.path
        ):  # v1 says again what it has said through a descriptor, for a second
            return [pid for pid in members(self.path) if pid != os.getpid()]
        told = b""
        while part := self._read(f"{self.path}/cgroup.procs", len(told)):
            told += part
        return [pid for pid in map(int, told.split()) if pid != os.getpid()]

    def _write(self, path: str, text: str) -> None:
        """Raises OSError, which names the file."""
        try:
            os.pwrite(self._file(path), text.encode(), 0)
        except OSError as error:
            raise OSError(
                error.errno, f"{os.strerror(error.errno or 0)}, of {text!r}", path
            ) from None

    def _read(self, path: str, offset: int = 0) -> bytes:
        """Nothing where there is no such file. All of it at once, but of a list of processes."""
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
    """Puts a process that is no job's into a group of its own, in every hierarchy that takes it;
    gives the group's path (`Group.path`).
    """
    group = Group({controller: f"{path}/{name}" for controller, path in home.items()})
    for path in sorted(set(group.dirs.values())):
        try:
            _enter(path, pid)
        except OSError:
            group.dirs = {
                controller: each for controller, each in group.dirs.items() if each != path
            }
    return group.path


def members(path: str) -> list[int]:
    """The processes of a group; none of one that is gone, or of none."""
    return [int(pid) for pid in _read(f"{path}/cgroup.procs").split()] if path else []


def kill(path: str) -> None:
    """Everything in a group, SIGKILL: at once where the kernel can, else each that is there now."""
    try:
        _write(f"{path}/cgroup.kill", "1")
    except OSError:
        for pid in members(path):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def remove(home: Mapping[str, str], name: str) -> None:
    """One group, in every hierarchy; one that is not empty stays, and is looked at again by
    `prepare`.
    """
    for path in set(home.values()):
        with contextlib.suppress(OSError):
            os.rmdir(f"{path}/{name}")


def name_of(pid: int, start_ticks: int) -> str:
    """Of a supervisor's group: no other process ever has it."""
    return f"{pid}.{start_ticks}"


def _hierarchies(mounts: str) -> dict[str, str]:
    """Where each controller is mounted: v1 before v2, which is what the kernel does with one that
    both know.
    """
    found: dict[str, str] = {}
    for line in _read(mounts).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        path = before.split()[4]
        if kind == "cgroup":
            found.update(dict.fromkeys(set(options.split(",")) & set(CONTROLLERS), path))
        elif kind == "cgroup2":
            found[UNIFIED] = path
    here = _read(f"{found[UNIFIED]}/cgroup.controllers").split() if UNIFIED in found else []
    return {**{name: found[UNIFIED] for name in CONTROLLERS if name in here}, **found}


def _made(path: str, below: str, controller: str) -> str:
    """The directory below a hierarchy's root.

    On the way a v2 controller is passed on, and a v1 cpuset filled in.
    """
    _pass_on(path, controller)
    for name in filter(None, below.split("/")):
        parent, path = path, f"{path}/{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        if controller == CPUS and not _is_v2(path):
            _fill_cpuset(parent, path)
        _pass_on(path, controller)
    return path


def _pass_on(path: str, controller: str) -> None:
    if (
        controller
        and _is_v2(path)
        and controller not in _read(f"{path}/cgroup.subtree_control").split()
    ):
        _write(f"{path}/cgroup.subtree_control", f"+{controller}")


def _fill_cpuset(parent: str, path: str) -> None:
    """A v1 cpuset takes nobody in before it has processors and memory."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not _read(f"{path}/{name}").strip():
            _write(f"{path}/{name}", _read(f"{parent}/{name}").strip())


def _enter(path: str, pid: int = 0) -> None:
    """This process, or another. Whoever removes what is empty may come between."""
    for tried in range(ENTER_TRIES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        try:
            if os.path.exists(f"{path}/cpuset.mems") and not _is_v2(path):
                _fill_cpuset(os.path.dirname(path), path)
            _write(f"{path}/cgroup.procs", str(pid))
            return
        except FileNotFoundError:
            if tried == ENTER_TRIES - 1:
                raise


def _files(controller: str, path: str, wanted: Limits) -> Iterator[tuple[str, str]]:
    """What is written where."""
    v2, memory, cpus_milli = (
        _is_v2(path),
        wanted.get("memory_bytes", 0),
        wanted.get("cpus_milli", 0),
    )
    none = "max" if v2 else "-1"
    if controller == MEMORY:
        yield "memory.max" if v2 else "memory.limit_in_bytes", str(memory) if memory else none
        if _exists(f"{path}/memory.swap.max"):
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
                text or _constant(f"{os.path.dirname(path)}/{name}{'.effective' if v2 else ''}"),
            )
    elif controller == PROCESSES:
        yield "pids.max", str(processes_max())


@functools.cache
def processes_max() -> int:
    """Half of what the machine can hold: whatever a job forks, others can too."""
    return (
        min(
            int(_constant(f"/proc/sys/kernel/{name}") or 1 << 15)
            for name in ("pid_max", "threads-max")
        )
        // 2
    )


@functools.cache
def _constant(path: str) -> str:
    """Read once in the life of a supervisor, before its first order."""
    return _read(path).strip()


def _is_v2(path: str) -> bool:
    return _exists(f"{path}/cgroup.controllers")


@functools.cache
def _exists(path: str) -> bool:
    """Which files a group has does not change."""
    return os.path.exists(path)


def _read(path: str) -> str:
    """Nothing where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(descriptor, READ_BYTES):
            parts.append(part)
        return b"".join(parts).decode()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    """Raises OSError, which names the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}, of {text!r}", path) from None
    finally:
        os.close(descriptor)
