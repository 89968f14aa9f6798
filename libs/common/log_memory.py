"""The in-memory twin of the log: the same refusals, dedupe and gap rules as the stream, without a server.

`MemoryStream` is the store that all share, `MemoryLog` one process's way to it (tests/sim wraps it with faults).
tests/contract holds this and `log_jetstream.JetStreamLog` to one suite.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from libs.common.errors import Corrupt
from libs.common.log import AppendRefused, Entry, message_id

BATCH_MAX: Final = 512


class MemoryStream:
    """Entries in order, the last sequence per subject, and the ids that were seen."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.last_by_subject: dict[str, Entry] = {}
        self.ids: dict[str, int] = {}
        self.grown = asyncio.Event()

    def store(self, subject: str, data: bytes, expected: int) -> int:
        """Append as a leader would: a repeated id is answered with its old sequence, a wrong expectation is refused."""
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


class MemoryLog:
    """See `log.Log`."""

    def __init__(self, stream: MemoryStream | None = None, idle_s: float = 0.5) -> None:
        self.stream = stream or MemoryStream()
        self.idle_s = idle_s

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        return self.stream.store(subject, data, expected)

    async def last(self, subject: str) -> Entry | None:
        return self.stream.last_by_subject.get(subject)

    async def get(self, seq: int) -> Entry | None:
        return self.stream.entries[seq - 1] if 0 < seq <= len(self.stream.entries) else None

    async def bounds(self) -> tuple[int, int]:
        return 1, len(self.stream.entries)

    async def read(self, after: int) -> AsyncIterator[list[Entry]]:
        if after > len(self.stream.entries):
            raise Corrupt(f"the log ends at {len(self.stream.entries)}, before {after}: it was lost or restored")
        while True:
            batch = self.stream.entries[after : after + BATCH_MAX]
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
