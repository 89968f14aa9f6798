"""The files of control groups, in v1 and v2: where they are mounted, and how to read and write
them.

Standard library only, for the supervisors.
"""

import contextlib
import functools
import os
from typing import Final

MOUNTS: Final = "/proc/self/mountinfo"
# v2 is one hierarchy. It is also used without controllers: it kills a whole group at once, and it
# filters devices.
UNIFIED: Final = "unified"
MEMORY: Final = "memory"
CPU: Final = "cpu"
CPUS: Final = "cpuset"
PROCESSES: Final = "pids"
DEVICES: Final = "devices"
CONTROLLERS: Final = (MEMORY, CPU, CPUS, PROCESSES, DEVICES)
ENTER_TRIES: Final = 3
READ_BYTES: Final = 1 << 16


def hierarchies(mounts: str) -> dict[str, str]:
    """Return where each controller is mounted; v1 before v2, as the kernel does if both know it."""
    found: dict[str, str] = {}
    for line in read(mounts).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        path = before.split()[4]
        if kind == "cgroup":
            found.update(dict.fromkeys(set(options.split(",")) & set(CONTROLLERS), path))
        elif kind == "cgroup2":
            found[UNIFIED] = path
    here = read(f"{found[UNIFIED]}/cgroup.controllers").split() if UNIFIED in found else []
    return {**{name: found[UNIFIED] for name in CONTROLLERS if name in here}, **found}


def made(path: str, below: str, controller: str) -> str:
    """Make a directory below a hierarchy's root and return it.

    A v2 controller is enabled on the way, and a v1 cpuset filled in.
    """
    pass_on(path, controller)
    for name in filter(None, below.split("/")):
        parent, path = path, f"{path}/{name}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        if controller == CPUS and not is_v2(path):
            fill_cpuset(parent, path)
        pass_on(path, controller)
    return path


def pass_on(path: str, controller: str) -> None:
    if (
        controller
        and is_v2(path)
        and controller not in read(f"{path}/cgroup.subtree_control").split()
    ):
        write(f"{path}/cgroup.subtree_control", f"+{controller}")


def fill_cpuset(parent: str, path: str) -> None:
    """Give a v1 cpuset processors and memory: it takes no process before."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not read(f"{path}/{name}").strip():
            write(f"{path}/{name}", read(f"{parent}/{name}").strip())


def enter(path: str, pid: int = 0) -> None:
    """Move a process (0: this one) into a group; retry if the empty group was removed
    in between.
    """
    for tried in range(ENTER_TRIES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        try:
            if os.path.exists(f"{path}/cpuset.mems") and not is_v2(path):
                fill_cpuset(os.path.dirname(path), path)
            write(f"{path}/cgroup.procs", str(pid))
            return
        except FileNotFoundError:
            if tried == ENTER_TRIES - 1:
                raise


@functools.cache
def constant(path: str) -> str:
    """Return a file's content, read once per supervisor, before its first order."""
    return read(path).strip()


def is_v2(path: str) -> bool:
    return exists(f"{path}/cgroup.controllers")


@functools.cache
def exists(path: str) -> bool:
    """Return whether a file exists. The files of a group do not change."""
    return os.path.exists(path)


def read(path: str) -> str:
    """Return a file's content; empty if there is no such file."""
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


def write(path: str, text: str) -> None:
    """Write a file. Raises OSError, which names the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}, of {text!r}", path) from None
    finally:
        os.close(descriptor)
