"""Records that the jobs wrote themselves, as one span of time per attempt and rank.

This witness does not depend on any part of the cluster. A line is: kind (start, beat or end), job,
attempt, pid, the machine's monotonic clock in nanoseconds, rank, node, tenant, GPUs.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tests.chaos.lives import Life

NO_GPUS: Final = "-"
Key = tuple[str, int, int]


class Span(msgspec.Struct):
    """The process of one rank of one attempt, from its first line to its last."""

    job_id: str
    attempt: int
    rank: int
    node: str
    tenant: str
    gpus: tuple[str, ...]
    first_ns: int
    last_ns: int
    starts: int = 0
    ends: int = 0
    pids: list[int] = []


def read(lines: Iterable[str]) -> dict[Key, Span]:
    """Return the spans by (job, attempt, rank), sorted. Raises ValueError for a malformed line."""
    spans: dict[Key, Span] = {}
    for line in lines:
        kind, job_id, number, pid, text, rank, node, tenant, gpus = line.split()
        key, at_ns = (job_id, int(number), int(rank)), int(text)
        span = spans.get(key)
        if span is None:
            held = () if gpus == NO_GPUS else tuple(gpus.split(","))
            span = spans[key] = Span(
                job_id=job_id,
                attempt=int(number),
                rank=int(rank),
                node=node,
                tenant=tenant,
                gpus=held,
                first_ns=at_ns,
                last_ns=at_ns,
            )
        span.first_ns, span.last_ns = min(span.first_ns, at_ns), max(span.last_ns, at_ns)
        span.starts += kind == "start"
        span.ends += kind == "end"
        if int(pid) not in span.pids:
            span.pids.append(int(pid))
    return dict(sorted(spans.items()))


def lives(spans: Mapping[Key, Span]) -> dict[tuple[str, int], Life]:
    """Return the attempts as `checks.py` judges them: a gang lives from its first rank's begin to
    its last rank's end.

    Its starts and ends are the largest of a rank's, and its processes those of the rank with most.
    """
    found: dict[tuple[str, int], Life] = {}
    for span in spans.values():
        key = (span.job_id, span.attempt)
        life = found.setdefault(key, Life(*key, first_ns=span.first_ns, last_ns=span.last_ns))
        life.first_ns, life.last_ns = (
            min(life.first_ns, span.first_ns),
            max(life.last_ns, span.last_ns),
        )
        life.starts, life.ends = max(life.starts, span.starts), max(life.ends, span.ends)
        if len(span.pids) > len(life.pids):
            life.pids = list(span.pids)
    return found
