"""Random calls of allocator and pool against a naive oracle: a list of blocks and their bytes."""

import ctypes
import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from libs.job.device.errors import DeviceError
from libs.job.memory.allocator import Allocator, AllocatorError
from libs.job.memory.host_driver import HostDriver
from libs.job.memory.pool import Pool, PoolError

KIB = 1024
CHUNK = 64 * KIB
LIMIT = 16 * CHUNK
SIZES = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 5 * CHUNK))


def overlaps(blocks: dict[int, int]) -> list[int]:
    """Blocks that begin before the one below them ends."""
    ordered = sorted(blocks.items())
    pairs = itertools.pairwise(ordered)
    return [above for (below, size), (above, _) in pairs if below + size > above]


class AllocatorMachine(RuleBasedStateMachine):
    """The allocator alone, on a range that never grows."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(256)
        self.allocator.add(0, LIMIT)
        self.blocks: dict[int, int] = {}

    def largest_gap(self) -> int:
        """Return the size of the largest gap that the oracle finds."""
        edges = [(0, 0), *sorted(self.blocks.items()), (LIMIT, 0)]
        pairs = itertools.pairwise(edges)
        return max(above - below - size for (below, size), (above, _) in pairs)

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        rounded = self.allocator.rounded(size)
        fits = self.largest_gap() >= rounded
        offset = self.allocator.allocate(size)
        assert (offset >= 0) == fits
        if fits:
            assert offset % 256 == 0 and offset + rounded <= LIMIT
            self.blocks[offset] = rounded

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        offset = data.draw(st.sampled_from(sorted(self.blocks)))
        assert self.allocator.free(offset) == self.blocks.pop(offset)
        with pytest.raises(AllocatorError):
            self.allocator.free(offset)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), size=SIZES)
    def resize(self, data: Any, size: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.blocks)))
        after = min([each for each in self.blocks if each > offset], default=LIMIT)
        rounded = self.allocator.rounded(size)
        assert self.allocator.resize(offset, size) == (offset + rounded <= after)
        if offset + rounded <= after:
            self.blocks[offset] = rounded

    @invariant()
    def accounts_agree(self) -> None:
        assert self.allocator.live == self.blocks
        assert self.allocator.used == sum(self.blocks.values())
        assert self.allocator.total == LIMIT
        assert overlaps(self.blocks) == []

    @rule()
    def free_blocks_fill_the_rest(self) -> None:
        assert sum(size for _, size in self.allocator.free_blocks()) == LIMIT - self.allocator.used
        assert self.allocator.largest_free() == self.largest_gap()


class PoolMachine(RuleBasedStateMachine):
    """The pool over real mappings: every block keeps the bytes that were written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = HostDriver(device_bytes=LIMIT, granularity=CHUNK)
        self.pool = Pool(self.driver, limit_bytes=LIMIT)
        self.blocks: dict[int, int] = {}
        self.values: dict[int, int] = {}
        self.written = 0

    def write(self, address: int, size: int) -> None:
        self.written = self.written % 255 + 1
        ctypes.memset(address, self.written, size)
        self.blocks[address] = self.pool.size_of(address)
        self.values[address] = self.written

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        try:
            address = self.pool.allocate(size)
        except DeviceError as error:
            assert error.cause == "OUT_OF_MEMORY"
            # Nothing less than whole free chunks can be missing: the rest is partly used chunks.
            assert size > self.pool.stats().largest_free
            return
        assert address % self.driver.alignment == 0
        self.write(address, self.pool.size_of(address))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        address = data.draw(st.sampled_from(sorted(self.blocks)))
        self.pool.free(address)
        del self.blocks[address], self.values[address]
        with pytest.raises(PoolError):
            self.pool.free(address)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), size=SIZES)
    def resize(self, data: Any, size: int) -> None:
        address = data.draw(st.sampled_from(sorted(self.blocks)))
        if self.pool.resize(address, size):
            self.write(address, self.pool.size_of(address))

    @rule()
    def defragment(self) -> None:
        before = self.pool.stats()
        self.pool.defragment()
        after = self.pool.stats()
        assert after.largest_free >= before.largest_free
        assert (after.used, after.reserved) == (before.used, before.reserved)

    @rule(keep=st.integers(0, LIMIT))
    def shrink(self, keep: int) -> None:
        before = self.pool.stats().reserved
        given = self.pool.shrink(keep)
        assert self.pool.stats().reserved == before - given >= min(keep, before)

    @invariant()
    def every_byte_is_accounted_and_kept(self) -> None:
        stats = self.pool.stats()
        assert stats.used == sum(self.blocks.values())
        assert stats.used + stats.free == stats.reserved == self.driver.used[0]
        assert stats.blocks == len(self.blocks)
        assert overlaps(self.blocks) == []
        for address, size in self.blocks.items():
            assert ctypes.string_at(address, size) == bytes([self.values[address]]) * size

    def teardown(self) -> None:
        self.pool.close()
        assert self.driver.used == [0]


AllocatorMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None
)
PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase
TestPool = PoolMachine.TestCase
