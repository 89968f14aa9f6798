"""The pure allocator: best fit, coalescing, size classes, and wrong calls."""

import pytest

from libs.job.memory.allocator import FREES_PER_MERGE, Allocator, AllocatorError

MIB = 1 << 20


def range_of(size: int, alignment: int = 256) -> Allocator:
    allocator = Allocator(alignment)
    allocator.add(0, size)
    return allocator


def test_the_smallest_block_that_fits_is_taken_at_the_lowest_offset() -> None:
    allocator = range_of(64 * MIB)
    blocks = [allocator.allocate(size * MIB) for size in (4, 1, 2, 1, 3, 1)]
    for index in (0, 2, 4):
        allocator.free(blocks[index])
    allocator.merge()
    assert allocator.allocate(2 * MIB - 4096) == blocks[2]
    assert allocator.allocate(3 * MIB) == blocks[4]
    assert allocator.allocate(4 * MIB) == blocks[0]


def test_freed_neighbours_become_one_block() -> None:
    allocator = range_of(3 * MIB)
    blocks = [allocator.allocate(MIB) for _ in range(3)]
    assert allocator.allocate(256) == -1
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.free(block)
    assert allocator.largest_free() == 3 * MIB
    assert list(allocator.free_blocks()) == [(0, 3 * MIB)]


def test_waiting_blocks_merge_when_nothing_else_fits() -> None:
    allocator = range_of(2 * MIB)
    for block in [allocator.allocate(MIB) for _ in range(2)]:
        allocator.free(block)
    assert allocator.allocate(2 * MIB) == 0


def test_a_block_larger_than_all_that_merges_is_not_given() -> None:
    allocator = range_of(2 * MIB)
    first, second = allocator.allocate(MIB), allocator.allocate(MIB)
    allocator.free(second)
    assert allocator.allocate(2 * MIB) == -1
    assert allocator.allocate(MIB) == second
    assert list(allocator.live) == [first, second]


def test_waiting_blocks_merge_after_a_bounded_number_of_frees() -> None:
    allocator = range_of(FREES_PER_MERGE * 256)
    for block in [allocator.allocate(256) for _ in range(FREES_PER_MERGE)]:
        allocator.free(block)
    assert allocator._waiting == {}


@pytest.mark.parametrize("alignment", [64, 256, 4096])
@pytest.mark.parametrize("size", [1, 63, 257, 5000, 100_000, MIB + 1, 33 * MIB + 1])
def test_blocks_are_aligned_and_at_most_a_sixteenth_larger(alignment: int, size: int) -> None:
    allocator = range_of(64 * MIB, alignment)
    offset = allocator.allocate(size)
    assert offset % alignment == 0
    assert size <= allocator.live[offset] <= size + max(alignment, size // 16)
    assert allocator.live[offset] == allocator.rounded(size)


def test_a_block_grows_only_into_free_bytes_behind_it() -> None:
    allocator = range_of(4 * MIB)
    first, second = allocator.allocate(MIB), allocator.allocate(MIB)
    assert not allocator.resize(first, 2 * MIB)
    assert allocator.resize(second, 3 * MIB)
    assert (allocator.used, allocator.free_bytes) == (4 * MIB, 0)
    assert allocator.resize(second, MIB)
    assert allocator.largest_free() == 2 * MIB


def test_spans_are_taken_from_the_end_and_only_where_whole_units_are_free() -> None:
    allocator = range_of(8 * MIB)
    allocator.allocate(MIB)
    assert allocator.take_spans(2 * MIB, 4 * MIB) == [(4 * MIB, 4 * MIB)]
    assert allocator.take_spans(2 * MIB, 100 * MIB) == [(2 * MIB, 2 * MIB)]
    assert (allocator.total, allocator.used, allocator.largest_free()) == (2 * MIB, MIB, MIB)


def test_what_is_left_behind_a_taken_span_stays_free() -> None:
    allocator = range_of(5 * MIB)
    assert allocator.take_spans(2 * MIB, 2 * MIB) == [(2 * MIB, 2 * MIB)]
    assert list(allocator.free_blocks()) == [(0, 2 * MIB), (4 * MIB, MIB)]


@pytest.mark.parametrize("size", [0, -1, 1 << 60])
def test_bad_sizes_are_refused_with_the_value(size: int) -> None:
    allocator = range_of(MIB)
    with pytest.raises(AllocatorError, match=f"cannot allocate {size} bytes; use 1 to"):
        allocator.allocate(size)
    with pytest.raises(AllocatorError, match=str(size)):
        allocator.resize(allocator.allocate(256), size)


def test_a_wrong_offset_is_refused_with_what_it_is() -> None:
    allocator = range_of(MIB)
    block = allocator.allocate(4096)
    with pytest.raises(AllocatorError, match=f"inside the block at {block}"):
        allocator.free(block + 256)
    with pytest.raises(AllocatorError, match="does not belong to this range"):
        allocator.free(5 * MIB)
    allocator.free(block)
    with pytest.raises(AllocatorError, match="freed twice"):
        allocator.free(block)
    with pytest.raises(AllocatorError, match="freed twice"):
        allocator.resize(block, 256)
    assert allocator.free_bytes == allocator.largest_free() == MIB


@pytest.mark.parametrize("alignment", [0, 8, -64, 100])
def test_an_alignment_is_a_power_of_two(alignment: int) -> None:
    with pytest.raises(AllocatorError, match="power of two"):
        Allocator(alignment)


@pytest.mark.parametrize("span", [(1, 256), (-256, 256), (0, 0), (1 << 48, 256)])
def test_a_span_outside_the_range_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(AllocatorError, match="no span of this range"):
        Allocator(256).add(*span)
