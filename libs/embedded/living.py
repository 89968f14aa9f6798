"""Identity of Linux processes: a pid together with the process's start time and the boot id."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

PR_SET_PDEATHSIG: Final = 1
POLL_S: Final = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


class Ticket(msgspec.Struct, frozen=True):
    """The identity of one process. A later process with the same pid has another ticket."""

    pid: int
    start_ticks: int
    boot_id: str


def ticket(pid: int) -> Ticket | None:
    """Return the ticket of a living process; None if there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in b"ZX" else Ticket(pid, int(fields[19]), _boot_id())


def process_id(known: Ticket | None) -> str:
    """Return a name that no other process has; empty for none."""
    return "" if known is None else f"{known.boot_id}.{known.start_ticks}.{known.pid}"


def is_living(known: Ticket) -> bool:
    return ticket(known.pid) == known


def end(known: Sequence[Ticket], grace_s: float) -> None:
    """Send SIGTERM, after `grace_s` SIGKILL, and return when none of the processes lives."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for each in known:
            if is_living(each):
                os.kill(each.pid, number)
        if wait_gone(known, grace_s):
            return


def wait_gone(known: Sequence[Ticket], within_s: float) -> bool:
    """Wait until none of the processes lives. Return False if one does after `within_s`."""
    deadline = time.monotonic() + within_s
    while any(is_living(each) for each in known):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def die_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn`: the kernel kills the child when this process ends in any way."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
