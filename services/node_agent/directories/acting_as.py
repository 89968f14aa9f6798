"""Lets one thread of the agent act as a job's user for a while.

The kernel then refuses to the agent whatever it would refuse to the job. In Linux each thread has
its own user, but libc's functions change all threads, so this file calls the kernel directly. It
changes the effective user only. Meanwhile the thread has no capabilities, the job's user can
neither trace nor signal it, and it can change back. Test: tests/integration/test_job_users.py.
"""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

KEEP: Final = -1


class Calls(NamedTuple):
    """System call numbers of one architecture, from <asm/unistd.h>."""

    setgroups: int
    setresuid: int
    setresgid: int


CALLS: Final = {
    "x86_64": Calls(116, 117, 119),
    "aarch64": Calls(159, 147, 149),
    "riscv64": Calls(159, 147, 149),
    "ppc64le": Calls(81, 164, 169),
}

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def acting_as(ids: Sequence[int]) -> Iterator[None]:
    """Run the body as another user.

    `ids` are a user, its group and further groups; empty: the agent's own. The body must neither
    wait for another thread nor yield to an event loop. Raises OSError if the thread cannot become
    that user; then the body does not run.
    """
    if not ids:
        yield
        return
    calls = CALLS.get(platform.machine())
    if calls is None:
        raise OSError(
            0, f"the system calls to change a thread's user are not known for {platform.machine()}"
        )
    before = os.geteuid(), os.getegid(), *os.getgroups()
    try:
        _become(calls, ids)
        yield
    finally:
        _return(calls, before)


def _become(calls: Calls, ids: Sequence[int]) -> None:
    """Change the groups, then the user, after which the thread may change nothing more."""
    uid, gid, *groups = ids
    _set_groups(calls, groups)
    _ask(calls.setresgid, KEEP, gid, KEEP)
    _ask(calls.setresuid, KEEP, uid, KEEP)


def _return(calls: Calls, before: Sequence[int]) -> None:
    uid, gid, *groups = before
    _ask(calls.setresuid, KEEP, uid, KEEP)
    _ask(calls.setresgid, KEEP, gid, KEEP)
    if os.getgroups() != groups:
        _set_groups(calls, groups)


def _set_groups(calls: Calls, groups: Sequence[int]) -> None:
    given = (ctypes.c_uint32 * len(groups))(*groups)
    _ask(calls.setgroups, len(groups), ctypes.addressof(given) if groups else 0)


def _ask(number: int, *arguments: int) -> None:
    if _libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
