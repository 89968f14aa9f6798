"""Answers to the requests of a session that holds a lock.

Tests: tests/integration/test_gms.py.
"""

from typing import NamedTuple

import msgspec

from services.node_agent.memory.gms import messages as m
from services.node_agent.memory.gms import rules
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.store import Store
from services.node_agent.memory.grants import Refusal

_WRITES = (m.Allocate, m.Free, m.MetadataPut, m.MetadataDelete, m.Commit)


class Answer(NamedTuple):
    """A message, a descriptor that the caller sends and closes, and whether the connection ends."""

    message: msgspec.Struct
    descriptor: int = -1
    close: bool = False


def answer(
    store: Store, served: s.Served, session: s.Session, waiting_writers: int, request: m.Request
) -> Answer:
    """Do what a session asks and return the answer. Raises Refusal."""
    if isinstance(request, _WRITES):
        if session.lock != s.Lock.RW:
            kind = type(request).__struct_config__.tag
            raise Refusal("lock", f"{kind} needs the write lock: connect with rw")
        return _written(store, served, session, request)
    return _read(store, served, session, waiting_writers, request)


def _written(store: Store, served: s.Served, session: s.Session, request: m.Request) -> Answer:
    match request:
        case m.Allocate(size, tag):
            made = store.allocate(served, size, tag)
            return Answer(m.AllocateAnswer(made.id, made.size, made.aligned_size, made.slot))
        case m.Free(number):
            changes = rules.free(served, number)
            store.carry_out(changes)
            return Answer(m.FreeAnswer(bool(changes)))
        case m.MetadataPut(key, number, offset, value):
            noted = s.Metadata(served.entry.name, key, number, offset, value)
            store.carry_out(rules.put(served, noted))
            return Answer(m.MetadataPutAnswer(True))
        case m.MetadataDelete(key):
            changes = rules.delete(served, key)
            store.carry_out(changes)
            return Answer(m.MetadataDeleteAnswer(bool(changes)))
        case _:
            store.carry_out(rules.commit(served, session.key))
            return Answer(m.CommitAnswer(True), close=True)


def _read(
    store: Store, served: s.Served, session: s.Session, waiting_writers: int, request: m.Request
) -> Answer:
    match request:
        case m.Export(number):
            found = rules.allocation_of(served, number)
            descriptor = store.export(found, session.lock)
            return Answer(m.ExportAnswer(*_fields(found)), descriptor)
        case m.GetAllocation(number):
            return Answer(_allocation(rules.allocation_of(served, number)))
        case m.ListAllocations(tag):
            listed = [each for each in rules.in_order(served) if tag is None or each.tag == tag]
            return Answer(m.AllocationsAnswer([_allocation(each) for each in listed]))
        case m.MetadataGet(key):
            return Answer(_metadata(served, key))
        case m.MetadataList(prefix):
            keys = sorted(key for key in served.metadata if key.startswith(prefix))
            return Answer(m.MetadataKeys(keys))
        case m.GetLayoutHash():
            return Answer(m.LayoutHash(served.layout))
        case m.GetAllocationState():
            return Answer(m.AllocationState(len(served.allocations)))
        case m.GetLockState():
            return Answer(lock_state(served, waiting_writers))
        case _:
            kind = type(request).__struct_config__.tag
            raise Refusal("request", f"{kind} is not valid here: the connection has its lock")


def _fields(allocation: s.Allocation) -> tuple[str, int, int, str, int]:
    return (
        allocation.id,
        allocation.size,
        allocation.aligned_size,
        allocation.tag,
        allocation.slot,
    )


def _allocation(allocation: s.Allocation) -> m.AllocationAnswer:
    return m.AllocationAnswer(*_fields(allocation))


def _metadata(served: s.Served, key: str) -> m.MetadataAnswer:
    found = served.metadata.get(key)
    if found is None:
        return m.MetadataAnswer(False)
    return m.MetadataAnswer(True, found.allocation, found.offset, found.value)


def lock_state(served: s.Served, waiting_writers: int) -> m.LockState:
    """Return the state of an entry's locks."""
    writes = s.writer(served) is not None
    return m.LockState(
        state=s.state_name(served),
        has_rw_session=writes,
        ro_session_count=len(s.readers(served)),
        waiting_writers=waiting_writers,
        committed=s.committed(served),
        is_ready=s.committed(served) and not writes,
    )


def runtime_state(served: s.Served, waiting_writers: int) -> m.RuntimeState:
    """Return the whole state of an entry."""
    locks = msgspec.structs.asdict(lock_state(served, waiting_writers))
    return m.RuntimeState(
        **locks, allocation_count=len(served.allocations), memory_layout_hash=served.layout
    )
