"""The GMS protocol's messages: the published layouts, and what is not a message."""

import struct

import msgspec
import pytest

from services.node_agent.memory.gms import messages as m


def framed(message: object) -> bytearray:
    body = msgspec.msgpack.encode(message)
    return bytearray(struct.pack("!I", len(body)) + body)


# Written down from the published description, not from the code.
PUBLISHED = {
    "handshake_request": ({"lock_type": "rw_or_ro", "timeout_ms": 5}, m.Handshake),
    "commit_request": ({}, m.Commit),
    "get_lock_state_request": ({}, m.GetLockState),
    "get_allocation_state_request": ({}, m.GetAllocationState),
    "allocate_request": ({"size": 1, "tag": "weights"}, m.Allocate),
    "export_allocation_request": ({"allocation_id": "a"}, m.Export),
    "get_allocation_request": ({"allocation_id": "a"}, m.GetAllocation),
    "list_allocations_request": ({"tag": None}, m.ListAllocations),
    "free_allocation_request": ({"allocation_id": "a"}, m.Free),
    "metadata_put_request": (
        {"key": "k", "allocation_id": "a", "offset_bytes": 0, "value": b"v"},
        m.MetadataPut,
    ),
    "metadata_get_request": ({"key": "k"}, m.MetadataGet),
    "metadata_delete_request": ({"key": "k"}, m.MetadataDelete),
    "metadata_list_request": ({"prefix": "p"}, m.MetadataList),
    "get_memory_layout_hash_request": ({}, m.GetLayoutHash),
    "get_runtime_state_request": ({}, m.GetRuntimeState),
    "get_event_history_request": ({}, m.GetEventHistory),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_every_published_request_is_understood(kind: str) -> None:
    fields, expected = PUBLISHED[kind]
    buffer = framed({"type": kind, **fields})
    found = m.take(buffer)
    assert type(found) is expected
    assert {name: getattr(found, name) for name in fields} == fields
    assert buffer == b""


def test_no_other_requests_are_known() -> None:
    assert frozenset(PUBLISHED) == m.KINDS


def test_answers_have_the_published_layout() -> None:
    answers = [
        m.HandshakeAnswer(True, False, "rw"),
        m.ExportAnswer("a", 1, 2, "t", 0),
        m.AllocationsAnswer([m.AllocationAnswer("a", 1, 2, "t", 0)]),
        m.EventHistory([m.Event("committed")]),
        m.Error("no"),
    ]
    allocation = {"allocation_id": "a", "size": 1, "aligned_size": 2, "tag": "t", "layout_slot": 0}
    assert [msgspec.msgpack.decode(m.frame(each)[4:]) for each in answers] == [
        {
            "type": "handshake_response",
            "success": True,
            "committed": False,
            "granted_lock_type": "rw",
        },
        {"type": "export_allocation_response", **allocation},
        {
            "type": "list_allocations_response",
            "allocations": [{"type": "get_allocation_response", **allocation}],
        },
        {
            "type": "get_event_history_response",
            "events": [{"kind": "committed", "allocation_count": 0}],
        },
        {"type": "error_response", "error": "no", "code": 0},
    ]


def test_messages_arrive_whole_however_they_are_cut() -> None:
    data, buffer, found = framed({"type": "commit_request"}) * 2, bytearray(), []
    for byte in data:
        buffer.append(byte)
        request = m.take(buffer)
        if request is not None:
            found.append(request)
    assert [type(each) for each in found] == [m.Commit, m.Commit]


def test_fields_that_a_newer_client_adds_are_ignored() -> None:
    found = m.take(framed({"type": "handshake_request", "lock_type": "ro", "profile": "x"}))
    assert found == m.Handshake("ro")


def test_an_unknown_request_is_named_and_a_broken_one_ends_the_connection() -> None:
    found = m.take(framed({"type": "claim_persistent_allocation_request", "size": 1}))
    assert found == m.Unknown("claim_persistent_allocation_request")
    for wrong in ([], 7, {}, {"type": 3}, {"type": "allocate_request", "size": "x"}):
        with pytest.raises(m.BadMessage):
            m.take(framed(wrong))
    with pytest.raises(m.BadMessage):
        m.take(bytearray(struct.pack("!I", 1) + b"\xc1"))
    with pytest.raises(m.BadMessage):
        m.take(bytearray(struct.pack("!I", m.MESSAGE_BYTES_MAX + 1)))
