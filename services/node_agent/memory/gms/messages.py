"""The GMS wire protocol: a length of 4 bytes, big-endian, then one MessagePack map with a `type`.

Pure. It follows the published description of GMS (NVIDIA Dynamo's GPU Memory Service), so that its
clients work unmodified. Fields that a client adds are ignored. The field `content` of the handshake
is Muster's own: a client that knows it names the weights that it expects. A descriptor travels with
the first byte of an export's answer. Tests: tests/unit/test_gms_messages.py.
"""

import struct
from typing import Final, get_args

import msgspec

MESSAGE_BYTES_MAX: Final = 1 << 20
TYPE_CHARACTERS_SHOWN: Final = 64
_LENGTH: Final = struct.Struct("!I")


class BadMessage(Exception):
    """Bytes that are no message of this protocol; the connection must be closed."""


class Unknown(msgspec.Struct, frozen=True):
    """A whole message of a kind that this server does not have."""

    kind: str


class Handshake(msgspec.Struct, tag="handshake_request"):
    """Asks for a lock: `rw`, `ro` or `rw_or_ro`. `timeout_ms` None waits for ever."""

    lock_type: str
    timeout_ms: int | None = None
    content: tuple[str, ...] | None = None


class HandshakeAnswer(msgspec.Struct, tag="handshake_response"):
    """The lock that was granted, and whether that was in time."""

    success: bool
    committed: bool
    granted_lock_type: str | None = None


class Commit(msgspec.Struct, tag="commit_request"):
    """Publishes the layout and gives up the write lock."""


class CommitAnswer(msgspec.Struct, tag="commit_response"):
    """The layout is published; the server closes the connection next."""

    success: bool


class GetLockState(msgspec.Struct, tag="get_lock_state_request"):
    """Asks for the state of the locks."""


class LockState(msgspec.Struct, tag="get_lock_state_response"):
    """The state (EMPTY, RW, COMMITTED, RO) and what it is derived from."""

    state: str
    has_rw_session: bool
    ro_session_count: int
    waiting_writers: int
    committed: bool
    is_ready: bool


class GetAllocationState(msgspec.Struct, tag="get_allocation_state_request"):
    """Asks how many allocations exist."""


class AllocationState(msgspec.Struct, tag="get_allocation_state_response"):
    """The number of allocations."""

    allocation_count: int


class Allocate(msgspec.Struct, tag="allocate_request"):
    """Asks for physical memory; writers only."""

    size: int
    tag: str = "default"


class AllocateAnswer(msgspec.Struct, tag="allocate_response"):
    """The new allocation; `layout_slot` is its place in the layout."""

    allocation_id: str
    size: int
    aligned_size: int
    layout_slot: int


class Export(msgspec.Struct, tag="export_allocation_request"):
    """Asks for the descriptor of an allocation."""

    allocation_id: str


class ExportAnswer(msgspec.Struct, tag="export_allocation_response"):
    """The allocation whose descriptor travels with this message."""

    allocation_id: str
    size: int
    aligned_size: int
    tag: str
    layout_slot: int


class GetAllocation(msgspec.Struct, tag="get_allocation_request"):
    """Asks what an allocation is."""

    allocation_id: str


class AllocationAnswer(msgspec.Struct, tag="get_allocation_response"):
    """One allocation."""

    allocation_id: str
    size: int
    aligned_size: int
    tag: str
    layout_slot: int


class ListAllocations(msgspec.Struct, tag="list_allocations_request"):
    """Asks for all allocations, or those with one tag."""

    tag: str | None = None


class AllocationsAnswer(msgspec.Struct, tag="list_allocations_response"):
    """Allocations in the order of their slots."""

    allocations: list[AllocationAnswer] = []


class Free(msgspec.Struct, tag="free_allocation_request"):
    """Frees one allocation; writers only."""

    allocation_id: str


class FreeAnswer(msgspec.Struct, tag="free_allocation_response"):
    """False if there is no such allocation."""

    success: bool


class MetadataPut(msgspec.Struct, tag="metadata_put_request"):
    """Stores a value that belongs to a place in an allocation; writers only."""

    key: str
    allocation_id: str
    offset_bytes: int
    value: bytes


class MetadataPutAnswer(msgspec.Struct, tag="metadata_put_response"):
    """The value is stored."""

    success: bool


class MetadataGet(msgspec.Struct, tag="metadata_get_request"):
    """Asks for the value of a key."""

    key: str


class MetadataAnswer(msgspec.Struct, tag="metadata_get_response"):
    """The value of a key and its place, if there is one."""

    found: bool
    allocation_id: str | None = None
    offset_bytes: int | None = None
    value: bytes | None = None


class MetadataDelete(msgspec.Struct, tag="metadata_delete_request"):
    """Deletes a key; writers only."""

    key: str


class MetadataDeleteAnswer(msgspec.Struct, tag="metadata_delete_response"):
    """False if there was no such key."""

    deleted: bool


class MetadataList(msgspec.Struct, tag="metadata_list_request"):
    """Asks for all keys that begin with a prefix."""

    prefix: str = ""


class MetadataKeys(msgspec.Struct, tag="metadata_list_response"):
    """Keys in their order."""

    keys: list[str] = []


class GetLayoutHash(msgspec.Struct, tag="get_memory_layout_hash_request"):
    """Asks for the hash of the published layout."""


class LayoutHash(msgspec.Struct, tag="get_memory_layout_hash_response"):
    """The hash over allocations and metadata; empty if nothing is published."""

    memory_layout_hash: str


class GetRuntimeState(msgspec.Struct, tag="get_runtime_state_request"):
    """Asks for the whole state; in place of a handshake, without a lock."""


class RuntimeState(msgspec.Struct, tag="get_runtime_state_response"):
    """The state of locks, allocations and layout."""

    state: str
    has_rw_session: bool
    ro_session_count: int
    waiting_writers: int
    committed: bool
    is_ready: bool
    allocation_count: int = 0
    memory_layout_hash: str = ""


class Event(msgspec.Struct, frozen=True):
    """One step of an entry's history."""

    kind: str
    allocation_count: int = 0


class GetEventHistory(msgspec.Struct, tag="get_event_history_request"):
    """Asks for the latest events; in place of a handshake, without a lock."""


class EventHistory(msgspec.Struct, tag="get_event_history_response"):
    """The latest events, oldest first."""

    events: list[Event] = []


class Error(msgspec.Struct, tag="error_response"):
    """A refused request; the connection and its lock stay."""

    error: str
    code: int = 0


Request = (
    Handshake
    | Commit
    | GetLockState
    | GetAllocationState
    | Allocate
    | Export
    | GetAllocation
    | ListAllocations
    | Free
    | MetadataPut
    | MetadataGet
    | MetadataDelete
    | MetadataList
    | GetLayoutHash
    | GetRuntimeState
    | GetEventHistory
)

_requests: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)


def frame(message: msgspec.Struct) -> bytes:
    """Return the message as it travels."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def take(buffer: bytearray) -> Request | Unknown | None:
    """Take the next request out of what has arrived; None if it is not whole yet.

    Raises BadMessage.
    """
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > MESSAGE_BYTES_MAX:
        raise BadMessage(f"a message of {length} bytes: the most are {MESSAGE_BYTES_MAX}")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    body = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    try:
        return _requests.decode(body)
    except (ValueError, RecursionError) as error:
        return _unknown(body, str(error))


def _unknown(body: bytes, why: str) -> Unknown:
    try:
        message = msgspec.msgpack.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not MessagePack: {error}") from None
    kind = message.get("type") if isinstance(message, dict) else None
    if not isinstance(kind, str) or kind in KINDS:
        raise BadMessage(why)
    return Unknown(kind[:TYPE_CHARACTERS_SHOWN])


KINDS: Final = frozenset(str(each.__struct_config__.tag) for each in get_args(Request))
