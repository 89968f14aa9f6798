"""One thread of the agent acts as a job's user for a while: what the kernel would refuse to the job
it refuses to the agent too.

Users belong to threads in Linux, and only libc's functions change those of all: so the kernel is
asked itself. Only the effective user is changed. The thread has no capability meanwhile, the job's
user may neither trace nor signal it, and it can come back. Test:
tests/integration/test_job_users.py.
"""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

KEEP: Final = -1


class Calls(NamedTuple):
    """Numbers of <asm/unistd.h>."""

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
    """`ids`: a user, its group and further groups; empty: the agent's own.

    Nothing within may wait for another thread, nor yield to an event loop. Raises OSError when the
    thread cannot become that user, and then nothing within is run.
    """
    if not ids:
        yield
        return
    calls = CALLS.get(platform.machine())
    if calls is None:
        raise OSError(0, f"how a thread becomes another user is not known for {platform.machine()}")
    before = os.geteuid(), os.getegid(), *os.getgroups()
    try:
        _become(calls, ids)
        yield
    finally:
        _return(calls, before)


def _become(calls: Calls, ids: Sequence[int]) -> None:
    """The user last: after it nothing more is allowed."""
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
