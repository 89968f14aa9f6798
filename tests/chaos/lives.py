"""Records that the jobs themselves wrote, as one life per attempt.

This witness does not depend on any part of the cluster.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Life:
    """One attempt as its own processes saw it, on the machine's monotonic clock."""

    job_id: str
    attempt: int
    first_ns: int
    last_ns: int
    starts: int = 0
    ends: int = 0
    pids: list[int] = field(default_factory=list)


def read(lines: Iterable[str]) -> dict[tuple[str, int], Life]:
    """Return the lives by (job, attempt), sorted. Raises ValueError for a malformed line."""
    lives: dict[tuple[str, int], Life] = {}
    for line in lines:
        kind, job_id, number, pid, text = line.split()
        at_ns, key = int(text), (job_id, int(number))
        life = lives.setdefault(key, Life(job_id, int(number), at_ns, at_ns))
        life.first_ns, life.last_ns = min(life.first_ns, at_ns), max(life.last_ns, at_ns)
        life.starts += kind == "start"
        life.ends += kind == "end"
        if int(pid) not in life.pids:
            life.pids.append(int(pid))
    return dict(sorted(lives.items()))


def by_job(lives: dict[tuple[str, int], Life]) -> dict[str, list[Life]]:
    """Return the attempts of each job in order."""
    found: dict[str, list[Life]] = {}
    for life in lives.values():
        found.setdefault(life.job_id, []).append(life)
    return found
