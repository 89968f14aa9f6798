"""Events of the archive from any place on, a bounded handful at a time: what the stream, the
gateway's pages and exports are made of.

It reads the database and nothing else, so whoever comes back with the id of the last event that
they have is given the next one, whatever died in between. Blocking: call it from a thread.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from services.audit.export.events import CloudEvent, Position, encode, events
from services.audit.store.repeats import repeated
from services.audit.store.store import Record, Store

# Commits looked at for one handful, most of which hold a few events.
SCAN_MAX: Final = 1_024


class Handful(msgspec.Struct, frozen=True):
    """Encoded events with their ids; `upto` is the place behind them, which may lie behind commits
    that held none.
    """

    events: list[tuple[str, bytes]]
    upto: Position


def records_from(store: Store, after: Position, limit: int | None = None) -> Iterator[Record]:
    """The commits that may hold events behind `after`."""
    whole = after == Position(after.seq)
    return store.commits(after=after.seq if whole else after.seq - 1, limit=limit)


def events_of(store: Store, record: Record, source: str) -> Iterator[tuple[Position, CloudEvent]]:
    """Return all events of a commit of this archive. Raises as the store does."""
    return events(record, source, repeated(store, record))


def take(store: Store, source: str, after: Position, count_max: int, bytes_max: int) -> Handful:
    """The next events behind `after`: at most `count_max` of at most `bytes_max` together, one at
    least.

    Raises as the store does.
    """
    found: list[tuple[str, bytes]] = []
    size = 0
    for record in records_from(store, after, SCAN_MAX):
        for place, event in events_of(store, record, source):
            if place <= after:
                continue
            data = encode(event)
            size += len(data)
            if len(found) >= count_max or (found and size > bytes_max):
                return Handful(found, after)
            found.append((event.id, data))
            after = place
        after = Position(record.seq)
    return Handful(found, after)


def chain_hash(store: Store, seq: int) -> str | None:
    """The hash of the archived commit `seq`; None when it is not there."""
    records = store.between(seq, seq)
    return records[0].hash if records else None
