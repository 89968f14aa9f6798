"""Entries of resident weights as operators and the scheduler's ledger see them.

Pure. Tests: tests/unit/test_gms_rules.py.
"""

import msgspec

from services.node_agent.memory.gms import state as s


class Resident(msgspec.Struct, frozen=True):
    """An entry as operators see it. An orphan is memory that no attempt on this node can use.

    `readers` and `attempts` are keys of attempts. `limit` and `bytes` are in bytes.
    """

    name: str
    tenant: str
    model: str
    tag: str
    device: int
    limit: int
    bytes: int
    state: str
    layout: str
    content: tuple[str, ...]
    writer: str
    written_by: str
    readers: tuple[str, ...]
    attempts: tuple[str, ...]
    lost: bool
    orphan: bool


def listed(served: s.Served) -> Resident:
    """Return what is known about an entry."""
    entry, session = served.entry, s.writer(served)
    owned = s.owned_bytes(served)
    return Resident(
        name=entry.name,
        tenant=entry.tenant,
        model=entry.model,
        tag=entry.tag,
        device=entry.device,
        limit=entry.limit,
        bytes=owned,
        state=s.state_name(served),
        layout=served.layout,
        content=entry.content,
        writer=session.key if session is not None else "",
        written_by=served.written_by,
        readers=tuple(each.key for each in s.readers(served)),
        attempts=tuple(served.admissions),
        lost=served.lost,
        orphan=owned > 0 and not served.admissions and not served.sessions,
    )
