"""The hash chain over the log: each link is a hash of one commit, its place, and the previous link.

Pure. A link covers the stream sequence, subject, stored bytes, chain index from 0, and previous
hash. Each field has its length in front, so that no two records share one encoding. The chain has
no holes: index i is stream sequence i + 1, from the log's first commit on. If an operator let it
begin later because earlier records are lost, every verification reports them as missing.
`alignment.py` names what was done to a damaged chain; tests/property/test_audit_edits.py edits
archives to check it.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.errors import Corrupt
from libs.common.transport.log import Entry

GENESIS: Final = "0" * 64
FORMAT: Final = b"muster-audit-1"


class Link(msgspec.Struct, frozen=True):
    """One step of the chain; hashes are 64 lower-case hexadecimal digits."""

    index: int
    seq: int
    subject: str
    hash: str
    previous_hash: str


def link(seq: int, subject: str, data: bytes, index: int, previous_hash: str) -> str:
    """Return the hash of one record: SHA-256 over its length-prefixed fields."""
    fields = (FORMAT, b"%d" % seq, subject.encode(), data, b"%d" % index, previous_hash.encode())
    return hashlib.sha256(b"".join(b"%d:%b" % (len(field), field) for field in fields)).hexdigest()


def extend(head: Link | None, entries: Iterable[Entry], begin: int = 1) -> list[Link]:
    """Return the links of the entries that follow `head` (None: the chain begins at sequence
    `begin`).

    Raises Corrupt on a gap, a repetition or a step back.
    """
    links: list[Link] = []
    for entry in entries:
        head = _next(head, entry, begin)
        links.append(head)
    return links


def is_link_of(head: Link, entry: Entry) -> bool:
    """Return whether `head` is the link of exactly this entry after its previous link."""
    return head.hash == link(
        seq=entry.seq,
        subject=entry.subject,
        data=entry.data,
        index=head.index,
        previous_hash=head.previous_hash,
    )


def _next(head: Link | None, entry: Entry, begin: int) -> Link:
    expected = head.seq + 1 if head else begin
    index = expected - 1
    if entry.seq != expected:
        raise Corrupt(
            f"the audit chain at index {index} needs stream sequence {expected} and was "
            f"given {entry.seq}: "
            "read the log again from the archive's head; if the log no longer holds it, "
            "restore the archive from a backup"
        )
    previous = head.hash if head else GENESIS
    return Link(
        index,
        seq=entry.seq,
        subject=entry.subject,
        hash=link(
            seq=entry.seq,
            subject=entry.subject,
            data=entry.data,
            index=index,
            previous_hash=previous,
        ),
        previous_hash=previous,
    )
