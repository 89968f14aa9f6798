"""Reads events of the archive from any position on, in bounded batches.

The stream, the gateway's pages and exports use it. It reads only the database. So a reader that
returns with the id of its last event gets the next one, even if processes died in between.
Blocking: call it from a thread.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from services.audit.export.events import CloudEvent, Position, encode, events
from services.audit.store.repeats import repeated
from services.audit.store.store import Record, Store

# The most commits read for one batch.
SCAN_MAX: Final = 1_024


class EventBatch(msgspec.Struct, frozen=True):
    """Encoded events with their ids.

    `upto` is the position after them, and after commits without events that follow.
    """

    events: list[tuple[str, bytes]]
    upto: Position


def records_from(store: Store, after: Position, limit: int | None = None) -> Iterator[Record]:
    """Yield the commits that may hold events after `after`."""
    whole = after == Position(after.seq)
    return store.commits(after=after.seq if whole else after.seq - 1, limit=limit)


def events_of(store: Store, record: Record, source: str) -> Iterator[tuple[Position, CloudEvent]]:
    """Yield all events of a commit of this archive. Raises as the store does."""
    return events(record, source, repeated(store, record))


def take(store: Store, source: str, after: Position, count_max: int, bytes_max: int) -> EventBatch:
    """Return the next events after `after`: at most `count_max`, of at most `bytes_max` together.

    The first event is returned even if it is larger. Raises as the store does.
    """
    taken: list[tuple[str, bytes]] = []
    size = 0
    for record in records_from(store, after, SCAN_MAX):
        for place, event in events_of(store, record, source):
            if place <= after:
                continue
            data = encode(event)
            size += len(data)
            if len(taken) >= count_max or (taken and size > bytes_max):
                return EventBatch(taken, after)
            taken.append((event.id, data))
            after = place
        after = Position(record.seq)
    return EventBatch(taken, after)


def chain_hash(store: Store, seq: int) -> str | None:
    """Return the hash of the archived commit `seq`; None if the archive does not hold it."""
    records = store.between(seq, seq)
    return records[0].hash if records else None
