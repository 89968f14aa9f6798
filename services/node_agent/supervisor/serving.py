"""The life of a supervisor process: wait for an order, supervise that attempt, and wait again.

It serves one attempt at a time, so at most one job dies with it. It serves again only if the last
attempt is proved gone, its end was recorded and reported, its control group is as good as new, and
the job did not change its parent (limits, niceness, processors, cgroup, descriptors). In doubt it
exits; it also exits with the zygote. Tests: tests/integration/test_supervision_reuse.py.
"""

import contextlib
import gc
import json
import os
from typing import NoReturn

from services.node_agent.machine import cgroups, processes
from services.node_agent.supervisor import records, supervisor
from services.node_agent.supervisor.order import FRAME_PREFIX_BYTES

# A supervisor exits after so many attempts, which bounds what it may accumulate.
ATTEMPTS_MAX = 500
READ_BYTES = 64 * 1024
CRASHED = 70
IDLE_DIRECTORY = "/"
WAITING = b"\n"
STATE_BYTES = 4096
# Files of the kernel that show what other processes may have changed in this one.
STATE_FILES = ("limits", "cgroup", "oom_score_adj")


def serve(orders: int, home: dict[str, str]) -> NoReturn:
    """Run the whole life of the forked process.

    `orders` is the socket to the zygote, `home` the place of its control group. A bug is logged and
    ends the job too.
    """
    status = CRASHED
    try:
        _serve(orders, home)
        status = 0
    except BaseException:
        import traceback  # imported here, because every fork pays for what the zygote imports

        traceback.print_exc()
        if os.getcwd() != IDLE_DIRECTORY:
            with contextlib.suppress(OSError), open(records.CRASH, "a") as file:
                traceback.print_exc(file=file)
    finally:
        if status:
            processes.kill_below(os.getpid())
        os._exit(status)


def _serve(orders: int, home: dict[str, str]) -> None:
    supervisor.enter()
    me = processes.process(os.getpid())
    assert me is not None
    group = cgroups.Group.enter(home, cgroups.name_of(me.pid, me.start_ticks))
    before = _state()
    for served in range(ATTEMPTS_MAX):
        if served:
            _say_waiting(orders)
        frame = _receive(orders)
        if not frame or not supervisor.supervise(json.loads(frame), group):
            return
        os.chdir(IDLE_DIRECTORY)
        del frame  # it holds the job's environment
        gc.collect(0)  # frees what the attempt left, for example the mapping of its lease
        if _state() != before or not group.is_fresh():
            return


def _say_waiting(orders: int) -> None:
    with contextlib.suppress(ConnectionError):  # the zygote is gone; `_receive` notices that
        os.write(orders, WAITING)


def _receive(orders: int) -> bytes:
    """Return an order; empty at an end of file: the zygote is gone, or lets this supervisor go."""
    frame, size = b"", FRAME_PREFIX_BYTES
    while len(frame) < size:
        try:
            part = os.read(orders, READ_BYTES)
        except ConnectionError:
            part = b""
        if not part:
            return b""
        frame += part
        if len(frame) >= FRAME_PREFIX_BYTES:
            size = FRAME_PREFIX_BYTES + int.from_bytes(frame[:FRAME_PREFIX_BYTES], "big")
    return frame[FRAME_PREFIX_BYTES:]


def _state() -> tuple[object, ...]:
    """Return the process's state; it must be the same before and after an attempt."""
    return (
        [_read(f"/proc/self/{name}") for name in STATE_FILES],
        os.listdir("/proc/self/fd"),
        os.sched_getaffinity(0),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


def _read(path: str) -> bytes:
    """Return the file's content; empty if this kernel has no such file."""
    try:
        return processes.read(path, STATE_BYTES)
    except OSError:
        return b""
