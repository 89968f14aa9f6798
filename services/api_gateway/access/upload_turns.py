"""Orders the requests of one gateway that store, find and remove the same archive of uploads.

Equal archives are stored one after another, so the later ones find the first. Pruning spares each
archive that a request found within the last hour, because its job may be about to be submitted. A
removal on request does not, but it spares the archives whose jobs and models are being recorded. A
request that asks for an archive during its removal waits for the end of that.
Tests: tests/unit/test_upload_turns.py, tests/attack/test_upload_floods.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from libs.common.transport.uploads import Upload, UploadStore
from services.api_gateway.intents.prune_intents import YOUNG_S

# The tenant and the SHA-256 of an archive.
Key = tuple[str, str]

# More archives than a bucket of the default size holds. Beyond it the oldest marks are dropped.
FOUND_MAX: Final = 100_000


class UploadTurns:
    """The archives that requests of this gateway store, find and remove at the moment.

    `storing` are the bytes of archives on their way to the bucket; http/upload_room.py bounds them.
    """

    def __init__(self) -> None:
        self.storing: dict[Key, int] = {}
        # When each archive was found last, the oldest first.
        self._found: dict[Key, int] = {}
        # How many requests look for each archive, or record a job that uses it, at the moment.
        self._using: dict[Key, int] = {}
        self._stored: dict[Key, asyncio.Event] = {}
        self._removed: dict[Key, asyncio.Event] = {}

    def young(self, now_ns: int) -> dict[Key, int]:
        """Return the archives that were found within YOUNG_S, with the times."""
        while self._found:
            oldest = next(iter(self._found))
            is_young = now_ns - self._found[oldest] < YOUNG_S * 1_000_000_000
            if is_young and len(self._found) <= FOUND_MAX:
                break
            del self._found[oldest]
        return self._found

    async def find(self, store: UploadStore, key: Key, now_ns: int) -> Upload | None:
        """Return an archive, which is young from now on; None if it is not stored.

        Raises Unavailable.
        """
        while (ended := self._removed.get(key)) is not None:
            await ended.wait()
        with self.uses(key):
            upload = await store.find(*key)
        if upload is not None:
            self._found.pop(key, None)
            self._found[key] = now_ns
            self.young(now_ns)
        return upload

    @contextmanager
    def uses(self, key: Key) -> Iterator[None]:
        """Let no request of this gateway begin to remove the archive within the block."""
        self._using[key] = self._using.get(key, 0) + 1
        try:
            yield
        finally:
            self._using[key] -= 1
            if not self._using[key]:
                del self._using[key]

    async def remove(
        self, store: UploadStore, key: Key, needed: Container[Key], now_ns: int
    ) -> bool:
        """Remove an archive; return False if it is needed, young, or in use by a request.

        Raises Unavailable.
        """
        return key not in self._stored and await self.undo(store, key, needed, now_ns)

    async def undo(self, store: UploadStore, key: Key, needed: Container[Key], now_ns: int) -> bool:
        """Remove an archive within the block that stored it; as `remove` otherwise."""
        if key in needed or key in self.young(now_ns):
            return False
        return await self._removes(store, key)

    async def discard(
        self, store: UploadStore, key: Key, check: Callable[[], Awaitable[None]]
    ) -> bool:
        """Remove an archive even if it is young; return False if it is in use by a request.

        `check` raises if a job or a model uses the archive. No request begins to use the archive
        between the check and the removal. Raises Unavailable.
        """
        if key in self._stored or not await self._removes(store, key, check):
            return False
        self._found.pop(key, None)
        return True

    async def _removes(
        self, store: UploadStore, key: Key, check: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        if key in self._using or key in self._removed:
            return False
        with _busy(self._removed, key):
            if check is not None:
                await check()
            await store.remove(*key)
        return True

    @asynccontextmanager
    async def stores(self, key: Key, counted: int) -> AsyncIterator[None]:
        """Count the bytes of an archive while the block stores it.

        The block begins when no other request stores or removes an equal archive.
        """
        while (ended := self._stored.get(key) or self._removed.get(key)) is not None:
            await ended.wait()
        with _busy(self._stored, key):
            self.storing[key] = counted
            try:
                yield
            finally:
                del self.storing[key]


@contextmanager
def _busy(events: dict[Key, asyncio.Event], key: Key) -> Iterator[None]:
    """Let other requests wait for the end of the block."""
    event = events[key] = asyncio.Event()
    try:
        yield
    finally:
        del events[key]
        event.set()
