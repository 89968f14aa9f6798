"""The directories of attempts that are over and forgotten: what is there, and what of it is
removed.

A pruned directory holds its marker and nothing else. Markers are kept too, the latest MARKERS_MAX
of them: as many as there are ended jobs in the folds, so that nobody who gives orders knows of an
attempt whose marker is gone. Which directories go is chosen by `retention.py`. Test:
tests/integration/test_pruning.py.
"""

import asyncio
import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.model import AttemptRef, attempt_of
from libs.common.safety.folder_walk import remove_tree, size_of
from services.node_agent.directories.retention import Keep, Kept, Pruned, Shelf, surplus
from services.node_agent.supervisor import records

# In a directory whose output's end the store has not taken yet.
UNCOPIED: Final = "uncopied"
MARKERS_MAX: Final = 10_000


class Found(NamedTuple):
    kept: Kept
    is_pruned: bool
    is_uncopied: bool


class KeptDirectories:
    """`kept` holds them by name and `shelves` by tenant, the oldest first; `held` are those whose
    output is only here.
    """

    def __init__(self, jobs_dir: Path) -> None:
        self.jobs_dir = jobs_dir
        self.kept: dict[str, Kept] = {}
        self.shelves: dict[str, Shelf] = {}
        self.size_bytes = 0
        self.held: dict[str, int] = {}
        self.markers: deque[str] = deque()
        self.pruning = asyncio.Lock()

    async def load(self) -> None:
        """What an agent before this one left, the oldest first."""
        found = await asyncio.to_thread(
            lambda: [_found(str(path.parent)) for path in self.jobs_dir.glob(f"*/{records.DONE}")]
        )
        for one in sorted(found, key=lambda one: one.kept.ended_ns):
            self._add(one)

    def hold(self, name: str) -> None:
        """Before an attempt is forgotten whose output's end the store has not taken."""
        with contextlib.suppress(FileNotFoundError):
            (self.jobs_dir / name / UNCOPIED).touch()

    async def add(self, name: str) -> None:
        """An attempt was forgotten. What it left in folders of its own may be much."""
        job_dir = f"{self.jobs_dir}/{name}"
        with os.scandir(job_dir) as entries:
            deep = any(entry.is_dir(follow_symlinks=False) for entry in entries)
        self._add(await asyncio.to_thread(_found, job_dir) if deep else _found(job_dir))

    def _add(self, found: Found) -> None:
        one = found.kept
        if found.is_pruned:
            self.markers.append(one.name)
            return
        self.kept[one.name] = one
        self.size_bytes += one.size_bytes
        self.shelves.setdefault(one.tenant, Shelf()).add(one)
        if found.is_uncopied:
            record = records.read_exit(f"{self.jobs_dir}/{one.name}")
            self.held[one.name] = record["rank"] if record is not None else 0

    async def prune(self, keep: Keep, dry_run: bool = False) -> Pruned:
        """One at a time. What could not be removed is not counted as freed."""
        async with self.pruning:
            chosen = surplus(self.shelves.values(), self.held, keep, time.time_ns())
            size = sum(one.size_bytes for one in chosen)
            if dry_run:
                return Pruned(
                    len(chosen),
                    size,
                    len(self.kept) - len(chosen),
                    self.size_bytes - size,
                    len(self.held),
                )
            freed = 0
            for one in chosen:
                freed += await asyncio.to_thread(_empty, self.jobs_dir / one.name)
                self._drop(one)
                self.markers.append(one.name)
            while len(self.markers) > MARKERS_MAX:
                await asyncio.to_thread(remove_tree, self.jobs_dir / self.markers.popleft())
            return Pruned(len(chosen), freed, len(self.kept), self.size_bytes, len(self.held))

    def _drop(self, one: Kept) -> None:
        del self.kept[one.name]
        self.size_bytes -= one.size_bytes
        shelf = self.shelves[one.tenant]
        shelf.remove(one)
        if not shelf.kept:
            del self.shelves[one.tenant]

    def uncopied(self) -> list[tuple[AttemptRef, int]]:
        """Attempts whose output is only here, with their ranks."""
        return [(attempt_of(name), rank) for name, rank in self.held.items()]

    def copied(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.jobs_dir / name / UNCOPIED)
        self.held.pop(name, None)


def is_pruned(job_dir: Path) -> bool:
    """An attempt that was forgotten has ended, so its exit record is there until it is pruned."""
    return (job_dir / records.DONE).exists() and not (job_dir / records.EXIT).exists()


def _found(job_dir: str) -> Found:
    """The directory changed last when it was forgotten."""
    names = os.listdir(job_dir)
    tenant = str(records.read_summary(job_dir).get("note", {}).get("tenant", ""))
    kept = Kept(os.path.basename(job_dir), _size(job_dir), os.stat(job_dir).st_mtime_ns, tenant)
    return Found(kept, records.EXIT not in names, UNCOPIED in names)


def _size(job_dir: str | Path) -> int:
    return size_of(job_dir, leave_out=records.DONE)


def _empty(job_dir: Path) -> int:
    """Remove all but the marker; return the bytes that are gone.

    The exit record goes last: a directory without it counts as pruned.
    """
    try:
        before, names = _size(job_dir), os.listdir(job_dir)
    except FileNotFoundError:
        return 0  # a person removed it
    for name in sorted(names, key=lambda name: name == records.EXIT):
        if name != records.DONE:
            remove_tree(job_dir / name)
    return before - _size(job_dir)
