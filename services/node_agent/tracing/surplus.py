"""Chooses the kept traces to remove when a job or the node has too many. Pure.

Tests: tests/unit/test_trace_surplus.py.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """A kept trace, with its size on disk and the time when it was made."""

    folder: str
    tenant: str
    job_id: str
    made_ns: int
    size_bytes: int


def surplus(held: Sequence[Held], job_bytes: int, node_bytes: int) -> list[Held]:
    """Return the traces to remove: the oldest of a job that has too much, then the oldest of the
    tenant that has most, so that no tenant pushes out another one's.
    """
    left = sorted(held, key=lambda one: one.made_ns)
    gone: list[Held] = []
    jobs = Counter[str]()
    tenants = Counter[str]()
    for one in left:
        jobs[one.job_id] += one.size_bytes
        tenants[one.tenant] += one.size_bytes
    for one in left:
        if jobs[one.job_id] > job_bytes:
            gone.append(one)
            jobs[one.job_id] -= one.size_bytes
            tenants[one.tenant] -= one.size_bytes
    left = [one for one in left if one not in gone]
    while left and sum(tenants.values()) > node_bytes:
        most = max(sorted(tenants), key=lambda tenant: tenants[tenant])
        oldest = next(one for one in left if one.tenant == most)
        left.remove(oldest)
        gone.append(oldest)
        tenants[most] -= oldest.size_bytes
        if not any(one.tenant == most for one in left):
            del tenants[most]
    return gone
