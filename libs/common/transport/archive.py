"""What only the archive has, asked over the bus, a page at a time, by services that may not open
its database.

Audit answers (`services/audit/answers.py`): with the exact bytes of commits that the log no longer
holds (a reader of history takes the log where it can, else this), with events for consumers
outside, and with the newest signed head.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Trimmed, Unavailable
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Log

# One answer's commits together; a single commit may be 512 KiB, and a message 1 MiB.
PAGE_BYTES: Final = 384 << 10
ANSWER_S: Final = 5.0
JOB_SEQS_MAX: Final = 1_000
# The same of events; one alone may have 768 KiB.
EVENTS_BYTES: Final = 256 << 10
WAIT_S_MAX: Final = 30.0

_encode = msgspec.msgpack.Encoder().encode
_seqs = msgspec.msgpack.Decoder(list[int])
_pages = msgspec.msgpack.Decoder(list[Entry])


class ArchiveAsk(msgspec.Struct, frozen=True):
    """The commits from `after` + 1 to `upto`, as many of them as one answer may hold."""

    after: int
    upto: int


class EventsAsk(msgspec.Struct, frozen=True):
    """At most `limit` events behind the one with id `after` (empty: from the first on); if there
    are none, they are waited for.
    """

    after: str
    limit: int
    wait_ms: int = 0


class EventsPage(msgspec.Struct, frozen=True):
    """(id, JSON) of each event; `upto` is to be asked with next.

    `refused` says what is wrong with the question.
    """

    events: list[tuple[str, bytes]]
    upto: str
    refused: str = ""


def page(entries: Sequence[Entry]) -> bytes:
    """An answer: the first of these entries, one at least, up to PAGE_BYTES."""
    size, count = 0, 0
    for entry in entries:
        size += len(entry.data)
        if count and size > PAGE_BYTES:
            break
        count += 1
    return _encode(entries[:count])


async def archived(bus: Bus, after: int, upto: int) -> AsyncGenerator[list[Entry], None]:
    """Consecutive entries from `after` + 1 to `upto`.

    Raises Unavailable when the archive does not answer, or does not hold them.
    """
    while after < upto:
        try:
            answer = await bus.request(
                subjects.ask_audit("commits"), _encode(ArchiveAsk(after, upto)), ANSWER_S
            )
        except Unavailable as error:
            raise Unavailable(
                f"commit {after + 1} was trimmed from the log, and the archive does not "
                "answer: is audit running?"
            ) from error
        found = _pages.decode(answer)
        if [entry.seq for entry in found] != list(
            range(after + 1, after + 1 + len(found))
        ) or not found:
            raise Unavailable(
                f"commit {after + 1} is neither in the log any more nor in the archive; see "
                "docs/howto/trim.md"
            )
        after = found[-1].seq
        yield found


async def whole(log: Log, bus: Bus, after: int, upto: int) -> AsyncGenerator[list[Entry], None]:
    """Consecutive entries from `after` + 1 on, up to `upto` or a little more: the log's, or the
    archive's when the log was trimmed there.

    An empty batch means that the log has nothing newer. Raises Unavailable as `archived` does.
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


async def job_seqs(bus: Bus, job_id: str) -> list[int]:
    """The commits that spoke of a job, in order, the first JOB_SEQS_MAX of them; none when the
    archive knows no such job.

    Raises Unavailable.
    """
    return _seqs.decode(await bus.request(subjects.ask_audit("job"), job_id.encode(), ANSWER_S))


async def events(bus: Bus, after: str, limit: int, wait_s: float = 0.0) -> EventsPage:
    """Events behind the one with id `after`; none when there are none within `wait_s`.

    Raises Refused for what is no id, Unavailable.
    """
    ask = _encode(EventsAsk(after, limit, int(wait_s * 1_000)))
    found = msgspec.msgpack.decode(
        await bus.request(subjects.ask_audit("events"), ask, wait_s + ANSWER_S), type=EventsPage
    )
    if found.refused:
        raise Refused(found.refused)
    return found


async def head(bus: Bus) -> bytes:
    """The newest signed head as JSON; empty when none was signed. Raises Unavailable."""
    return await bus.request(subjects.ask_audit("head"), b"", ANSWER_S)
