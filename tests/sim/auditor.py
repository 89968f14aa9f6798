"""The simulated audit: the real chain over the log, into an archive that survives the process and
holds the exact bytes; beside it the real trimmer.
"""

import asyncio
from collections.abc import Callable

from libs.common.errors import Trimmed, Unavailable
from libs.common.transport.log import Entry, Log
from services.audit.chain import chain
from services.audit.store import reading
from services.audit.store.store import Record
from services.audit.trim.trimmer import Trimmer


class Archive:
    """A stand-in for the archive's database: links and bytes, stored in one transaction.

    It answers the trimmer as `services.audit.store.archive` does.
    """

    def __init__(self) -> None:
        self.links: list[chain.Link] = []
        self.entries: list[Entry] = []

    async def head_seq(self) -> int:
        return len(self.entries)

    async def between(self, first: int, last: int) -> list[Record]:
        pairs = zip(
            self.links[max(0, first - 1) : last],
            self.entries[max(0, first - 1) : last],
            strict=True,
        )
        return [
            Record(
                index=each.index,
                seq=each.seq,
                subject=each.subject,
                data=entry.data,
                at_ns=0,
                hash=each.hash,
                previous_hash=each.previous_hash,
            )
            for each, entry in pairs
        ]

    async def young(self, after: int, since_ns: int, until_ns: int) -> int:
        found = (
            entry.seq
            for entry in self.entries[after:]
            if since_ns <= reading.read(entry.seq, entry.subject, entry.data).at_ns <= until_ns
        )
        return next(found, len(self.entries) + 1)


class Auditor:
    """Reads on from the archive's head, for ever."""

    def __init__(self, log: Log, archive: Archive) -> None:
        self.log = log
        self.archive = archive

    async def run(self) -> None:
        head = self.archive.links[-1] if self.archive.links else None
        async for batch in self.log.read(head.seq if head else 0):
            links = chain.extend(head, batch)
            self.archive.links += links
            self.archive.entries += batch
            head = links[-1] if links else head


async def keep_trimming(trimmer: Trimmer, every_s: float, tell: Callable[[str, str], None]) -> None:
    """Trim as `Trimmer.run` does; report a violation if a fault needs an operator."""
    while True:
        try:
            if await trimmer.round():
                tell("trimmed", f"up to {trimmer.trimmed}")
        except (Trimmed, Unavailable):
            pass
        await asyncio.sleep(every_s)
