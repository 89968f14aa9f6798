"""Keeps and prunes the directories of attempts that the agent has forgotten.

`retention.py` chooses what is pruned. A pruned directory holds only its marker. The latest
MARKERS_MAX markers stay. The folds keep as many ended jobs, so the scheduler knows no attempt whose
marker is gone. Test: tests/integration/test_pruning.py.
"""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Unavailable
from libs.common.model import AttemptRef, attempt_of
from libs.common.safety.folder_walk import BLOCK_BYTES, remove_tree, size_of
from services.node_agent.directories.retention import Keep, Kept, Pruned, Shelf, surplus
from services.node_agent.supervisor import records

# This file marks a directory while the end of its output is not in the object store yet.
UNCOPIED: Final = "uncopied"
MARKERS_MAX: Final = 10_000
# How long after a failure the directories of earlier agents are read again.
LOAD_AGAIN_S: Final = 10.0
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
STILL_LOADING: Final = "it still reads its old directories: try again later"

logger = logging.getLogger(__name__)


class Scanned(NamedTuple):
    """One directory as it is on the disk, with the rank of its attempt; 0 if that is not known."""

    kept: Kept
    is_pruned: bool
    is_uncopied: bool
    rank: int = 0


class KeptDirectories:
    """The kept directories of one agent.

    `kept` has them by name and `shelves` by tenant, the oldest first. `held` maps the names of
    those whose output is only here to their ranks.
    """

    def __init__(self, jobs_dir: Path) -> None:
        self.jobs_dir = jobs_dir
        self.kept: dict[str, Kept] = {}
        self.shelves: dict[str, Shelf] = {}
        self.size_bytes = 0
        self.held: dict[str, int] = {}
        # Held directories whose marker file is not on the disk.
        self.unmarked: set[str] = set()
        self.markers: deque[str] = deque()
        self.pruning = asyncio.Lock()
        self.loaded = asyncio.Event()
        self.closed = False

    async def load(self) -> None:
        """Add the directories that earlier agents left, the oldest first.

        Many files take minutes, so the agent registers meanwhile. Whatever needs all directories
        waits for `loaded`. If they cannot be read, for example without free descriptors, they are
        read again later.
        """
        try:
            for directory in sorted(await self._all(), key=lambda one: one.kept.ended_ns):
                self._add(directory)
        finally:
            self.loaded.set()

    async def _all(self) -> list[Scanned]:
        while True:
            try:
                return await asyncio.to_thread(self._scan_all)
            except OSError as error:
                logger.warning("%s cannot be read yet: %s", self.jobs_dir, error)
                await asyncio.sleep(LOAD_AGAIN_S)

    def _scan_all(self) -> list[Scanned]:
        """Read the directories from the disk; leave out those that cannot be read.

        Raises OSError if the list cannot be read, or if no descriptor is free.
        """
        found = []
        for name in os.listdir(self.jobs_dir):
            if self.closed:
                break
            job_dir = f"{self.jobs_dir}/{name}"
            try:
                os.lstat(f"{job_dir}/{records.DONE}")
                found.append(_scan(job_dir))
            except (FileNotFoundError, NotADirectoryError):
                continue  # not forgotten yet, or a person removed it
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
                    raise
                logger.warning("%s is not pruned by this agent: %s", job_dir, error)
        return found

    async def close(self, loading: asyncio.Task[None]) -> None:
        """End the task that loads."""
        self.closed = True
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)

    def hold(self, name: str) -> None:
        """Keep this directory from being pruned, until `copied` is called.

        Call it before the attempt is forgotten.
        """
        try:
            (self.jobs_dir / name / UNCOPIED).touch()
        except FileNotFoundError:
            return
        except OSError as error:
            self.unmarked.add(name)
            logger.warning(
                "%s/%s cannot be marked (%s): the next agent may prune its output uncopied",
                self.jobs_dir,
                name,
                error,
            )

    async def add(self, name: str, tenant: str) -> None:
        """Add the directory of an attempt of this tenant that was just forgotten.

        Its own folders may hold many files, so a thread measures them.
        """
        await self.loaded.wait()
        job_dir = f"{self.jobs_dir}/{name}"
        try:
            found = _scan_flat(job_dir, tenant)
            if found is None or found.is_uncopied or name in self.unmarked:
                found = await asyncio.to_thread(_scan, job_dir)
            self._add(found)
        except OSError as error:
            logger.warning("%s is not pruned by this agent: %s", job_dir, error)

    def _add(self, scanned: Scanned) -> None:
        kept = scanned.kept
        if kept.name in self.kept:  # forgotten while the directories were read
            return
        if scanned.is_pruned:
            self.markers.append(kept.name)
            return
        self.kept[kept.name] = kept
        self.size_bytes += kept.size_bytes
        self.shelves.setdefault(kept.tenant, Shelf()).add(kept)
        if scanned.is_uncopied or kept.name in self.unmarked:
            self.held[kept.name] = scanned.rank

    async def prune(self, keep: Keep, dry_run: bool = False) -> Pruned:
        """Prune down to these bounds; prunings run one after the other.

        Bytes that could not be removed do not count as freed. Raises Unavailable while the
        directories of earlier agents are read.
        """
        if not self.loaded.is_set():
            raise Unavailable(STILL_LOADING)
        async with self.pruning:
            chosen = surplus(self.shelves.values(), self.held, keep, time.time_ns())
            size = sum(kept.size_bytes for kept in chosen)
            if dry_run:
                return Pruned(
                    jobs=len(chosen),
                    size_bytes=size,
                    jobs_left=len(self.kept) - len(chosen),
                    bytes_left=self.size_bytes - size,
                    uncopied=len(self.held),
                )
            freed = 0
            for kept in chosen:
                freed += await asyncio.to_thread(_empty, self.jobs_dir / kept.name)
                self._drop(kept)
                self.markers.append(kept.name)
            while len(self.markers) > MARKERS_MAX:
                await asyncio.to_thread(remove_tree, self.jobs_dir / self.markers.popleft())
            return Pruned(
                jobs=len(chosen),
                size_bytes=freed,
                jobs_left=len(self.kept),
                bytes_left=self.size_bytes,
                uncopied=len(self.held),
            )

    def _drop(self, kept: Kept) -> None:
        del self.kept[kept.name]
        self.size_bytes -= kept.size_bytes
        shelf = self.shelves[kept.tenant]
        shelf.remove(kept)
        if not shelf.kept:
            del self.shelves[kept.tenant]

    async def uncopied(self) -> list[tuple[AttemptRef, int]]:
        """Return the attempts whose output is only here, with their ranks."""
        await self.loaded.wait()
        return [(attempt_of(name), rank) for name, rank in self.held.items()]

    def copied(self, name: str) -> None:
        """Allow pruning: the end of the output is stored elsewhere too."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.jobs_dir / name / UNCOPIED)
        self.held.pop(name, None)
        self.unmarked.discard(name)


def is_pruned(job_dir: Path) -> bool:
    """Return whether a forgotten attempt was pruned: then its exit record is gone."""
    return (job_dir / records.DONE).exists() and not (job_dir / records.EXIT).exists()


def _scan(job_dir: str) -> Scanned:
    """Read one directory from the disk."""
    tenant, record = records.read_tenant(job_dir), records.read_exit(job_dir)
    found = _scanned(job_dir, os.listdir(job_dir), size=_size(job_dir), tenant=tenant)
    return found._replace(rank=record.get("rank", 0) if record is not None else 0)


def _scan_flat(job_dir: str, tenant: str) -> Scanned | None:
    """Read a directory that holds files only, each with one name; None for any other."""
    size, names = 0, []
    with os.scandir(job_dir) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False) or status.st_nlink > 1:
                return None
            names.append(entry.name)
            if entry.name != records.DONE:
                size += status.st_blocks * BLOCK_BYTES
    return _scanned(job_dir, names, size, tenant)


def _scanned(job_dir: str, names: Collection[str], size: int, tenant: str) -> Scanned:
    """Return what the directory holds. Its last change was when the attempt was forgotten."""
    kept = Kept(os.path.basename(job_dir), size, os.stat(job_dir).st_mtime_ns, tenant)
    return Scanned(kept, records.EXIT not in names, UNCOPIED in names)


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
