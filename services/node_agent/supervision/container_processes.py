"""The processes of an attempt's container, which are children of the container engine.

A control group of each is named after the container, whose id runner.py notes. Only the engine can
put a process there, and only the agent's user can write the id. Tests:
tests/integration/test_container_execs.py, tests/attack/test_memory_broker.py.
"""

import re
from pathlib import Path
from typing import Final

from services.node_agent.machine import processes
from services.node_agent.supervisor import records

CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")


def is_in_container(pid: int, job_dir: str) -> bool:
    """Return whether the process is in the container of the attempt in this directory."""
    name = _id_of(job_dir)
    return bool(name) and _is_in(pid, name)


def in_container(job_dir: str) -> list[int]:
    """Return the processes of the attempt's container; none without one. Blocks."""
    name = _id_of(job_dir)
    return [pid for pid in processes.all_pids() if _is_in(pid, name)] if name else []


def _id_of(job_dir: str) -> str:
    """Return the id of the attempt's container; empty without one."""
    try:
        name = Path(job_dir, records.CONTAINER).read_text()
    except OSError:
        return ""
    return name if CONTAINER_ID.fullmatch(name) else ""


def _is_in(pid: int, name: str) -> bool:
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return False
    return any(name in part for group in groups for part in group.split("/"))
