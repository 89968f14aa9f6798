"""The process at the other end of a socket, as the kernel names it, and the job to which it
belongs.

A token alone proves nothing, because a job can read or guess what another job leaves behind. The
peer must also be a descendant of the attempt's supervisor, which adopts all orphans of its job, or
a process of the attempt's container. A supervisor serves one attempt after the other, and records
the end of each before it takes the next. Tests: tests/attack/test_memory_broker.py,
tests/attack/test_reused_supervisor.py.
"""

import socket
import struct
from typing import Final

from services.node_agent.machine import processes
from services.node_agent.memory.grants import Holder
from services.node_agent.supervision import lost
from services.node_agent.supervision.container_processes import is_in_container
from services.node_agent.supervisor import records

DEPTH_MAX: Final = 256
_CREDENTIALS: Final = struct.Struct("3i")


def peer_of(stream: socket.socket) -> tuple[Holder | None, int]:
    """Return the process that connected, None if it is gone, and its user id."""
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    found = processes.process(pid) if pid > 0 else None
    return (Holder(pid, found.start_ticks) if found is not None else None), uid


def belongs(holder: Holder, job_dir: str) -> bool:
    """Return whether the process belongs to the attempt in this directory, which has not ended.

    It descends from the attempt's supervisor, or it is in the control group of the attempt's
    container, whose processes are children of the container engine.
    """
    identity = records.read_identity(job_dir)
    if identity is None or not processes.is_living(*holder):
        return False
    wanted = Holder(identity["pid"], identity["start_ticks"])
    found = _descends(holder, wanted) or is_in_container(holder.pid, job_dir)
    return found and processes.is_living(*holder) and lost.serves(job_dir, identity)


def supervised(job_dir: str) -> bool:
    """Return whether the supervisor of the attempt in this directory lives and serves it."""
    identity = records.read_identity(job_dir)
    return identity is not None and lost.serves(job_dir, identity)


def _descends(holder: Holder, wanted: Holder) -> bool:
    pid = holder.pid
    for _ in range(DEPTH_MAX):
        found = processes.process(pid)
        if found is None or found.parent <= 1:
            return False
        pid = found.parent
        above = processes.process(pid)
        if above is not None and Holder(pid, above.start_ticks) == wanted:
            return True
    return False
