"""Reads the journal of a batch of elements. Tests: tests/unit/test_element_journal.py."""

import os

from services.node_agent.core.observations import ElementsSeen
from services.node_agent.machine import processes
from services.node_agent.supervisor import element_journal, records


def elements_seen(job_dir: str, key: str) -> ElementsSeen | None:
    """Return what the journal in an attempt's directory says; None if it has none."""
    if not os.path.exists(f"{job_dir}/{element_journal.NAME}"):
        return None
    identity = records.read_identity(job_dir)
    same_boot = identity is not None and identity["boot_id"] == processes.boot_id()
    seen = element_journal.read(job_dir, same_boot)
    if seen is None:
        return None
    return ElementsSeen(key, seen.first, tuple(seen.results), seen.begun)
