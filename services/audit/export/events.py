"""Turns archived commits into CloudEvents 1.0 (JSON, structured mode).

Each fact becomes one event, and so does each entry of a batch of access records. An event depends
only on its record and on the records before it in the archive. So streams, pages and exports agree,
and each of them can be made again. This holds for every kind of fact, and for broken commits too.
The id of an event is its position: SEQUENCE-POSITION, for an access entry SEQUENCE-POSITION-ENTRY.
An event carries the chain's hash of its commit. Consumers read archives of many years, so fields
are only added.
"""

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from libs.common.errors import Corrupt, Refused
from libs.common.messages import access_entry
from libs.common.messages.access_entry import AccessEntry
from libs.common.subjects import is_foreign
from services.audit.store.reading import NS_MAX, UNREADABLE, commit_facts, read
from services.audit.store.store import Record

TYPE: Final = "io.muster."
ACCESS: Final = "access.recorded"
UNREADABLE_KIND: Final = "commit.unreadable"
# The suffix of the kind of a fact that every fold ignores, so that a consumer that counts a kind
# does not count it.
IGNORED: Final = ".ignored"
REPEATED: Final = (
    "the job was submitted before, with the same Idempotency-Key: this fact made no other"
)
FOREIGN: Final = "{writer} may not record this fact"
# One message of a server's default size holds it.
EVENT_BYTES_MAX: Final = 768 << 10
# What is nested deeper in a fact is left out.
DEPTH_MAX: Final = 32
# The subject of an event is the first of these fields that its data has.
SUBJECTS: Final = ("job_id", "node_id", "key_id", "name", "model", "tenant")
ACCESS_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(AccessEntry))
ID_NUMBER_MAX: Final = (1 << 63) - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_encode: Final = msgspec.json.Encoder().encode


class Position(NamedTuple):
    """The position of an event in the archive.

    For the end of a whole commit or fact the missing numbers are the highest.
    """

    seq: int
    position: int = ID_NUMBER_MAX
    entry: int = ID_NUMBER_MAX


BEGINNING: Final = Position(0)


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of the specification, then Muster's own.

    `sequence` is padded with zeros, as the specification's extension requires.
    """

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str | UnsetType = UNSET
    time: str | UnsetType = UNSET
    datacontenttype: str = "application/json"
    sequence: str
    chainhash: str
    writer: str
    data: Any


def parse_position(text: str) -> Position:
    """Parse the id of an event, or only its first numbers; empty means the beginning.

    Raises Refused.
    """
    parts = text.split("-") if text else []
    if len(parts) > 3 or not all(
        part.isascii() and part.isdigit() and len(part) < 20 for part in parts
    ):
        raise Refused(
            f"after: {text[:64]!r} is not an event's id: write SEQUENCE, SEQUENCE-POSITION or "
            "SEQUENCE-POSITION-ENTRY"
        )
    numbers = [min(int(part), ID_NUMBER_MAX) for part in parts]
    return Position(*numbers) if numbers else BEGINNING


def show_position(position: Position) -> str:
    """Return the id that stands for a position."""
    return "-".join(str(number) for number in position if number != ID_NUMBER_MAX)


def source_of(cluster_id: str) -> str:
    """Return the CloudEvents source of a cluster, which is a URI reference."""
    return quote(cluster_id, safe="") or "muster"


def events(
    record: Record, source: str, repeated: frozenset[int] = frozenset()
) -> Iterator[tuple[Position, CloudEvent]]:
    """Yield all events of a commit in order, each with its position.

    `repeated`: the positions of submissions that every fold ignores. It also ignores facts that
    their writer may not record.
    """
    if read(record.seq, record.subject, record.data) == UNREADABLE:
        yield _event(
            record,
            source,
            place=Position(record.seq, 0),
            kind=UNREADABLE_KIND,
            at_ns=0,
            data={"commit": _plain(record.data, 0)},
        )
        return
    for position, fact in enumerate(commit_facts(record.data)):
        why = _ignored(record.subject, fact)
        entries = _entries(fact) if not why else []
        for number, entry in enumerate(entries):
            data = dict(zip(ACCESS_FIELDS, entry, strict=True))
            yield _event(
                record,
                source,
                place=Position(record.seq, position, number),
                kind=ACCESS,
                at_ns=entry[0],
                data=data,
            )
        if entries:
            fact = {name: value for name, value in fact.items() if name != "entries"}
        kind = fact["kind"]
        if why or position in repeated:
            kind, fact = kind + IGNORED, {**fact, "ignored": True, "reason": why or REPEATED}
        if not entries or fact.get("dropped"):  # dropped entries are reported by an event too
            yield _event(
                record,
                source,
                place=Position(record.seq, position),
                kind=kind,
                at_ns=record.at_ns,
                data=_plain(fact, 0),
            )


def _ignored(writer: str, fact: dict[str, Any]) -> str:
    """Return why every fold ignores this fact whatever is in the log; else empty."""
    node_id = fact.get("node_id")
    named = node_id if isinstance(node_id, str) else None
    return FOREIGN.format(writer=writer) if is_foreign(writer, fact["kind"], named) else ""


def encode(event: CloudEvent) -> bytes:
    """Return the event's JSON of at most EVENT_BYTES_MAX.

    A note replaces the data of a larger event.
    """
    data = _encode(event)
    if len(data) <= EVENT_BYTES_MAX:
        return data
    note = {"left_out": f"{len(data)} bytes: the archive has them, in the commit of this sequence"}
    return _encode(msgspec.structs.replace(event, data=note, subject=UNSET))


def _event(
    record: Record,
    source: str,
    place: Position,
    kind: str,
    at_ns: int,
    data: Any,  # noqa: ANN401
) -> tuple[Position, CloudEvent]:
    about = next(
        (data[name] for name in SUBJECTS if data.get(name) and isinstance(data[name], str)), UNSET
    )
    event = CloudEvent(
        id=show_position(place),
        source=source,
        type=TYPE + kind,
        subject=about,
        time=_time(at_ns) if 0 < at_ns <= NS_MAX else UNSET,
        sequence=f"{record.seq:020d}",
        chainhash=record.hash,
        writer=record.subject,
        data=data,
    )
    return place, event


def _entries(fact: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the entries of a batch of access records.

    Other facts have none, nor has a batch that cannot be read: it becomes one event as it is.
    """
    batch = fact.get("entries")
    if fact["kind"] != ACCESS or not isinstance(batch, bytes):
        return []
    try:
        return [msgspec.structs.astuple(entry) for entry in access_entry.unpack(batch)]
    except Corrupt:
        return []


def _plain(value: Any, depth: int) -> Any:  # noqa: ANN401
    """Return a MessagePack value in a form that JSON can hold; bytes become base64."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if depth >= DEPTH_MAX:
        return "(deeper)"
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): _plain(each, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value]
    return str(value)


def _time(at_ns: int) -> str:
    moment = EPOCH + timedelta(microseconds=at_ns // 1_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
