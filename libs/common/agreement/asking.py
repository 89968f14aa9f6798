"""Questions to a member about the hashes of its state, and their answers.

Pure. A question without a part is answered with the member's last hashes. One with a part is
answered with the digests of its entries, if the part is still known as of the commit that is asked
for. A part of jobs is asked for bucket by bucket, so that every answer fits into a message. Tests:
tests/unit/test_agreement_asking.py.
"""

from collections.abc import Awaitable, Callable

import msgspec

from libs.common.agreement.follower import Agreement
from libs.common.agreement.tree import BUCKETED, BUCKETS, StateTree, digest, encoded
from libs.common.state.state_hash import NO_HASH, StateHash

Entries = dict[str, bytes]


class HashAsk(msgspec.Struct, frozen=True):
    """The question for a part's bucket as of commit `seq`; without a part for the last hashes."""

    seq: int = 0
    part: str = ""
    bucket: int = 0


class HashAnswer(msgspec.Struct, frozen=True):
    """The last hashes of a member, or the digests of the entries of a bucket.

    `is_known` is false if the member has no tree of that commit any more.
    """

    hashes: tuple[StateHash, ...] = ()
    entries: Entries = {}
    is_known: bool = False


def answer(agreement: Agreement, question: bytes) -> bytes | None:
    """Return the answer; None for a question that is not valid."""
    try:
        ask = msgspec.msgpack.decode(question, type=HashAsk)
    except msgspec.DecodeError:
        return None
    if not ask.part:
        return msgspec.msgpack.encode(HashAnswer(hashes=tuple(agreement.kept.values())))
    newest = next(reversed(agreement.kept.values()), NO_HASH)
    if agreement.tree is None or newest.seq != ask.seq or ask.part not in newest.parts:
        return msgspec.msgpack.encode(HashAnswer())
    found = entries_of(agreement.tree, ask.part, ask.bucket % BUCKETS)
    return msgspec.msgpack.encode(HashAnswer(entries=found, is_known=True))


def answering(agreement: Agreement) -> Callable[[str, bytes], Awaitable[bytes | None]]:
    """Return the function that answers questions which come over the bus."""

    async def on_ask(subject: str, data: bytes) -> bytes | None:
        return answer(agreement, data)

    return on_ask


def entries_of(tree: StateTree, part: str, bucket: int) -> Entries:
    """Return the digests of the entries of a part as of the tree's last hash, by key.

    A part that has no keys is one entry without a name.
    """
    if part in BUCKETED:
        return tree.buckets[part][bucket]
    value = msgspec.msgpack.decode(tree.whole[part])
    if not isinstance(value, dict):
        return {"": digest(tree.whole[part])}
    return {str(key): digest(encoded(each)) for key, each in value.items()}


def buckets_of(part: str) -> range:
    """Return the buckets of a part; a part that is hashed whole has one."""
    return range(BUCKETS) if part in BUCKETED else range(1)
