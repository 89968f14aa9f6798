"""Reads a `Store` from the event loop, in threads; implements `trimmer.Archive`."""

import asyncio

from services.audit.store.store import Record, Store


class Archive:
    """One store, read in threads so that the event loop does not block."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def head_seq(self) -> int:
        head = await asyncio.to_thread(self.store.head_now)
        return head.seq if head is not None else 0

    async def between(self, first: int, last: int) -> list[Record]:
        return await asyncio.to_thread(self.store.between, first, last)

    async def young(self, after: int, since_ns: int, until_ns: int) -> int:
        return await asyncio.to_thread(self.store.young, after, since_ns, until_ns)
