"""The hash of a cluster's state: a tree of part, bucket and key that follows the facts.

Pure. A part is a field of `Cluster`. The parts with many entries (BUCKETED) have a digest for each
entry, made again only when a fact has changed the entry. A bucket's digest is the sum of its
entries'. The other parts are small and are hashed whole. All bytes are deterministic MessagePack,
the same for every version of Python. Hashes of different builds are not comparable. Tests:
tests/property/test_state_tree.py.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Final
from zlib import crc32

import msgspec

from libs.common.agreement.build import fingerprint
from libs.common.change import Change
from libs.common.facts import AnyFact, ModelUsed, NodeRegistered, Unknown
from libs.common.state.cluster import Cluster
from libs.common.state.state_hash import StateHash

BUCKETED: Final = ("jobs",)
BUCKETS: Final = 64
DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)

_sorted = msgspec.msgpack.Encoder(order="deterministic").encode

# The digests of the entries of one bucket, by key.
Bucket = dict[str, bytes]


def encoded(value: object) -> bytes:
    """Return the canonical bytes of a value. Sorting needs texts as keys, so numbers become texts
    where a dictionary has them.
    """
    try:
        return _sorted(value)
    except TypeError:
        return _sorted(msgspec.to_builtins(value, str_keys=True))


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def bucket_of(key: str) -> int:
    return crc32(key.encode()) % BUCKETS


class Part:
    """The entries of one large part.

    `shared` marks the buckets that a snapshot has too: they are copied before they change.
    """

    def __init__(self) -> None:
        self.buckets: list[Bucket] = [{} for _ in range(BUCKETS)]
        self.sums = [0] * BUCKETS
        self.shared = bytearray(BUCKETS)

    def put(self, key: str, entry: bytes | None) -> None:
        """Set the digest of an entry; None removes it."""
        place = bucket_of(key)
        bucket = self.buckets[place]
        before = bucket.get(key)
        if entry == before:
            return
        if self.shared[place]:
            bucket = self.buckets[place] = dict(bucket)
            self.shared[place] = 0
        total = self.sums[place]
        if before is not None:
            total -= int.from_bytes(before)
            del bucket[key]
        if entry is not None:
            total += int.from_bytes(entry)
            bucket[key] = entry
        self.sums[place] = total % _MODULUS

    def digest(self) -> bytes:
        return digest(b"".join(each.to_bytes(DIGEST_BYTES) for each in self.sums))

    def frozen(self) -> tuple[Bucket, ...]:
        """Return the buckets as they are now; later changes do not touch them."""
        self.shared = bytearray(b"\1" * BUCKETS)
        return tuple(self.buckets)


class StateTree:
    """The tree of one state.

    `new` are the entries that the state had at first and that have no digest yet; `stale` those
    that facts changed since their last digest. An entry changes often, so it is hashed only when a
    hash is due. `buckets` and `whole` are the tree as of the last call of `hashed`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.parts = {name: Part() for name in BUCKETED}
        self.new: dict[str, list[str]] = {name: list(getattr(cluster, name)) for name in BUCKETED}
        self.stale: dict[str, dict[str, None]] = {name: {} for name in BUCKETED}
        self.buckets: dict[str, tuple[Bucket, ...]] = {}
        self.whole: dict[str, bytes] = {}

    @property
    def backlog(self) -> int:
        """Return how many entries must be hashed before the next hash is known."""
        return sum(len(self.new[name]) + len(self.stale[name]) for name in BUCKETED)

    def note(self, facts: Iterable[AnyFact | Unknown], changes: Iterable[Change]) -> None:
        """Note which entries a commit changed.

        A change names the jobs whose indexes must follow, and the jobs that left the state. Two
        kinds of facts also change other jobs.
        """
        jobs = self.stale["jobs"]
        for change in changes:
            for job_id in (*change.jobs, *change.forgotten):
                jobs[job_id] = None
        for fact in facts:
            if isinstance(fact, NodeRegistered):
                jobs.update(dict.fromkeys(ref.job_id for ref in fact.attempts))
            elif isinstance(fact, ModelUsed):
                jobs.update(dict.fromkeys(use.job_id for use in fact.uses))

    def catch_up(self, cluster: Cluster) -> None:
        """Hash every entry that has no digest of its present value."""
        self.work(cluster, self.backlog)
        for name in BUCKETED:
            values, part = getattr(cluster, name), self.parts[name]
            for key in self.stale[name]:
                _hash_entry(part, key, values)
            self.stale[name] = {}

    def work(self, cluster: Cluster, most: int) -> None:
        """Hash at most `most` of the first entries of each part."""
        for name in BUCKETED:
            keys = self.new[name]
            if keys:
                values, part = getattr(cluster, name), self.parts[name]
                for _ in range(min(most, len(keys))):
                    _hash_entry(part, keys.pop(), values)

    def rework(self, cluster: Cluster, most: int) -> None:
        """Hash at most `most` changed entries of each part, the oldest changes first."""
        for name in BUCKETED:
            values, part, stale = getattr(cluster, name), self.parts[name], self.stale[name]
            for key in list(islice(stale, most)):
                _hash_entry(part, key, values)
                del stale[key]

    def hashed(self, cluster: Cluster, seq: int) -> StateHash:
        """Return the hash of the whole state."""
        self.catch_up(cluster)
        self.buckets = {name: part.frozen() for name, part in self.parts.items()}
        self.whole = {name: encoded(getattr(cluster, name)) for name in whole_parts()}
        parts = {name: part.digest() for name, part in self.parts.items()}
        parts |= {name: digest(data) for name, data in self.whole.items()}
        return StateHash(seq=seq, schema=fingerprint(), parts=parts)


@cache
def whole_parts() -> tuple[str, ...]:
    """Return the parts that are hashed whole."""
    return tuple(name for name in Cluster.__struct_fields__ if name not in BUCKETED)


def _hash_entry(part: Part, key: str, values: Mapping[str, object]) -> None:
    value = values.get(key)
    part.put(key, digest(encoded((key, value))) if value is not None else None)


def differing_parts(one: StateHash, other: StateHash) -> list[str]:
    """Return the parts that differ, in the order of their names."""
    names = sorted({*one.parts, *other.parts})
    return [name for name in names if one.parts.get(name) != other.parts.get(name)]


def differing_key(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Return the first key with different values; empty if all are equal."""
    names = sorted({*one, *other})
    return next((name for name in names if one.get(name) != other.get(name)), "")
