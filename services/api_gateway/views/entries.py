"""Entries of the log for readers of history: recent ones from memory, older ones from the log,
trimmed ones from the archive.

A scan lets other work run between slices, so that a long one does not delay requests.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from libs.common.transport.archive import archived, whole
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Log
from services.api_gateway.access.slots import Slots

RECENT_ENTRIES_MAX: Final = 4_096
RECENT_BYTES_MAX: Final = 16 << 20
SLICE_ENTRIES: Final = 32


class Entries:
    """The entries of one gateway. `note` keeps each folded entry for a while.

    `slots` bounds how much each tenant looks up in the archive.
    """

    def __init__(self, log: Log, bus: Bus) -> None:
        self.log = log
        self.bus = bus
        self.slots = Slots()
        self.recent: deque[Entry] = deque()
        self.recent_bytes = 0

    def note(self, entry: Entry) -> None:
        self.recent.append(entry)
        self.recent_bytes += len(entry.data)
        while len(self.recent) > RECENT_ENTRIES_MAX or self.recent_bytes > RECENT_BYTES_MAX:
            self.recent_bytes -= len(self.recent.popleft().data)

    async def get(self, seq: int) -> Entry | None:
        """Return one entry; None if it is not written yet. Raises Unavailable."""
        found = self._in_memory(seq) or await self.log.get(seq)
        if found is not None or seq > (await self.log.bounds())[1]:
            return found
        async with aclosing(archived(self.bus, seq - 1, seq)) as pages:
            return (await anext(pages))[0]

    async def scan(self, after: int, upto: int) -> AsyncGenerator[list[Entry], None]:
        """Yield consecutive entries from `after` + 1 to `upto` in small slices.

        Raises Unavailable.
        """
        if after < upto and self._in_memory(after + 1) is None:
            async with aclosing(whole(self.log, self.bus, after, upto)) as batches:
                async for piece in _slices(batches):
                    after = piece[-1].seq
                    yield [entry for entry in piece if entry.seq <= upto]
                    if after >= upto:
                        return
            return
        while after < upto:
            piece = [
                entry
                for entry in map(
                    self._in_memory, range(after + 1, min(upto, after + SLICE_ENTRIES) + 1)
                )
                if entry is not None
            ]
            if not piece or piece[0].seq != after + 1:
                return
            after = piece[-1].seq
            yield piece
            await asyncio.sleep(0)

    def remembers(self, seq: int) -> bool:
        """Return whether an entry is in memory, or is not written yet."""
        return not self.recent or seq >= self.recent[0].seq

    def _in_memory(self, seq: int) -> Entry | None:
        if not self.recent:
            return None
        place = seq - self.recent[0].seq
        return self.recent[place] if 0 <= place < len(self.recent) else None


async def _slices(batches: AsyncIterator[list[Entry]]) -> AsyncIterator[list[Entry]]:
    async for batch in batches:
        for begin in range(0, len(batch), SLICE_ENTRIES):
            yield batch[begin : begin + SLICE_ENTRIES]
            await asyncio.sleep(0)
