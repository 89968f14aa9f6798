"""Writes the stream AUDIT: every event of the archive, in order, once, behind the database that has
it already.

Where it stands is read from the stream's own last message; the stream's numbers then hold: the n-th
message is the n-th event of the log's whole life, also when the stream was lost and is written
anew. What it finds there must be what the archive says (else the one or the other was changed):
then it says so and publishes nothing. A stream that is full drops its oldest; the archive has
everything.
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
# What only a person can put right is said again after so long.
AGAIN_S: Final = 60.0

logger = logging.getLogger(__name__)


class Told(msgspec.Struct, frozen=True):
    """What is read back of an event."""

    id: str
    chainhash: str


class Publisher:
    """`beyond(seq)` returns when the archive holds more than commit `seq`.

    `at` is the place of the last event that the stream holds.
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
        """For ever; the archive never waits for it."""
        while True:
            try:
                await self._follow()
            except Unavailable as error:
                logger.warning("the stream %s waits: %s", self.stream.name, error)
                await asyncio.sleep(RETRY_S)
            except MusterError as error:
                logger.error("nothing is published: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> NoReturn:
        await self.stream.make()
        last = await self.stream.last()
        number = last.seq if last is not None else 0
        self.at = await self._standing(last)
        while True:
            found = await asyncio.to_thread(
                take, self.store, self.source, self.at, BATCH_EVENTS, BATCH_BYTES
            )
            if found.events:
                number = await self.stream.append(found.events, number)
            if found.upto == self.at:
                await self.beyond(self.at.seq)
            self.at = found.upto

    async def _standing(self, last: Stored | None) -> Position:
        """The place of the stream's last event, once the archive has it.

        Raises Corrupt when the two do not agree.
        """
        if last is None:
            return BEGINNING
        try:
            told = msgspec.json.decode(last.data, type=Told)
        except msgspec.DecodeError as error:
            name = self.stream.name
            raise Corrupt(
                f"message {last.seq} of {name} is no event ({error}): delete the stream "
                f"{name}, it is written anew"
            ) from error
        place = parse_position(told.id)
        await self.beyond(place.seq - 1)
        if await asyncio.to_thread(chain_hash, self.store, place.seq) != told.chainhash:
            raise Corrupt(
                f"event {told.id} of {self.stream.name} names another hash than the archive: "
                "run `muster audit verify`"
            )
        return place
