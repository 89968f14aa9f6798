"""Requests to the archive over the bus, one page at a time, by services that cannot open it.

Audit answers them (`services/audit/answers.py`): with the exact bytes of commits that the log no
longer holds, with events for consumers, and with the newest signed head. A reader of history uses
the log where it can, and the archive for the rest.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Trimmed, Unavailable
from libs.common.messages import usage_messages
from libs.common.messages.usage_messages import (
    ChargesAnswer,
    ChargesAsk,
    UsageAnswer,
    UsageAsk,
)
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Log

# Bytes of commits in one answer. A single commit may have 512 KiB, a message 1 MiB.
PAGE_BYTES: Final = 384 << 10
ANSWER_S: Final = 5.0
# A long time has many facts to read.
USAGE_S: Final = 60.0
JOB_SEQS_MAX: Final = 1_000
# Bytes of events in one answer. A single event may have 768 KiB.
EVENTS_BYTES: Final = 256 << 10
WAIT_S_MAX: Final = 30.0

_encode = msgspec.msgpack.Encoder().encode
_seqs = msgspec.msgpack.Decoder(list[int])
_pages = msgspec.msgpack.Decoder(list[Entry])


class ArchiveAsk(msgspec.Struct, frozen=True):
    """A request for the commits from `after` + 1 to `upto`, as many as fit into one answer."""

    after: int
    upto: int


class EventsAsk(msgspec.Struct, frozen=True):
    """A request for at most `limit` events behind the one with id `after`; empty: from the first.

    If there are none, the archive waits for up to `wait_ms`.
    """

    after: str
    limit: int
    wait_ms: int = 0


class EventsPage(msgspec.Struct, frozen=True):
    """Events as (id, JSON). The next request starts after `upto`.

    `refused` is the fault of the request.
    """

    events: list[tuple[str, bytes]]
    upto: str
    refused: str = ""


def page(entries: Sequence[Entry]) -> bytes:
    """Return an answer with the first of these entries: at least one, up to PAGE_BYTES."""
    size, count = 0, 0
    for entry in entries:
        size += len(entry.data)
        if count and size > PAGE_BYTES:
            break
        count += 1
    return _encode(entries[:count])


async def archived(bus: Bus, after: int, upto: int) -> AsyncGenerator[list[Entry], None]:
    """Iterate over consecutive entries from `after` + 1 to `upto`.

    Raises Unavailable if the archive does not answer, or does not hold them.
    """
    while after < upto:
        try:
            answer = await bus.request(
                subjects.ask_audit("commits"), _encode(ArchiveAsk(after, upto)), ANSWER_S
            )
        except Unavailable as error:
            raise Unavailable(
                f"commit {after + 1} was trimmed from the log, and the archive does not "
                f"answer: check that audit runs ({error})"
            ) from error
        found = _pages.decode(answer)
        if [entry.seq for entry in found] != list(
            range(after + 1, after + 1 + len(found))
        ) or not found:
            raise Unavailable(
                f"commit {after + 1} is neither in the log nor in the archive: see "
                "docs/howto/trim.md"
            )
        after = found[-1].seq
        yield found


async def holds(bus: Bus, seq: int) -> bool:
    """Return whether the archive holds commit `seq`. Raises Unavailable."""
    ask = _encode(ArchiveAsk(seq - 1, seq))
    return bool(_pages.decode(await bus.request(subjects.ask_audit("commits"), ask, ANSWER_S)))


async def whole(log: Log, bus: Bus, after: int, upto: int) -> AsyncGenerator[list[Entry], None]:
    """Iterate over consecutive entries from `after` + 1 to `upto` or a little beyond.

    They come from the log, or from the archive if the log was trimmed there. An empty batch means
    that the log has nothing newer. Raises Unavailable like `archived`.
    """
    try:
        async with aclosing(cast(AsyncGenerator[list[Entry], None], log.read(after))) as batches:
            async for batch in batches:
                yield batch
                after += len(batch)
                if after >= upto:
                    return
    except Trimmed:
        async with aclosing(archived(bus, after, upto)) as pages:
            async for found in pages:
                yield found


async def job_seqs(bus: Bus, job_id: str, after: int = 0) -> list[int]:
    """Return the sequences of the next commits about a job after `after`.

    One answer covers at most JOB_SEQS_MAX facts. The list is empty for an unknown job, and after
    the last commit. Raises Unavailable.
    """
    asked = f"{job_id} {after}" if after else job_id  # no id has a space
    return _seqs.decode(await bus.request(subjects.ask_audit("job"), asked.encode(), ANSWER_S))


async def events(bus: Bus, after: str, limit: int, wait_s: float = 0.0) -> EventsPage:
    """Return events behind the one with id `after`; none if there are none within `wait_s`.

    Raises Refused for an invalid id, and Unavailable.
    """
    ask = _encode(EventsAsk(after, limit, int(wait_s * 1_000)))
    found = msgspec.msgpack.decode(
        await bus.request(subjects.ask_audit("events"), ask, wait_s + ANSWER_S), type=EventsPage
    )
    if found.refused:
        raise Refused(found.refused)
    return found


async def usage(bus: Bus, ask: UsageAsk) -> UsageAnswer:
    """Return what was used and charged in a time. Raises Unavailable."""
    answer = await bus.request(subjects.ask_audit("usage"), usage_messages.encode(ask), USAGE_S)
    return usage_messages.decode_answer(answer)


async def charges(bus: Bus, ask: ChargesAsk) -> ChargesAnswer:
    """Return the newest charges of a time. Raises Unavailable."""
    answer = await bus.request(subjects.ask_audit("charges"), usage_messages.encode(ask), USAGE_S)
    return usage_messages.decode_charges(answer)


async def head(bus: Bus) -> bytes:
    """Return the newest signed head as JSON; empty if none was signed. Raises Unavailable."""
    return await bus.request(subjects.ask_audit("head"), b"", ANSWER_S)
