"""The log in memory: the same refusals, deduplication and gaps as the stream, without a server.

All processes share a `MemoryStream`; each reads and writes through its own `MemoryLog` (tests/sim
wraps it with faults). tests/contract runs one suite over it and `log_jetstream.JetStreamLog`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from libs.common.errors import Corrupt
from libs.common.transport.log import AppendRefused, Entry, Extent, message_id, not_held

BATCH_MAX: Final = 512


class MemoryStream:
    """Entries in order, the last entry of each subject, and all ids.

    `entries` keeps every entry that was ever stored, for checks. Readers get only entries that were
    not purged.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.purged: set[int] = set()
        self.last_by_subject: dict[str, Entry] = {}
        self.ids: dict[str, int] = {}
        self.grown = asyncio.Event()

    def store(self, subject: str, data: bytes, expected: int) -> int:
        """Append like a leader: return the old sequence of a repeated id. Raises AppendRefused."""
        key = message_id(subject, expected, data)
        if key in self.ids:
            return self.ids[key]
        last = self.last_by_subject.get(subject)
        if (last.seq if last else 0) != expected:
            raise AppendRefused(f"{subject}: expected {expected}, found {last.seq if last else 0}")
        entry = Entry(len(self.entries) + 1, subject, data)
        self.entries.append(entry)
        self.last_by_subject[subject] = entry
        self.ids[key] = entry.seq
        self.grown.set()
        self.grown = asyncio.Event()
        return entry.seq

    def at(self, seq: int) -> Entry | None:
        """Return one entry; None if it was purged or is not stored yet."""
        return (
            self.entries[seq - 1]
            if 0 < seq <= len(self.entries) and seq not in self.purged
            else None
        )

    def bounds(self) -> tuple[int, int]:
        last = len(self.entries)
        return next(
            (entry.seq for entry in self.entries if entry.seq not in self.purged), last + 1
        ), last

    def following(self, after: int, limit: int) -> list[Entry]:
        """Return consecutive entries up to the first gap.

        Raises Trimmed if the first is missing.
        """
        if after + 1 in self.purged:
            raise not_held(after + 1)
        found = self.entries[after : after + limit]
        missing = next(
            (place for place, entry in enumerate(found) if entry.seq in self.purged), len(found)
        )
        return found[:missing]

    def extent(self) -> Extent:
        held = [entry for entry in self.entries if entry.seq not in self.purged]
        return Extent(len(self.entries), len(held), sum(len(entry.data) for entry in held), 0)

    def purge(self, keep: Mapping[str, int]) -> None:
        self.purged.update(
            entry.seq for entry in self.entries if entry.seq < keep.get(entry.subject, 0)
        )


class MemoryLog:
    """A log in memory; see `log.Log`."""

    def __init__(self, stream: MemoryStream | None = None, idle_s: float = 0.5) -> None:
        self.stream = stream or MemoryStream()
        self.idle_s = idle_s

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        return self.stream.store(subject, data, expected)

    async def last(self, subject: str) -> Entry | None:
        return self.stream.last_by_subject.get(subject)

    async def get(self, seq: int) -> Entry | None:
        return self.stream.at(seq)

    async def next_held(self, seq: int) -> int | None:
        later = range(max(1, seq), len(self.stream.entries) + 1)
        return next((each for each in later if self.stream.at(each) is not None), None)

    async def bounds(self) -> tuple[int, int]:
        return self.stream.bounds()

    async def extent(self) -> Extent:
        return self.stream.extent()

    async def purge(self, keep: Mapping[str, int]) -> None:
        self.stream.purge(keep)

    async def read(self, after: int) -> AsyncIterator[list[Entry]]:
        if after > len(self.stream.entries):
            raise Corrupt(
                f"the log ends at {len(self.stream.entries)}, before {after}: it was lost or "
                "restored"
            )
        while True:
            batch = self.stream.following(after, BATCH_MAX)
            after += len(batch)
            yield batch
            if after == len(self.stream.entries):
                await self._growth()

    async def _growth(self) -> None:
        try:
            async with asyncio.timeout(self.idle_s):
                await self.stream.grown.wait()
        except TimeoutError:
            return
