"""Answers requests to the audit service over the bus.

A request asks for commits that the log no longer holds, for the commits that name a job, for events
from a position on, or for the signed head. Each answer is read from the database in a thread. A
request for events that do not exist yet waits a while for them. If the archive cannot be read, the
asker gets an error at once, and this process's log gives the reason.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from libs.common import reading, subjects
from libs.common.errors import MusterError, Refused, Unavailable
from libs.common.facts import AnyFact, Unknown
from libs.common.messages import usage_messages
from libs.common.messages.usage_messages import (
    ChargesAnswer,
    ChargesAsk,
    UsageAnswer,
    UsageAsk,
)
from libs.common.transport.archive import (
    ANSWER_S,
    EVENTS_BYTES,
    JOB_SEQS_MAX,
    USAGE_S,
    WAIT_S_MAX,
    ArchiveAsk,
    EventsAsk,
    EventsPage,
    page,
)
from libs.common.transport.bus import Bus, Handler, RequestFailed
from libs.common.transport.log import Entry
from services.audit.chain.heads import Head, encode
from services.audit.export.bill import KINDS, Bill
from services.audit.export.charges import Newest
from services.audit.export.events import Position, parse_position, show_position
from services.audit.export.feed import EventBatch, take
from services.audit.export.fleet_use import CHARGE_KINDS, NODE_KINDS, FleetUse
from services.audit.store.store import Store

# The most commits in one answer; `libs.common.transport.archive` bounds its bytes.
ASKED_MAX: Final = 256
EVENTS_MAX: Final = 1_000
# A sequence in a request for a job's commits.
AFTER: Final = re.compile("[0-9]{1,18}")
# Later than every fact.
FOR_EVER: Final = (1 << 63) - 1
# A bill is given up before its asker waits no longer, so that the asker gets the reason.
READ_S: Final = USAGE_S - ANSWER_S

_encode: Final = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Answers:
    """The answers from one archive.

    `beyond(seq)` returns when the archive holds more than commit `seq`. `head` returns the newest
    signed head, `log_end` the last sequence of the log.
    """

    def __init__(
        self,
        store: Store,
        source: str,
        beyond: Callable[[int], Awaitable[None]],
        head: Callable[[], Awaitable[Head | None]],
        log_end: Callable[[], Awaitable[int]],
    ) -> None:
        self.store = store
        self.source = source
        self.beyond = beyond
        self.head = head
        self.log_end = log_end
        # One bill at a time, because each reads much.
        self._billing = asyncio.Lock()

    async def listen(self, bus: Bus) -> None:
        for name, handler, concurrent in (
            ("commits", self._commits, False),
            ("job", self._job, False),
            ("events", self._events, True),
            ("head", self._head, False),
            ("usage", self._usage, True),
            ("charges", self._charges, True),
        ):
            await bus.subscribe(
                subjects.ask_audit(name), _failing_at_once(handler), concurrent=concurrent
            )

    async def _commits(self, subject: str, data: bytes) -> bytes:
        ask = msgspec.msgpack.decode(data, type=ArchiveAsk)
        records = await asyncio.to_thread(
            self.store.between, ask.after + 1, min(ask.upto, ask.after + ASKED_MAX)
        )
        return page([Entry(record.seq, record.subject, record.data) for record in records])

    async def _job(self, subject: str, data: bytes) -> bytes:
        job_id, _, after = data.decode(errors="replace").partition(" ")
        found = await asyncio.to_thread(
            self.store.commits_about,
            job_id,
            after=int(after) if AFTER.fullmatch(after) else 0,
            limit=JOB_SEQS_MAX,
        )
        return _encode(found)

    async def _events(self, subject: str, data: bytes) -> bytes:
        ask = msgspec.msgpack.decode(data, type=EventsAsk)
        try:
            after = parse_position(ask.after)
            await self._check_reached(after.seq)
        except Refused as error:
            return _encode(EventsPage([], "", str(error)))
        limit, until = (
            min(ask.limit, EVENTS_MAX),
            asyncio.get_running_loop().time() + min(ask.wait_ms / 1_000, WAIT_S_MAX),
        )
        batch = await self._take(after, limit)
        while not batch.events and (batch.upto != after or await self._grows(after.seq, until)):
            after = batch.upto
            batch = await self._take(after, limit)
        return _encode(EventsPage(batch.events, show_position(batch.upto)))

    async def _check_reached(self, seq: int) -> None:
        """Raise Refused if neither the archive nor the log has come as far as commit `seq`.

        The position is then of a history that a restore ended. A reader that waited there would
        miss the events of the new one up to it.
        """
        head = await asyncio.to_thread(self.store.head_now)
        if seq <= (head.seq if head is not None else 0):
            return
        try:
            end = await self.log_end()
        except Unavailable:
            return
        if seq > end:
            raise Refused(
                f"after: the log ends at commit {end}, before {seq}: it was probably restored to "
                "an earlier point. Continue after the last commit of the backup; see "
                "docs/howto/audit.md"
            )

    async def _take(self, after: Position, limit: int) -> EventBatch:
        return await asyncio.to_thread(take, self.store, self.source, after, limit, EVENTS_BYTES)

    async def _grows(self, seq: int, until: float) -> bool:
        """Return whether more than commit `seq` is archived before the loop's time is `until`."""
        try:
            async with asyncio.timeout_at(until):
                await self.beyond(seq)
        except TimeoutError:
            return False
        return True

    async def _usage(self, subject: str, data: bytes) -> bytes:
        """Answer with a bill."""
        ask, until_s = usage_messages.decode_ask(data), time.monotonic() + READ_S
        async with self._billing:
            return usage_messages.encode(await asyncio.to_thread(self._bill, ask, until_s))

    async def _charges(self, subject: str, data: bytes) -> bytes:
        """Answer with the newest charges of a time."""
        ask, until_s = usage_messages.decode_charges_ask(data), time.monotonic() + READ_S
        async with self._billing:
            return usage_messages.encode(
                await asyncio.to_thread(self._newest_charges, ask, until_s)
            )

    def _newest_charges(self, ask: ChargesAsk, until_s: float) -> ChargesAnswer:
        newest, head = Newest(ask), self.store.head_now()
        for record in self.store.of_kinds(CHARGE_KINDS, ask.since_ns, ask.until_ns):
            _check_time(until_s)
            commit = reading.read_alone(record.subject, record.data)
            for fact in commit.facts:
                newest.add(fact, commit.at_ns)
        return newest.answer(head.seq if head is not None else 0)

    def _bill(self, ask: UsageAsk, until_s: float) -> UsageAnswer:
        bill, head = Bill(ask.tenant, ask.further, ask.user), self.store.head_now()
        fleet = FleetUse(ask.since_ns, ask.until_ns) if ask.fleet else None
        reads: list[tuple[Sequence[str], int, int, Callable[[AnyFact | Unknown, int], None]]] = [
            (KINDS, ask.since_ns, ask.until_ns, bill.add)
        ]
        if fleet is not None:
            # An attempt of the time is charged at its end, which may be later.
            reads.append((CHARGE_KINDS, ask.since_ns, FOR_EVER, fleet.add))
            reads.append((NODE_KINDS, 0, ask.until_ns, fleet.add))
        for kinds, since_ns, until_ns, add in reads:
            for record in self.store.of_kinds(kinds, since_ns, until_ns):
                _check_time(until_s)
                commit = reading.read_alone(record.subject, record.data)
                for fact in commit.facts:
                    add(fact, commit.at_ns)
        found = bill.answer(head.seq if head is not None else 0)
        found.fleet = fleet.answer() if fleet is not None else []
        return found

    async def _head(self, subject: str, data: bytes) -> bytes:
        try:
            head = await self.head()
        except MusterError as error:
            logger.error("the signed heads cannot be read: %s", error)
            raise RequestFailed(
                "the signed heads cannot be read: see the log of the audit service"
            ) from error
        return encode(head) if head is not None else b""


def _failing_at_once(handler: Handler) -> Handler:
    """Return the handler with its errors as answers. Details are only in this process's log."""

    async def answer(subject: str, data: bytes) -> bytes | None:
        try:
            return await handler(subject, data)
        except msgspec.DecodeError as error:
            logger.error("a question on %s cannot be read: %s", subject, error)
            raise RequestFailed(
                f"audit cannot read the question on {subject}: check that both processes run the "
                "same version of Muster"
            ) from error
        except MusterError as error:
            logger.error("a question on %s has no answer: %s", subject, error)
            raise RequestFailed(
                f"audit cannot read its archive for {subject}: see the log of the audit service"
            ) from error

    return answer


def _check_time(until_s: float) -> None:
    """Raise RequestFailed if the asker soon waits no longer."""
    if time.monotonic() > until_s:
        raise RequestFailed(
            f"audit did not read the time asked for within {READ_S:g} s: ask for a shorter time"
        )
