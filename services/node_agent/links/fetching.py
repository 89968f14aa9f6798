"""Fetches one file or folder of another node over a link, into a job's working directory.

Entries and depth of a folder are bounded, because the serving node may invent them without end.
Tests: tests/integration/test_copies.py, tests/attack/test_copies.py.
"""

import os
from typing import Final

from libs.common.messages.file_messages import FILE, LINK, MISSING, UNREADABLE, FilePart
from services.node_agent.jobs.files import Fault
from services.node_agent.links.asking import Peer
from services.node_agent.links.landing import Landing

DEPTH_MAX: Final = 100
ENTRIES_MAX: Final = 1_000_000


class Progress:
    """Counts of one copy, which other threads may read."""

    def __init__(self) -> None:
        self.files = self.folders = self.skipped = self.size_bytes = self.entries = 0


class Fetch:
    """One copy from `peer` to `target`. `copy` is its id."""

    def __init__(self, peer: Peer, target: Landing, copy: str, progress: Progress) -> None:
        self.peer, self.target, self.copy, self.progress = peer, target, copy, progress

    def run(self, path: bytes) -> None:
        """Copy the file or folder at `path`. Raises Fault; then nothing is left of the copy."""
        first, target = self.peer.part(path), self.target
        with target.whole(self.copy, is_folder=first.kind != FILE) as temporary:
            if first.kind == FILE:
                self._file(path, first, target.holder, temporary)
                return
            with target.folder(target.holder, temporary) as made:
                self._folder(path, b"", first, made, DEPTH_MAX)
            self.progress.folders += 1

    def _file(self, path: bytes, first: FilePart, holder: int, name: bytes) -> None:
        with self.target.file(holder, name, first.mode, first.size_bytes) as write:

            def out(data: bytes) -> None:
                write(data)
                self.progress.size_bytes += len(data)

            self.peer.file(path, first, out)
        self.progress.files += 1

    def _folder(self, path: bytes, within: bytes, page: FilePart, made: int, depth: int) -> None:
        """Copy the content of a folder into the folder `made`. `within`: its path in the copy."""
        if depth == 0:
            raise Fault(
                UNREADABLE,
                f"{_shown(path)} is more than {DEPTH_MAX} folders deep: copy parts of it",
            )
        while True:
            self._count(path, len(page.names) + 1)
            for each in page.names:
                below = _joined(path, each.name)
                if each.kind == LINK:
                    self._link(within, each.name, each.target, made)
                elif (found := self._part_or_none(below, each.kind)) is None:
                    continue
                elif found.kind == FILE:
                    self._file(below, found, made, each.name)
                else:
                    with self.target.folder(made, each.name) as inner:
                        self._folder(below, _joined(within, each.name), found, inner, depth - 1)
                    self.progress.folders += 1
            if not page.more:
                return
            page = self.peer.part(path, page.last)
            if page.kind == FILE:
                raise Fault(UNREADABLE, f"{_shown(path)} changed while it was read: copy it again")

    def _part_or_none(self, path: bytes, kind: str) -> FilePart | None:
        """Return the part; None if it is gone or was replaced since its folder was read."""
        try:
            found = self.peer.part(path)
        except Fault as fault:
            if fault.word == MISSING:
                return None
            raise
        return found if found.kind == kind else None

    def _link(self, within: bytes, name: bytes, target: bytes, made: int) -> None:
        """Copy a link; skip one that leads out of the copied folder."""
        led = os.path.normpath(os.path.join(within or b".", target))
        if not target or b"\0" in target or led.startswith(b"/") or led.split(b"/")[0] == b"..":
            self.progress.skipped += 1
            return
        self.target.link(made, name, target)

    def _count(self, path: bytes, entries: int) -> None:
        self.progress.entries += entries
        if self.progress.entries > ENTRIES_MAX:
            raise Fault(
                UNREADABLE,
                f"{_shown(path)}: the folder has more than {ENTRIES_MAX} entries: copy parts of it",
            )


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace") or "."
