"""The rights to connect to an entry, to get its lock, and to write: GMS and its limits.

Pure. A connection is a lock: one writer, or many readers of a published layout. A writer begins
with nothing, and what it did not commit ends with it. A published layout stays without any process
until the agent drops the entry. Beyond GMS, an entry belongs to one tenant and to one set of weight
files, and memory is refused before it exists if the entry, the tenant or the device has no room.
Each function returns changes or raises Refusal. Tests: tests/unit/test_gms_rules.py.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from services.node_agent.memory.gms import state as s
from services.node_agent.memory.grants import Holder, Refusal

ENTRIES_MAX: Final = 256
NAME_CHARACTERS_MAX: Final = 128
FILES_MAX: Final = 4_096
# The kernel's bound on the path of a Unix socket.
SOCKET_BYTES_MAX: Final = 107
ALLOCATIONS_MAX: Final = 8_192
TEXT_CHARACTERS_MAX: Final = 1_024
METADATA_BYTES_MAX: Final = 64 << 20
METADATA_KEYS_MAX: Final = 100_000
ADMISSIONS_MAX: Final = 64
WANTED: Final = ("rw", "ro", "rw_or_ro")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Waiting(msgspec.Struct, frozen=True):
    """A connection that waits for a lock until `until_ns` (None: for ever)."""

    number: int
    entry: str
    wanted: str
    holder: Holder
    key: str
    until_ns: int | None


class Room(msgspec.Struct, frozen=True):
    """The bytes and the granularity of each device that entries may use.

    `unusable` is why other devices cannot be used, in the words of their driver.
    """

    capacity: dict[int, int]
    granularity: dict[int, int]
    unusable: dict[int, str] = {}


# --- entries ---


def serve(residents: s.Residents, room: Room, entry: s.Entry) -> Sequence[s.Change]:
    """Begin an entry. Harmless when repeated."""
    found = residents.served.get(entry.name)
    if found is not None and found.entry == entry:
        return ()
    if found is not None:
        raise Refusal("exists", f"entry {entry.name} exists and differs: drop it first")
    if len(residents.served) >= ENTRIES_MAX:
        raise Refusal("entries", f"the node has {ENTRIES_MAX} entries, the most: drop one first")
    _check_entry(residents, room, entry)
    return (s.Serving(entry),)


def _check_entry(residents: s.Residents, room: Room, entry: s.Entry) -> None:
    if not 0 < len(entry.name) <= NAME_CHARACTERS_MAX:
        raise Refusal("name", f"name: use 1 to {NAME_CHARACTERS_MAX} characters")
    if why := room.unusable.get(entry.device):
        raise Refusal("device", f"device {entry.device} cannot be used: {why}")
    if entry.device not in room.capacity:
        known = ", ".join(map(str, sorted(room.capacity)))
        raise Refusal(
            "device", f"device {entry.device} is unknown on this node: use one of {known}"
        )
    most = room.capacity[entry.device]
    if not 0 < entry.limit <= most:
        raise Refusal("size", f"limit: {entry.limit} is not valid: use 1 to {most} bytes")
    if not entry.socket.startswith("/") or len(entry.socket.encode()) > SOCKET_BYTES_MAX:
        raise Refusal(
            "socket",
            f"socket: {entry.socket} is not valid: use an absolute path of at most "
            f"{SOCKET_BYTES_MAX} bytes, the kernel's limit",
        )
    if any(each.entry.socket == entry.socket for each in residents.served.values()):
        raise Refusal("socket", f"socket: {entry.socket} belongs to another entry: use another")
    _check_content(entry.content)


def _check_content(content: tuple[str, ...]) -> None:
    wrong = [each for each in content if not _SHA256.fullmatch(each)]
    if wrong:
        raise Refusal("content", f"content: {wrong[0]!r:.80} is no SHA-256: use 64 hex digits")
    if len(content) > FILES_MAX or list(content) != sorted(content):
        raise Refusal("content", f"content: list at most {FILES_MAX} hashes, sorted")


def lose(
    residents: s.Residents, room: Room, entry: s.Entry, admissions: Sequence[s.Admission]
) -> Sequence[s.Change]:
    """Begin an entry of which processes of these attempts may map memory that is unknown now."""
    begun = serve(residents, room, entry)
    if not begun:
        return ()
    return (*begun, *[s.Admitted(entry.name, each) for each in admissions], s.Lost(entry.name))


def drop(residents: s.Residents, name: str, force: bool) -> Sequence[s.Change]:
    """End an entry and free its memory; refused while processes use it, unless forced."""
    served = residents.served.get(name)
    if served is None:
        return ()
    if served.sessions and not force:
        used = ", ".join(sorted({each.key for each in served.sessions.values()}))
        raise Refusal("in-use", f"entry {name} is in use by {used}: end them, or force it")
    if served.lost:
        raise Refusal(
            "lost",
            f"entry {name} is lost: memory that {', '.join(sorted(served.admissions))} may map "
            "cannot be taken back. End these attempts",
        )
    closed = [s.Closed(number) for number in served.sessions]
    return (*closed, *cleared(served), s.Dropped(name))


def limit_tenant(tenant: str, device: int, limit: int) -> Sequence[s.Change]:
    """Set the bytes of a device that a tenant may own in all its entries."""
    if limit < 0:
        raise Refusal("size", f"limit: {limit} is not valid: use 0 or more bytes")
    return (s.Limited(tenant, device, limit),)


# --- attempts ---


def admit(residents: s.Residents, name: str, admission: s.Admission) -> Sequence[s.Change]:
    """Let an attempt's processes connect to an entry. Harmless when repeated."""
    served = residents.served.get(name)
    if served is None:
        raise Refusal("entry", f"entry {name} does not exist: start it first")
    if served.entry.tenant != admission.tenant:
        raise Refusal("tenant", f"entry {name} belongs to another tenant")
    check_content(served, admission.content)
    before = served.admissions.get(admission.key)
    if before == admission:
        return ()
    if served.lost and before is None:
        raise Refusal(
            "lost", f"entry {name} is lost until its earlier attempts end: load without it"
        )
    if before is None and len(served.admissions) >= ADMISSIONS_MAX:
        raise Refusal("attempts", f"entry {name} has {ADMISSIONS_MAX} attempts, the most")
    return (s.Admitted(name, admission),)


def check_content(served: s.Served, content: tuple[str, ...]) -> None:
    """Raise Refusal unless these are the weights of the entry."""
    if content != served.entry.content:
        missing = len([each for each in content if each not in served.entry.content])
        raise Refusal(
            "content",
            f"entry {served.entry.name} holds {digest(served.entry.content)}, not "
            f"{digest(content)}: {missing} of {len(content)} files differ from its "
            f"{len(served.entry.content)}. Load without it, or start an entry for these files",
        )


def digest(content: tuple[str, ...]) -> str:
    """Return a short name for a set of weight files."""
    return hashlib.sha256(" ".join(content).encode()).hexdigest()[:12]


def dismiss(residents: s.Residents, key: str) -> Sequence[s.Change]:
    """End all sessions of an attempt and let it connect no more."""
    found: list[s.Change] = []
    for served in residents.served.values():
        numbers = [each.number for each in served.sessions.values() if each.key == key]
        for number in numbers:
            found += end(residents, number)
    found.append(s.Dismissed(key))
    for name, served in residents.served.items():
        if served.lost and not [each for each in served.admissions if each != key]:
            found.append(s.Regained(name))
    return found


# --- locks ---


def next_grant(
    residents: s.Residents, waiting: Sequence[Waiting]
) -> tuple[Waiting, Sequence[s.Change]] | None:
    """Return the first waiting connection that can have its lock now, and what changes."""
    for each in waiting:
        served = residents.served[each.entry]
        writers = any(other.wanted == "rw" and other.entry == each.entry for other in waiting)
        lock = _lock_for(served, each.wanted, writers)
        if lock is not None:
            session = s.Session(each.number, each.entry, lock, each.holder, each.key)
            begun = cleared(served) if lock == s.Lock.RW else ()
            return each, (*begun, s.Opened(session))
    return None


def _lock_for(served: s.Served, wanted: str, writers_wait: bool) -> s.Lock | None:
    free = not served.sessions
    readable = s.committed(served) and s.writer(served) is None and not writers_wait
    if wanted == "rw":
        return s.Lock.RW if free else None
    if readable:
        return s.Lock.RO
    if wanted == "rw_or_ro" and free and not s.committed(served):
        return s.Lock.RW
    return None


def end(residents: s.Residents, number: int) -> Sequence[s.Change]:
    """End a session; the layout that its writer did not commit goes with it."""
    found = s.by_session(residents, number)
    if found is None:
        return ()
    served, session = found
    rest = cleared(served) if session.lock == s.Lock.RW else ()
    return (s.Closed(number), *rest)


def cleared(served: s.Served) -> Sequence[s.Change]:
    """Return the changes that discard a layout; none if there is nothing."""
    if not served.allocations and not served.metadata and not s.committed(served):
        return ()
    name = served.entry.name
    return (s.Cleared(name), *[s.Freed(name, each) for each in served.allocations])


def tidied(residents: s.Residents) -> Sequence[s.Change]:
    """Return what a new server must discard: layouts without a writer that are not published."""
    return [
        change
        for served in residents.served.values()
        if not s.committed(served) and s.writer(served) is None
        for change in cleared(served)
    ]


# --- what a session may do ---


def check_room(residents: s.Residents, room: Room, served: s.Served, size: int) -> int:
    """Return the bytes to create for `size`. Raises Refusal: nothing may be created then."""
    entry = served.entry
    if not 0 < size <= entry.limit:
        raise Refusal("size", f"size: {size} is not valid: ask for 1 to {entry.limit} bytes")
    if len(served.allocations) >= ALLOCATIONS_MAX:
        raise Refusal(
            "allocations", f"entry {entry.name} has {ALLOCATIONS_MAX} allocations: use larger ones"
        )
    step = room.granularity[entry.device]
    rounded = -(-size // step) * step
    own = s.owned_bytes(served)
    tenant = sum(
        s.owned_bytes(each)
        for each in residents.served.values()
        if (each.entry.tenant, each.entry.device) == (entry.tenant, entry.device)
    )
    limit = residents.limits.get((entry.tenant, entry.device))
    if own + rounded > entry.limit:
        raise Refusal("quota", _full(f"entry {entry.name}", rounded, own, entry.limit))
    if limit is not None and tenant + rounded > limit:
        raise Refusal("quota", _full(f"tenant {entry.tenant}", rounded, tenant, limit))
    device = device_bytes(residents, entry.device)
    most = room.capacity[entry.device]
    if device + rounded > most:
        raise Refusal("full", _full(f"device {entry.device}", rounded, device, most))
    return rounded


def _full(owner: str, size: int, used: int, most: int) -> str:
    return f"{size} bytes are more than {owner} has left: {used} of {most} bytes are in use"


def device_bytes(residents: s.Residents, device: int) -> int:
    """Return the bytes of a device that entries own."""
    served = residents.served.values()
    return sum(s.owned_bytes(each) for each in served if each.entry.device == device)


def allocation_of(served: s.Served, number: str) -> s.Allocation:
    """Return an allocation of this entry. Raises Refusal if it has none with this id."""
    found = served.allocations.get(number)
    if found is None:
        raise Refusal("allocation", f"allocation {number:.64} does not exist")
    return found


def in_order(served: s.Served) -> Sequence[s.Allocation]:
    """Return the allocations in the order of their slots."""
    return sorted(served.allocations.values(), key=lambda each: each.slot)


def free(served: s.Served, number: str) -> Sequence[s.Change]:
    """Free one allocation and the metadata that belongs to it; nothing if there is none."""
    if number not in served.allocations:
        return ()
    name = served.entry.name
    keys = [each.key for each in served.metadata.values() if each.allocation == number]
    return (*[s.Erased(name, key) for key in keys], s.Freed(name, number))


def put(served: s.Served, metadata: s.Metadata) -> Sequence[s.Change]:
    """Store metadata for a place inside an allocation."""
    allocation = allocation_of(served, metadata.allocation)
    if not 0 <= metadata.offset < allocation.aligned_size:
        raise Refusal(
            "offset",
            f"offset_bytes: {metadata.offset} is outside of allocation {allocation.id}, which has "
            f"{allocation.aligned_size} bytes",
        )
    if len(metadata.key) > TEXT_CHARACTERS_MAX:
        raise Refusal("key", f"key: use at most {TEXT_CHARACTERS_MAX} characters")
    if (
        served.metadata_bytes + len(metadata.value) > METADATA_BYTES_MAX
        or len(served.metadata) >= METADATA_KEYS_MAX
    ):
        raise Refusal(
            "metadata",
            f"entry {served.entry.name} may have {METADATA_BYTES_MAX} bytes of metadata in "
            f"{METADATA_KEYS_MAX} keys: store less",
        )
    return (s.Noted(metadata),)


def delete(served: s.Served, key: str) -> Sequence[s.Change]:
    """Delete metadata; nothing if there is none."""
    return (s.Erased(served.entry.name, key),) if key in served.metadata else ()


def commit(served: s.Served, key: str) -> Sequence[s.Change]:
    """Publish the layout of the writer, an attempt with this key."""
    return (s.Committed(served.entry.name, layout_hash(served), key),)


def layout_hash(served: s.Served) -> str:
    """Return a hash over the weights' identity, all allocations in order, and all metadata.

    Allocation ids do not count: an equal layout that was written again has the same hash.
    """
    parts: list[object] = [list(served.entry.content)]
    place = {}
    for rank, each in enumerate(in_order(served)):
        place[each.id] = rank
        parts.append([each.size, each.aligned_size, each.tag])
    for key in sorted(served.metadata):
        found = served.metadata[key]
        parts.append([key, place[found.allocation], found.offset, found.value])
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
