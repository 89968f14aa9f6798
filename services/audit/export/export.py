"""Exports the archive's events in order: one CloudEvent per line (ndjson) or row (csv).

Only one page of commits is in memory at a time. `--after` with the id of the last line continues an
export; both parts together equal the output of one run.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from services.audit.export.events import BEGINNING, CloudEvent, Position, encode
from services.audit.export.feed import events_of, records_from
from services.audit.store.store import Record, Store

FORMATS: Final = ("ndjson", "csv")
COLUMNS: Final = (
    "id",
    "time",
    "type",
    "subject",
    "writer",
    "sequence",
    "chainhash",
    "source",
    "data",
)
SEQ_MAX: Final = (1 << 63) - 1


class Span(msgspec.Struct, frozen=True):
    """The selected events: those after `after`, up to commit `until_seq`.

    Their commits were made from `since_ns` to `until_ns`, by the writers' clocks.
    """

    after: Position = BEGINNING
    until_seq: int = SEQ_MAX
    since_ns: int = 0
    until_ns: int = SEQ_MAX


def lines(store: Store, span: Span, source: str, form: str) -> Iterator[bytes]:
    """Yield the export in pieces of whole lines. Raises as the store does."""
    if form == "csv" and span.after == BEGINNING:
        yield _row(COLUMNS)
    for record in _records(store, span):
        selected = [
            event for position, event in events_of(store, record, source) if position > span.after
        ]
        if selected:
            yield b"".join(map(_csv if form == "csv" else _ndjson, selected))


def _records(store: Store, span: Span) -> Iterator[Record]:
    """Yield the selected commits. A commit without a readable time has that of the one before."""
    first = store.young(span.after.seq - 1, span.since_ns) if span.since_ns else 0
    at_ns = span.since_ns
    for record in records_from(
        store, max(span.after, Position(first - 1)) if first else span.after
    ):
        at_ns = record.at_ns or at_ns
        if record.seq > span.until_seq:
            return
        if span.since_ns <= at_ns <= span.until_ns:
            yield record


def _ndjson(event: CloudEvent) -> bytes:
    return encode(event) + b"\n"


def _csv(event: CloudEvent) -> bytes:
    shown = msgspec.json.decode(encode(event))
    shown["sequence"] = str(int(event.sequence))
    shown["data"] = msgspec.json.encode(shown["data"]).decode()
    return _row(tuple(shown.get(column, "") for column in COLUMNS))


def _row(values: tuple[Any, ...]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()
