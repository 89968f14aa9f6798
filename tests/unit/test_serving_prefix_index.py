"""The prefix index: which replica holds how much of a prompt."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

from services.api_gateway.serving.prefix_index import (
    BLOCK_BYTES,
    BLOCKS_MAX,
    ENTRY_BYTES,
    HOLDER_BYTES,
    TENANT_BYTES,
    PrefixIndex,
    chain,
)

TEXT = bytes(range(256)) * 8


def test_equal_prefixes_have_equal_hashes_up_to_where_they_differ() -> None:
    other = TEXT[: 5 * BLOCK_BYTES] + b"x" * 3 * BLOCK_BYTES
    same = [a == b for a, b in zip(chain(b"t", TEXT), chain(b"t", other), strict=True)]
    assert same == [True] * 5 + [False] * 3


def test_a_block_counts_only_when_it_is_whole_and_the_prompt_is_bounded() -> None:
    assert len(chain(b"", TEXT[:-1])) == 7
    assert chain(b"", b"x" * 255) == ()
    assert len(chain(b"", bytes(BLOCK_BYTES) * (BLOCKS_MAX + 1))) == BLOCKS_MAX


def test_two_tenants_share_no_hash() -> None:
    assert not set(chain(b"a", TEXT)) & set(chain(b"b", TEXT))


def test_a_replica_holds_the_blocks_that_it_was_sent() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    hashes = chain(b"", TEXT)
    index.add(hashes[:3], "r1", 0)
    index.add(hashes, "r2", 0)
    assert index.matches(hashes, ("r1", "r2", "r3"), 1) == [3, 8, 0]
    assert index.matches(hashes[:2], ("r2", "r1"), 1) == [2, 2]
    assert index.matches(chain(b"other", TEXT), ("r1",), 1) == [0]


def test_an_entry_that_was_not_used_for_its_time_does_not_count() -> None:
    index: PrefixIndex[str] = PrefixIndex(ttl_ns=100)
    hashes = chain(b"", TEXT)
    index.add(hashes, "r", 0)
    assert index.matches(hashes, ("r",), 100) == [8]
    assert index.matches(hashes, ("r",), 101) == [0]
    index.add(hashes[:4], "r", 101)
    assert index.matches(hashes, ("r",), 102) == [4]


def test_a_forgotten_replica_holds_nothing_until_it_is_sent_something() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    hashes = chain(b"", TEXT)
    for replica in ("r1", "r2", "r3"):
        index.add(hashes, replica, 0)
    index.forget("r1")
    index.forget("never seen")
    assert index.matches(hashes, ("r1", "r2"), 0) == [0, 8]
    index.keep_only(("r3",))
    assert index.matches(hashes, ("r2", "r3"), 0) == [0, 8]
    index.add(hashes[:1], "r1", 0)
    assert index.matches(hashes, ("r1",), 0) == [1]


def test_the_least_recently_used_end_of_a_prompt_goes_first() -> None:
    index: PrefixIndex[str] = PrefixIndex(bytes_max=6 * (ENTRY_BYTES + HOLDER_BYTES) + TENANT_BYTES)
    first, second = chain(b"1", TEXT)[:4], chain(b"2", TEXT)[:4]
    index.add(first, "r", 0)
    index.add(second, "r", 0)
    assert index.matches(first, ("r",), 0) == [2]
    assert index.matches(second, ("r",), 0) == [4]


def test_a_flood_of_one_tenant_displaces_its_own_prompts_first() -> None:
    index: PrefixIndex[str] = PrefixIndex(bytes_max=1 << 20)
    modest = chain(b"modest", TEXT)
    index.add(modest, "r", 0, "modest")
    for number in range(10_000):
        index.add(chain(b"greedy", TEXT + b"%06d" % number * 256), "r", 1, "greedy")
        assert index.used_bytes <= index.bytes_max
    assert index.matches(modest, ("r",), 2, "modest") == [8]
    assert index.matches(modest, ("r",), 2, "greedy") == [0]


def test_many_tenants_of_one_prompt_each_stay_within_the_bound() -> None:
    index: PrefixIndex[str] = PrefixIndex(bytes_max=10_000)
    for number in range(1_000):
        index.add(chain(b"", TEXT), "r", number, f"t{number}")
        assert index.used_bytes <= index.bytes_max
    held = [sum(index.matches(chain(b"", TEXT), ("r",), 1_000, f"t{n}")) for n in range(1_000)]
    assert 0 < sum(held) * (ENTRY_BYTES + HOLDER_BYTES) <= 10_000


def test_the_index_needs_no_more_memory_than_its_bound() -> None:
    """Prompts that share nothing, each at several replicas or of many tenants: the worst cases."""
    bytes_max = 4 << 20
    tracemalloc.start()
    try:
        index: PrefixIndex[int] = PrefixIndex(bytes_max)
        number = 0
        for round_ in range(3):
            for _ in range(4_000):
                hashes = tuple((1 << 63) + number + step for step in range(4))
                number += 4
                for replica in range(1 + round_):
                    index.add(hashes, replica, number)
        for tenant in range(4_000):
            number += 1
            index.add((number,), 0, number, f"tenant-{tenant}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.used_bytes <= bytes_max
    assert held <= bytes_max


class Counted(tuple[int, ...]):
    """Hashes that count how often one is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.reads += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[int]:
        for place in range(len(self)):
            yield self[place]


def test_the_match_of_a_long_prompt_reads_few_of_its_blocks() -> None:
    index: PrefixIndex[int] = PrefixIndex()
    hashes = tuple(range(1, BLOCKS_MAX + 1))
    for replica in range(8):
        index.add(hashes[: 500 * (replica + 1)], replica, 0)
    matched = index.matches(Counted(hashes), range(8), 0)
    assert matched == [500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_500, 4_000]
    assert Counted.reads <= 8 * BLOCKS_MAX.bit_length() + 1
