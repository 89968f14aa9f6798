"""Blocks of one address range: size classes in front of best fit with coalescing. Pure.

Offsets and sizes are bytes. Free blocks lie in eight sorted lists per power of two, as numbers of
size and offset: the first one that is not smaller is the best fit, at the lowest offset. A freed
block first waits on a stack of its size, where the next allocation of that size takes it; after
`FREES_PER_MERGE` frees, or when nothing fits, all waiting blocks merge with their neighbours.
(Deferred coalescing: Wilson, Johnstone, Neely and Boles, "Dynamic storage allocation: a survey",
1995.)
Rule: `used + free == total` after every call, and `used` is the sum of the live blocks.
Tests: tests/unit/test_pool_allocator.py, tests/property/test_pool_machine.py.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

# Sizes are rounded up to a sixteenth of their power of two, at most to 2 MiB.
STEPS_BITS: Final = 5
STEP_MAX: Final = 2 << 20
# How many frees pass until waiting blocks merge; bounds the pause of one merge.
FREES_PER_MERGE: Final = 4096
OFFSET_BITS: Final = 48
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
SIZE_MAX: Final = 1 << 46
# Free blocks of a power of two are in eight lists: insertion costs time in proportion to a list.
LISTS_BITS: Final = 3
LIST_MASK: Final = (1 << LISTS_BITS) - 1
ALIGNMENT_MIN: Final = 16


class AllocatorError(ValueError):
    """A size or an offset that the allocator cannot serve."""


class Allocator:
    """The blocks of a range. `alignment`: power of two, in bytes; of every offset and size."""

    def __init__(self, alignment: int) -> None:
        if alignment < ALIGNMENT_MIN or alignment & (alignment - 1):
            raise AllocatorError(
                f"alignment {alignment} is not a power of two from {ALIGNMENT_MIN} on; use 64, 256"
                " or 4096"
            )
        self.alignment = alignment
        # By bit length of a size: the step to which it is rounded up.
        self._steps = [
            max(alignment, min(1 << max(bits - STEPS_BITS, 0), STEP_MAX))
            for bits in range(OFFSET_BITS + 1)
        ]
        self.total = 0
        self.used = 0
        self.live: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._classes: list[list[int]] = [[] for _ in range((OFFSET_BITS + 1) << LISTS_BITS)]
        self._filled = 0
        self._waiting: dict[int, list[int]] = {}
        self._frees = 0

    @property
    def free_bytes(self) -> int:
        """The bytes in no live block."""
        return self.total - self.used

    def rounded(self, size: int) -> int:
        """Return the bytes that a block of `size` bytes takes.

        Raises AllocatorError for a bad size.
        """
        if not 0 < size <= SIZE_MAX:
            raise AllocatorError(f"cannot allocate {size} bytes; use 1 to {SIZE_MAX} bytes")
        step = self._steps[size.bit_length()]
        return (size + step - 1) & -step

    def allocate(self, size: int) -> int:
        """Take a block and return its offset, or -1 if no free block is large enough."""
        if not 0 < size <= SIZE_MAX:
            self.rounded(size)
        step = self._steps[size.bit_length()]
        size = (size + step - 1) & -step
        waiting = self._waiting.get(size)
        if waiting:
            offset = waiting.pop()
        else:
            offset = self._best_fit(size)
            if offset < 0:
                if not self._frees:
                    return -1
                self.merge()
                offset = self._best_fit(size)
                if offset < 0:
                    return -1
        self.live[offset] = size
        self.used += size
        return offset

    def free(self, offset: int) -> int:
        """Give a block back and return its bytes.

        Raises AllocatorError for an offset that is no live block: freed twice, inside a block, or
        of nothing that this allocator gave.
        """
        size = self.live.pop(offset, 0)
        if not size:
            raise AllocatorError(self._why_not_live(offset))
        self.used -= size
        waiting = self._waiting.get(size)
        if waiting is None:
            self._waiting[size] = [offset]
        else:
            waiting.append(offset)
        self._frees += 1
        if self._frees >= FREES_PER_MERGE:
            self.merge()
        return size

    def resize(self, offset: int, size: int) -> bool:
        """Shrink or grow a block where it lies; False if the bytes behind it are taken.

        Raises AllocatorError for a bad size, and for an offset as `free` does.
        """
        have = self.live.get(offset, 0)
        if not have:
            raise AllocatorError(self._why_not_live(offset))
        want = self.rounded(size)
        if want > have:
            self.merge()
            behind = self._starts.get(offset + have, 0)
            if have + behind < want:
                return False
            self._remove(offset + have, behind)
            if have + behind > want:
                self._insert(offset + want, have + behind - want)
        elif want < have:
            self._join(offset + want, have - want)
        self.live[offset] = want
        self.used += want - have
        return True

    def add(self, offset: int, size: int) -> None:
        """Add free bytes to the range; they must not be part of it already."""
        self._check_span(offset, size)
        self.total += size
        self._join(offset, size)

    def take_spans(self, unit: int, most: int) -> list[tuple[int, int]]:
        """Take wholly free, aligned multiples of `unit` out of the range, from its end.

        Takes at most `most` bytes and returns offset and bytes of each span.
        """
        taken: list[tuple[int, int]] = []
        for start, length in reversed(list(self.free_blocks())):
            first = -(-start // unit) * unit
            end = (start + length) // unit * unit
            first = max(first, end - most // unit * unit)
            if first >= end:
                continue
            self._remove(start, length)
            if start < first:
                self._insert(start, first - start)
            if end < start + length:
                self._insert(end, start + length - end)
            taken.append((first, end - first))
            self.total -= end - first
            most -= end - first
        return taken

    def merge(self) -> None:
        """Merge waiting blocks with their free neighbours."""
        self._frees = 0
        waiting, self._waiting = self._waiting, {}
        for size, offsets in waiting.items():
            for offset in offsets:
                self._join(offset, size)

    def free_blocks(self) -> Iterator[tuple[int, int]]:
        """Return offset and bytes of each free block, by offset; waiting blocks merge first."""
        self.merge()
        return iter(sorted(self._starts.items()))

    def largest_free(self) -> int:
        """Return the bytes of the largest free block; 0 if there is none."""
        self.merge()
        if not self._filled:
            return 0
        return self._classes[self._filled.bit_length() - 1][-1] >> OFFSET_BITS

    def _best_fit(self, size: int) -> int:
        bits = size.bit_length() - 1
        index = bits << LISTS_BITS | (size >> (bits - LISTS_BITS)) & LIST_MASK
        keys = self._classes[index]
        at = bisect_left(keys, size << OFFSET_BITS)
        if at == len(keys):
            above = self._filled >> (index + 1)
            if not above:
                return -1
            index += (above & -above).bit_length()
            keys = self._classes[index]
            at = 0
        key = keys[at]
        del keys[at]
        if not keys:
            self._filled &= ~(1 << index)
        offset = key & OFFSET_MASK
        found = key >> OFFSET_BITS
        starts = self._starts
        del starts[offset]
        rest = found - size
        if not rest:
            del self._ends[offset + found]
            return offset
        # As `_insert` does; a call would cost a tenth of the time.
        behind = offset + size
        starts[behind] = rest
        self._ends[offset + found] = behind
        bits = rest.bit_length() - 1
        index = bits << LISTS_BITS | (rest >> (bits - LISTS_BITS)) & LIST_MASK
        insort(self._classes[index], rest << OFFSET_BITS | behind)
        self._filled |= 1 << index
        return offset

    def _join(self, offset: int, size: int) -> None:
        """Insert free bytes, as one block with the free neighbours on both sides."""
        behind = self._starts.get(offset + size)
        if behind is not None:
            self._remove(offset + size, behind)
            size += behind
        before = self._ends.get(offset)
        if before is not None:
            length = offset - before
            self._remove(before, length)
            offset = before
            size += length
        self._insert(offset, size)

    def _insert(self, offset: int, size: int) -> None:
        self._starts[offset] = size
        self._ends[offset + size] = offset
        bits = size.bit_length() - 1
        index = bits << LISTS_BITS | (size >> (bits - LISTS_BITS)) & LIST_MASK
        insort(self._classes[index], size << OFFSET_BITS | offset)
        self._filled |= 1 << index

    def _remove(self, offset: int, size: int) -> None:
        del self._starts[offset]
        del self._ends[offset + size]
        bits = size.bit_length() - 1
        index = bits << LISTS_BITS | (size >> (bits - LISTS_BITS)) & LIST_MASK
        keys = self._classes[index]
        del keys[bisect_left(keys, size << OFFSET_BITS | offset)]
        if not keys:
            self._filled &= ~(1 << index)

    def _check_span(self, offset: int, size: int) -> None:
        end = offset + size
        if offset < 0 or size <= 0 or end > OFFSET_MASK or (offset | size) % self.alignment:
            raise AllocatorError(
                f"{size} bytes at offset {offset} are no span of this range: both must be"
                f" multiples of {self.alignment} and end below {OFFSET_MASK}"
            )

    def _why_not_live(self, offset: int) -> str:
        """Say what an offset is that should have been a live block. Slow: for errors only."""
        for start, size in self.live.items():
            if start < offset < start + size:
                return f"offset {offset} is inside the block at {start}; pass the block's own start"
        for start, size in self.free_blocks():
            if start <= offset < start + size:
                return f"offset {offset} is free already: freed twice, or never allocated"
        return f"offset {offset} does not belong to this range; pass what allocate returned"
