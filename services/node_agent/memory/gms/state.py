"""Entries of resident weights and what happens to them, as state and changes.

Pure. The server computes changes (`rules.py`), carries each one out and applies it here; the agent
applies the same changes to its copy. So both always hold the same state, and `rebuild` returns the
changes from which the next server, or the next agent, starts. Tests: tests/unit/test_gms_state.py.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, assert_never

import msgspec

from services.node_agent.memory.gms.messages import Event
from services.node_agent.memory.grants import Holder

EVENTS_MAX: Final = 256


class Lock(StrEnum):
    """The mode of a session: write one layout alone, or read a published one with others."""

    RW = "rw"
    RO = "ro"


class Entry(msgspec.Struct, frozen=True):
    """Memory that stays for one model of one tenant, reached at one socket.

    `tag` is the engine's name for its use (`weights`, `kv_cache`). `limit` is in bytes. `content`
    holds the SHA-256 of each weight file, sorted: the weights that may be written and read here.
    """

    name: str
    tenant: str
    model: str
    tag: str
    device: int
    limit: int
    socket: str
    content: tuple[str, ...] = ()


class Admission(msgspec.Struct, frozen=True):
    """An attempt of a job whose processes may connect to an entry.

    `job_dir` is where its supervisor's identity stands. `content` are the weights that it uses.
    """

    key: str
    tenant: str
    job_dir: str
    content: tuple[str, ...] = ()


class Session(msgspec.Struct, frozen=True):
    """A granted lock. It ends with its connection or, after a restart, with its process."""

    number: int
    entry: str
    lock: Lock
    holder: Holder
    key: str


class Allocation(msgspec.Struct, frozen=True):
    """Physical memory of an entry. Sizes are in bytes; `slot` is its place in the layout."""

    id: str
    entry: str
    size: int
    aligned_size: int
    tag: str
    slot: int


class Metadata(msgspec.Struct, frozen=True):
    """A value that a writer stored for a place in an allocation."""

    entry: str
    key: str
    allocation: str
    offset: int
    value: bytes


class Serving(msgspec.Struct, frozen=True, tag=True):
    """An entry exists."""

    entry: Entry


class Limited(msgspec.Struct, frozen=True, tag=True):
    """A tenant may own so many bytes of a device in all its entries."""

    tenant: str
    device: int
    limit: int


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """An attempt may connect to an entry."""

    entry: str
    admission: Admission


class Dismissed(msgspec.Struct, frozen=True, tag=True):
    """An attempt ended: it may not connect to any entry."""

    key: str


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A lock was granted."""

    session: Session


class Closed(msgspec.Struct, frozen=True, tag=True):
    """A lock was given up."""

    number: int


class Kept(msgspec.Struct, frozen=True, tag=True):
    """Physical memory exists. Its descriptor travels with this change."""

    allocation: Allocation


class Noted(msgspec.Struct, frozen=True, tag=True):
    """A writer stored metadata."""

    metadata: Metadata


class Erased(msgspec.Struct, frozen=True, tag=True):
    """A writer deleted metadata."""

    entry: str
    key: str


class Committed(msgspec.Struct, frozen=True, tag=True):
    """The layout is published and its writer's lock is given up. `layout` is its hash."""

    entry: str
    layout: str
    written_by: str


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """The layout and its metadata are gone; its allocations are freed next."""

    entry: str


class Freed(msgspec.Struct, frozen=True, tag=True):
    """Physical memory was given back."""

    entry: str
    id: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left of the server that knew what processes map: the whole limit counts."""

    entry: str


class Regained(msgspec.Struct, frozen=True, tag=True):
    """Every process that could map memory of a lost entry has ended."""

    entry: str


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """An entry does not exist any more."""

    entry: str


Change = (
    Serving
    | Limited
    | Admitted
    | Dismissed
    | Opened
    | Closed
    | Kept
    | Noted
    | Erased
    | Committed
    | Cleared
    | Freed
    | Lost
    | Regained
    | Dropped
)


class Served(msgspec.Struct):
    """One entry with everything in it. `bytes` is the sum of its allocations."""

    entry: Entry
    admissions: dict[str, Admission] = {}
    sessions: dict[int, Session] = {}
    allocations: dict[str, Allocation] = {}
    metadata: dict[str, Metadata] = {}
    layout: str = ""
    written_by: str = ""
    lost: bool = False
    bytes: int = 0
    metadata_bytes: int = 0
    next_slot: int = 0
    events: list[Event] = []


class Residents(msgspec.Struct):
    """All entries of a node, and the bytes that a tenant may own by (tenant, device)."""

    served: dict[str, Served] = {}
    limits: dict[tuple[str, int], int] = {}
    last_session: int = 0


def writer(served: Served) -> Session | None:
    """Return the session that holds the write lock."""
    return next((each for each in served.sessions.values() if each.lock == Lock.RW), None)


def readers(served: Served) -> Sequence[Session]:
    """Return the sessions that hold the read lock."""
    return [each for each in served.sessions.values() if each.lock == Lock.RO]


def committed(served: Served) -> bool:
    """Return whether a layout is published."""
    return bool(served.layout)


def state_name(served: Served) -> str:
    """Return the state as the protocol names it: RW, RO, COMMITTED or EMPTY."""
    if writer(served) is not None:
        return "RW"
    if served.sessions:
        return "RO"
    return "COMMITTED" if committed(served) else "EMPTY"


def owned_bytes(served: Served) -> int:
    """Return the bytes that an entry owns: its whole limit if it is lost."""
    return served.entry.limit if served.lost else served.bytes


def by_session(residents: Residents, number: int) -> tuple[Served, Session] | None:
    """Return an open session and its entry."""
    for served in residents.served.values():
        if number in served.sessions:
            return served, served.sessions[number]
    return None


def apply(residents: Residents, change: Change) -> None:
    """Apply one change. Asserts that it fits the state."""
    match change:
        case Serving(entry):
            residents.served[entry.name] = Served(entry)
        case Limited(tenant, device, limit):
            residents.limits[tenant, device] = limit
        case Dismissed(key):
            for each in residents.served.values():
                each.admissions.pop(key, None)
        case Opened(session):
            _open(residents, session)
        case Closed(number):
            _close(residents, number)
        case Dropped(name):
            assert not residents.served[name].allocations, f"{name} still has memory"
            del residents.served[name]
        case Kept(allocation):
            _keep(residents.served[allocation.entry], allocation)
        case Noted(metadata):
            _note(residents.served[metadata.entry], metadata)
        case _:
            _apply_inside(residents.served[change.entry], change)


def _apply_inside(
    served: Served,
    change: Admitted | Erased | Committed | Cleared | Freed | Lost | Regained,
) -> None:
    match change:
        case Admitted(_, admission):
            served.admissions[admission.key] = admission
        case Erased(_, key):
            served.metadata_bytes -= len(served.metadata.pop(key).value)
        case Committed(_, layout, written_by):
            _commit(served, layout, written_by)
        case Cleared():
            _clear(served)
        case Freed(_, number):
            served.bytes -= served.allocations.pop(number).aligned_size
        case Lost():
            served.lost = True
        case Regained():
            served.lost = False
        case _:
            assert_never(change)


def _open(residents: Residents, session: Session) -> None:
    served = residents.served[session.entry]
    served.sessions[session.number] = session
    residents.last_session = max(residents.last_session, session.number)
    if session.lock == Lock.RW:
        _remember(served, Event("rw_connected"))


def _close(residents: Residents, number: int) -> None:
    found = by_session(residents, number)
    assert found is not None, f"session {number} is not open"
    served, session = found
    del served.sessions[number]
    if session.lock == Lock.RW:
        _remember(served, Event("rw_aborted"))


def _keep(served: Served, allocation: Allocation) -> None:
    assert allocation.id not in served.allocations, f"allocation {allocation.id} exists"
    served.allocations[allocation.id] = allocation
    served.bytes += allocation.aligned_size
    served.next_slot = max(served.next_slot, allocation.slot + 1)


def _note(served: Served, metadata: Metadata) -> None:
    before = served.metadata.get(metadata.key)
    served.metadata_bytes += len(metadata.value) - (len(before.value) if before else 0)
    served.metadata[metadata.key] = metadata


def _commit(served: Served, layout: str, written_by: str) -> None:
    session = writer(served)
    if session is not None:
        del served.sessions[session.number]
    served.layout = layout
    served.written_by = written_by
    _remember(served, Event("committed"))


def _clear(served: Served) -> None:
    served.layout = ""
    served.written_by = ""
    served.metadata = {}
    served.metadata_bytes = 0
    served.next_slot = 0
    _remember(served, Event("allocations_cleared", len(served.allocations)))


def _remember(served: Served, event: Event) -> None:
    served.events.append(event)
    del served.events[:-EVENTS_MAX]


def rebuild(residents: Residents) -> Sequence[Change]:
    """Return the changes that lead from nothing to this state, without the history of events."""
    found: list[Change] = [Limited(*place, limit) for place, limit in residents.limits.items()]
    for served in residents.served.values():
        name = served.entry.name
        found.append(Serving(served.entry))
        found += [Admitted(name, each) for each in served.admissions.values()]
        found += [Kept(each) for each in served.allocations.values()]
        found += [Noted(each) for each in served.metadata.values()]
        if committed(served):
            found.append(Committed(name, served.layout, served.written_by))
        if served.lost:
            found.append(Lost(name))
        found += [Opened(each) for each in served.sessions.values()]
    return found
