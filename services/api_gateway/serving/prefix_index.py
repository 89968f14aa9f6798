"""Remembers which replica has processed which prompt.

So the router finds the replica whose cache holds the longest prefix of a new prompt.
A prompt is cut into blocks of 256 bytes. Each block's hash includes the hash of the block before it
and the tenant's salt, so a hash stands for a whole prefix of one tenant. Entries are bounded in
bytes. The tenant that has most of them loses its least recently used ones first, so that a flood of
one tenant's prompts does not displace those of others. An entry that was not used for `ttl_ns` does
not count. Pure.
Tests: tests/unit/test_serving_prefix_index.py, tests/property/test_serving_prefixes.py.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Generic, TypeVar

BLOCK_BYTES: Final = 256
HASH_BYTES: Final = 8
# The index reads the first MiB of a prompt; later bytes do not change the choice.
BLOCKS_MAX: Final = 4_096
BYTES_MAX: Final = 64 << 20
TTL_NS: Final = 600 * 1_000_000_000
# Upper bounds of what an entry needs in memory, each replica in it, and each tenant (measured by a
# test).
ENTRY_BYTES: Final = 400
HOLDER_BYTES: Final = 140
TENANT_BYTES: Final = 1_000

Replica = TypeVar("Replica", bound=Hashable)


def chain(salt: bytes, prompt: bytes) -> tuple[int, ...]:
    """Return the hashes of the prompt's whole blocks. `salt` separates tenants."""
    whole = min(BLOCKS_MAX, len(prompt) // BLOCK_BYTES)
    above = blake2b(salt, digest_size=HASH_BYTES).digest()
    hashes = []
    for start in range(0, whole * BLOCK_BYTES, BLOCK_BYTES):
        block = prompt[start : start + BLOCK_BYTES]
        above = blake2b(above + block, digest_size=HASH_BYTES).digest()
        hashes.append(int.from_bytes(above))
    return tuple(hashes)


class _Entries:
    """The entries of one tenant, the least recently used first: for each block's hash, when each
    replica was sent it.
    """

    __slots__ = ("seen_ns", "used_bytes")

    def __init__(self) -> None:
        self.seen_ns: OrderedDict[int, dict[int, int]] = OrderedDict()
        self.used_bytes = 0

    def note(self, each: int, number: int, now_ns: int) -> None:
        """Note that the replica of this number is sent the block."""
        holders = self.seen_ns.get(each)
        if holders is None:
            holders = self.seen_ns[each] = {}
            self.used_bytes += ENTRY_BYTES
        else:
            self.seen_ns.move_to_end(each)
        if number not in holders:
            self.used_bytes += HOLDER_BYTES
        holders[number] = now_ns

    def forget_oldest(self) -> int:
        """Forget the least recently used entry, and return its bytes."""
        _, gone = self.seen_ns.popitem(last=False)
        size = ENTRY_BYTES + HOLDER_BYTES * len(gone)
        self.used_bytes -= size
        return size


class PrefixIndex(Generic[Replica]):
    """The index of one model. Replicas get numbers, so that forgetting one takes one step."""

    def __init__(self, bytes_max: int = BYTES_MAX, ttl_ns: int = TTL_NS) -> None:
        self.bytes_max = bytes_max
        self.ttl_ns = ttl_ns
        self.used_bytes = 0
        self._tenants: dict[str, _Entries] = {}
        self._numbers: dict[Replica, int] = {}
        self._last = 0

    def matches(
        self, hashes: Sequence[int], replicas: Sequence[Replica], now_ns: int, tenant: str = ""
    ) -> list[int]:
        """Return how many of the prompt's first blocks each replica's cache holds.

        A replica that holds a block also holds all blocks before it, so bisection finds the length.
        The queue calls this at each of its steps, and a prompt has thousands of blocks.
        """
        entries = self._tenants.get(tenant)
        if entries is None or not hashes or hashes[0] not in entries.seen_ns:
            return [0] * len(replicas)
        oldest_ns, seen_ns = max(0, now_ns - self.ttl_ns), entries.seen_ns
        return [self._length(hashes, replica, oldest_ns, seen_ns) for replica in replicas]

    def _length(
        self,
        hashes: Sequence[int],
        replica: Replica,
        oldest_ns: int,
        seen_ns: Mapping[int, Mapping[int, int]],
    ) -> int:
        number = self._numbers.get(replica)
        if number is None:
            return 0
        nothing = dict[int, int]()
        return bisect_left(
            hashes, True, key=lambda each: seen_ns.get(each, nothing).get(number, -1) < oldest_ns
        )

    def add(self, hashes: Sequence[int], replica: Replica, now_ns: int, tenant: str = "") -> None:
        """Note that the replica gets the tenant's prompt.

        The first blocks count as the newest, so that a prefix outlives what follows it.
        """
        number = self._numbers.get(replica)
        if number is None:
            self._last += 1
            number = self._numbers[replica] = self._last
        entries = self._tenants.get(tenant)
        if entries is None:
            entries = self._tenants[tenant] = _Entries()
            self.used_bytes += TENANT_BYTES
        before = entries.used_bytes
        for each in reversed(hashes):
            entries.note(each, number, now_ns)
        self.used_bytes += entries.used_bytes - before
        while self.used_bytes > self.bytes_max:
            tenant = max(self._tenants, key=lambda each: self._tenants[each].used_bytes)
            self.drop(tenant, self.used_bytes - self.bytes_max)

    def bytes_of(self, tenant: str) -> int:
        """Return the bytes that the tenant's entries need."""
        entries = self._tenants.get(tenant)
        return entries.used_bytes + TENANT_BYTES if entries is not None else 0

    def by_tenant(self) -> dict[str, int]:
        """Return the bytes that each tenant's entries need."""
        return {tenant: self.bytes_of(tenant) for tenant in self._tenants}

    def drop(self, tenant: str, size: int) -> None:
        """Forget the tenant's least recently used entries: at least `size` bytes, or all."""
        entries, enough = self._tenants[tenant], self.used_bytes - size
        while entries.seen_ns and self.used_bytes > enough:
            self.used_bytes -= entries.forget_oldest()
        if not entries.seen_ns:
            del self._tenants[tenant]
            self.used_bytes -= TENANT_BYTES

    def forget(self, replica: Replica) -> None:
        """Forget what the replica holds, because it was restarted or is gone."""
        self._numbers.pop(replica, None)

    def keep_only(self, replicas: Sequence[Replica]) -> None:
        """Forget all other replicas."""
        for replica in [each for each in self._numbers if each not in replicas]:
            del self._numbers[replica]
