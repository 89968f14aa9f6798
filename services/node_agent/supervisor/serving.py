"""The life of a supervisor process: it waits for an order, supervises that attempt, and waits for
the next one.

One attempt at a time, so that whoever dies with it is one job. It serves again only when the last
attempt was proved gone, its end was recorded and told, its control group is as good as new, and
nothing that a job can do to its parent (limits, niceness, processors, cgroup, descriptors) was done
to it; at any doubt it exits, and so it does when the zygote is gone. Tests:
tests/integration/test_supervision_reuse.py.
"""

import contextlib
import gc
import json
import os
from typing import NoReturn

from services.node_agent.machine import cgroups, processes
from services.node_agent.supervisor import records, supervisor
from services.node_agent.supervisor.order import FRAME_PREFIX_BYTES

# A supervisor is begun afresh after so many: whatever it gathers is bounded.
ATTEMPTS_MAX = 500
READ_BYTES = 64 * 1024
CRASHED = 70
IDLE_DIRECTORY = "/"
WAITING = b"\n"
STATE_BYTES = 4096
# The kernel's account of what others may change in this process.
STATE_FILES = ("limits", "cgroup", "oom_score_adj")


def serve(orders: int, home: dict[str, str]) -> NoReturn:
    """The whole life of the forked process.

    `orders` is the socket to the zygote, `home` where its control group is to be. A bug is written
    down, and ends the job too.
    """
    status = CRASHED
    try:
        _serve(orders, home)
        status = 0
    except BaseException:
        import traceback  # only here: what the zygote imports, every fork pays for

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
        gc.collect(0)  # what the attempt left, its lease's mapping among it
        if _state() != before or not group.is_fresh():
            return


def _say_waiting(orders: int) -> None:
    with contextlib.suppress(ConnectionError):  # read next, it says that the zygote is gone
        os.write(orders, WAITING)


def _receive(orders: int) -> bytes:
    """Nothing at an end of file: the zygote is gone, or lets this one go."""
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
    """Equal before and after an attempt, or this process is no longer what it was."""
    return (
        [_read(f"/proc/self/{name}") for name in STATE_FILES],
        os.listdir("/proc/self/fd"),
        os.sched_getaffinity(0),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


def _read(path: str) -> bytes:
    """Nothing where this kernel has no such file."""
    try:
        return processes.read(path, STATE_BYTES)
    except OSError:
        return b""
