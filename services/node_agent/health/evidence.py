"""The evidence of a job that hangs, saved before it ends: its devices, and where its threads wait.

Of each process it has the number and the command's name, never arguments or environment: they may
hold secrets. What the kernel hides from this agent (stacks, unless it is root) is missing. It reads
/proc for many threads, so it must not run on the event loop.
"""

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.model import GpuId
from services.node_agent.drivers.readings import Sample
from services.node_agent.machine import processes

PROCESSES_MAX: Final = 64
THREADS_MAX: Final = 128
READ_BYTES: Final = 16 * 1024
# For each thread: where in the kernel it waits, in which system call, and the kernel stack.
FILES: Final = ("wchan", "syscall", "stack")


def evidence(
    key: str, reason: str, pids: Sequence[int], samples: Mapping[GpuId, Sample | None]
) -> bytes:
    """Return the evidence as JSON. Processes above PROCESSES_MAX are only counted."""
    found = {
        "attempt": key,
        "reason": reason,
        "at_ns": time.time_ns(),
        "devices": {uuid: msgspec.to_builtins(sample) for uuid, sample in samples.items()},
        "processes": [
            shown for pid in pids[:PROCESSES_MAX] if (shown := _process(pid)) is not None
        ],
        "processes_all": len(pids),
    }
    return json.dumps(found, indent=1).encode()


def _process(pid: int) -> dict[str, Any] | None:
    seen, used = processes.process(pid), processes.use(pid)
    if seen is None or used is None:
        return None
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    shown = {
        "pid": pid,
        "name": seen.name,
        "state": seen.state,
        "parent": seen.parent,
        "cpu_s": used.cpu_s,
        "memory_bytes": used.memory_bytes,
    }
    return {
        **shown,
        "threads": [_thread(pid, thread) for thread in threads[:THREADS_MAX]],
        "threads_all": len(threads),
    }


def _thread(pid: int, thread: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"thread": int(thread)}
    for name in FILES:
        with contextlib.suppress(OSError):
            text = (
                processes.read(f"/proc/{pid}/task/{thread}/{name}", READ_BYTES)
                .decode(errors="replace")
                .strip()
            )
            shown[name] = text.splitlines() if name == "stack" else text
    return shown
