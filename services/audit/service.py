"""Audit as a process: every commit of the log goes into the archive, in order, in batches, with its link of the chain.

It follows the log from the archive's own head, so a restart loses and repeats nothing. The database runs in a thread: a
slow disk makes the archive lag, and nothing else.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from libs.common.errors import Unavailable
from libs.common.log import Entry, Log
from services.audit.store import Store

BATCH_MAX: Final = 1_000
RETRY_S: Final = 1.0
GATHER_S: Final = 0.02

logger = logging.getLogger(__name__)


class Audit:
    """One audit process over one archive."""

    def __init__(self, log: Log, store: Store) -> None:
        self.log = log
        self.store = store
        self.archived = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Migrate the archive, then follow the log until `stop`."""
        await asyncio.to_thread(self.store.migrate)
        head = await asyncio.to_thread(self.store.head)
        self.archived = head.seq if head is not None else 0
        following = asyncio.create_task(self._follow(), name="follow")
        waiting = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((following, waiting), return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            waiting.cancel()
            following.result()
        following.cancel()

    async def _follow(self) -> None:
        async for batch in gathered(self.log.read(self.archived)):
            await self._archive(batch)

    async def _archive(self, batch: list[Entry]) -> None:
        """Until the database takes it: a full disk, or one that is away, makes the archive wait, and is named."""
        while True:
            try:
                await asyncio.to_thread(self.store.append, batch)
                self.archived = batch[-1].seq
                return
            except Unavailable as error:
                logger.error("the archive waits at %d: %s", self.archived, error)
                await asyncio.sleep(RETRY_S)


async def gathered(batches: AsyncIterator[list[Entry]]) -> AsyncIterator[list[Entry]]:
    """Fewer, larger batches: one transaction costs one fsync, whatever its size."""
    async for batch in batches:
        for start in range(0, len(batch), BATCH_MAX):
            yield batch[start : start + BATCH_MAX]
        if batch:
            await asyncio.sleep(GATHER_S)
