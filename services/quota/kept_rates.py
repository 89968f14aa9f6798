"""Keeps the marks of the rates in a store, so that a restart neither frees nor closes a minute.

One write at a time for each page: requests that come meanwhile wait for it, and the next write
covers all of them. The store refuses a write on top of one that this process has not read. Then it
is read again: a later term's page ends this process, an earlier term's is merged, because that
process has just given its last slices. Test: tests/integration/test_rate_limits.py.
"""

import asyncio
import logging
from typing import Final

import msgspec

from libs.common.errors import Fenced, Unavailable
from libs.common.transport.pages import Overtaken, PageStore
from services.quota.rates import PAGES, Account, Page, Rates, page_of

# Between tries to read the store. Until one succeeds, no mark tells a successor what was given.
AGAIN_S: Final = 1.0
# Writes of one page in a row that another process may come before.
TRIES: Final = 3

logger = logging.getLogger(__name__)
_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Page)


class KeptRates:
    """The store of one ledger. `epoch` is this process's term."""

    def __init__(self, store: PageStore, rates: Rates, epoch: int) -> None:
        self.store = store
        self.rates = rates
        self.epoch = epoch
        self.revisions = [0] * PAGES
        self.locks = [asyncio.Lock() for _ in range(PAGES)]
        self.restoring = asyncio.Lock()
        self.restored = False
        self.failed = False

    async def keep_trying(self) -> None:
        """Restore again and again until it succeeds; then store the marks of what was given
        meanwhile, and wait until cancelled. Raises Fenced.
        """
        while not (self.restored and await self._all_covered()):
            await asyncio.sleep(AGAIN_S)
            if not self.restored:
                await self.try_to_restore()
        await asyncio.Event().wait()

    async def _all_covered(self) -> bool:
        """Store the marks of all accounts; return whether the store took them."""
        try:
            for account in tuple(self.rates.limits):
                await self.cover(account)
        except Unavailable as error:
            logger.warning("what was given is not stored yet: %s", error)
            return False
        return True

    async def try_to_restore(self) -> None:
        """Restore. If the store cannot be read, give nothing in this minute, and later without it.

        Servers of an earlier version do not let quota read the store. A restart then may give a
        minute's budget again.
        """
        try:
            await self._restore()
        except Unavailable as error:
            if not self.failed:
                logger.warning("a restart of quota may give a minute's budget again: %s", error)
            self.failed = True

    async def _restore(self) -> None:
        """Read what earlier processes gave, once. Raises Unavailable, Fenced.

        A second reading would count this process's own pages as another one's.
        """
        async with self.restoring:
            if self.restored:
                return
            found = await asyncio.gather(*(self.store.get(number) for number in range(PAGES)))
            self.revisions = [revision for _, revision in found]
            self.rates.restore(page for data, _ in found if (page := self._read(data)) is not None)
            self.restored = True

    async def cover(self, account: Account) -> None:
        """Return when a stored mark covers what the account got. Raises Unavailable, Fenced."""
        number = page_of(account)
        async with self.locks[number]:
            for _ in range(TRIES):
                if not self.restored or self.rates.is_covered(account):
                    return
                await self._store(number)
            if self.rates.is_covered(account):
                return
        raise Unavailable("other processes keep writing the rates: ask again")

    async def _store(self, number: int) -> None:
        page = self.rates.page(number, self.epoch)
        try:
            self.revisions[number] = await self.store.put(
                number, _encode(page), self.revisions[number]
            )
        except (Overtaken, Unavailable) as error:
            # The outcome of an unanswered write is unknown too.
            data, revision = await self.store.get(number)
            other = self._read(data)
            self.revisions[number] = revision
            if other is not None and other.epoch != self.epoch:
                self.rates.merge(other)
            if isinstance(error, Unavailable):
                raise
            return
        self.rates.stored(page)

    def _read(self, data: bytes) -> Page | None:
        """Return a page; None if it is missing or cannot be read. Raises Fenced for a later
        term's.
        """
        try:
            page = _decoder.decode(data) if data else None
        except msgspec.DecodeError:
            return None
        if page is not None and page.epoch > self.epoch:
            raise Fenced(f"quota of term {page.epoch} gives out the rates: this one stops")
        return page
