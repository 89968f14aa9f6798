"""How long the directories of ended attempts are kept: by age, by size, by number; the oldest go first.

Pure. What has not been copied off the node is never chosen. Whoever carries it out (`kept_directories.py`) leaves the marker, which keeps
the attempt from being started again.
"""

from collections.abc import Collection, Container
from typing import NamedTuple


class Keep(NamedTuple):
    """Bounds; None: none."""

    age_s: int | None = None
    size_bytes: int | None = None
    jobs: int | None = None


class Kept(NamedTuple):
    """The directory of an attempt that is over and forgotten. `ended_ns` is on the machine's wall clock."""

    name: str
    size_bytes: int
    ended_ns: int


class Pruned(NamedTuple):
    """What was removed, or would be, and what is left. `uncopied` of those left are held back only because the store has not taken
    the end of their output yet."""

    jobs: int = 0
    size_bytes: int = 0
    jobs_left: int = 0
    bytes_left: int = 0
    uncopied: int = 0


def surplus(kept: Collection[Kept], uncopied: Container[str], size_bytes: int, keep: Keep, now_ns: int) -> list[Kept]:
    """What is to go. `kept` has the oldest first and `size_bytes` together, so that nothing is looked at behind what stays."""
    jobs, found = len(kept), []
    for one in kept:
        if not _exceeds(keep, jobs, size_bytes, now_ns - one.ended_ns):
            break
        if one.name not in uncopied:
            found.append(one)
            jobs, size_bytes = jobs - 1, size_bytes - one.size_bytes
    return found


def _exceeds(keep: Keep, jobs: int, size_bytes: int, age_ns: int) -> bool:
    return (
        (keep.age_s is not None and age_ns >= keep.age_s * 1_000_000_000)
        or (keep.size_bytes is not None and size_bytes > keep.size_bytes)
        or (keep.jobs is not None and jobs > keep.jobs)
    )
