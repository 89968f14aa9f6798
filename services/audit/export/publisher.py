"""Publishes every event of the archive to the stream AUDIT, in order and once.

It continues after the stream's own last message. So message n is event n of the log's whole life,
also after the stream was lost and written again. If the last message does not agree with the
archive, one of the two was changed: the publisher then logs the error and publishes nothing. A full
stream drops its oldest messages; the archive has all of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import msgspec

from libs.common.errors import Corrupt, MusterError, Unavailable
from libs.common.transport.stream_nats import NatsStream, Stored
from services.audit.export.events import BEGINNING, Position, parse_position
from services.audit.export.feed import chain_hash, take
from services.audit.store.store import Store

BATCH_EVENTS: Final = 256
BATCH_BYTES: Final = 2 << 20
RETRY_S: Final = 1.0
# Time until an error that only an operator can fix is logged again.
AGAIN_S: Final = 60.0

logger = logging.getLogger(__name__)


class PublishedEvent(msgspec.Struct, frozen=True):
    """The fields of a published event that are compared with the archive."""

    id: str
    chainhash: str


class Publisher:
    """The publisher of one archive's events.

    `beyond(seq)` returns when the archive holds more than commit `seq`. `at` is the position of the
    last event in the stream.
    """

    def __init__(
        self,
        store: Store,
        stream: NatsStream,
        source: str,
        beyond: Callable[[int], Awaitable[None]],
    ) -> None:
        self.store = store
        self.stream = stream
        self.source = source
        self.beyond = beyond
        self.at = BEGINNING

    async def run(self) -> NoReturn:
        """Publish for ever. The archive never waits for it."""
        while True:
            try:
                await self._follow()
            except Unavailable as error:
                logger.warning("publishing to %s is delayed: %s", self.stream.name, error)
                await asyncio.sleep(RETRY_S)
            except MusterError as error:
                logger.error("nothing is published: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> NoReturn:
        await self.stream.make()
        last = await self.stream.last()
        number = last.seq if last is not None else 0
        self.at = await self._position_of(last)
        while True:
            batch = await asyncio.to_thread(
                take, self.store, self.source, self.at, BATCH_EVENTS, BATCH_BYTES
            )
            if batch.events:
                number = await self.stream.append(batch.events, number)
            if batch.upto == self.at:
                await self.beyond(self.at.seq)
            self.at = batch.upto

    async def _position_of(self, last: Stored | None) -> Position:
        """Return the position of the stream's last event, once the archive has it.

        Raises Corrupt if the two do not agree.
        """
        if last is None:
            return BEGINNING
        try:
            published = msgspec.json.decode(last.data, type=PublishedEvent)
        except msgspec.DecodeError as error:
            name = self.stream.name
            raise Corrupt(
                f"message {last.seq} of {name} is not an event ({error}): delete the stream "
                f"{name}; the audit service then writes it again"
            ) from error
        position = parse_position(published.id)
        await self.beyond(position.seq - 1)
        if await asyncio.to_thread(chain_hash, self.store, position.seq) != published.chainhash:
            raise Corrupt(
                f"event {published.id} of {self.stream.name} has another hash than the archive: "
                "run `muster audit verify`"
            )
        return position
