"""Kept moments are bounded in number and bytes; a tenant that reads many loses its own first."""

from hypothesis import given
from hypothesis import strategies as st

from services.api_gateway.moments.kept import Kept


def filled(*puts: tuple[int, int, str], most: int = 3, bytes_max: int = 100) -> Kept[int]:
    kept: Kept[int] = Kept(most, bytes_max)
    for seq, size, tenant in puts:
        kept.put(seq, seq, size, tenant)
    return kept


def seqs(kept: Kept[int], upto: int = 10) -> list[int]:
    return [seq for seq in range(upto) if kept.nearest(seq) == seq and seq]


def test_the_oldest_is_dropped_when_there_are_too_many() -> None:
    assert seqs(filled((1, 1, "a"), (2, 1, "a"), (3, 1, "a"), (4, 1, "a"))) == [2, 3, 4]


def test_a_read_moment_counts_as_new() -> None:
    kept = filled((1, 1, "a"), (2, 1, "a"), (3, 1, "a"))
    assert kept.get(1) == 1
    kept.put(4, 4, 1, "a")
    assert seqs(kept) == [1, 3, 4]
    assert kept.get(2) is None


def test_the_tenant_that_has_most_loses_its_oldest_first() -> None:
    kept = filled((1, 1, "quiet"), (2, 1, "greedy"), (3, 1, "greedy"), (4, 1, "greedy"))
    assert seqs(kept) == [1, 3, 4]


def test_bytes_are_bounded_and_the_newest_one_stays() -> None:
    kept = filled((1, 60, "a"), (2, 60, "b"))
    assert (seqs(kept), kept.bytes) == ([2], 60)
    kept.put(3, 3, 500, "a")
    assert (seqs(kept), kept.bytes, len(kept)) == ([3], 500, 1)


def test_a_moment_that_is_put_again_counts_once() -> None:
    assert filled((1, 60, "a"), (1, 30, "a")).bytes == 30


def test_the_nearest_is_the_last_that_is_not_beyond() -> None:
    kept = filled((3, 1, "a"), (7, 1, "a"))
    assert [kept.nearest(seq) for seq in (2, 3, 6, 7, 9)] == [0, 3, 3, 7, 7]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 70), st.sampled_from("abc")), max_size=40)
)
def test_all_bounds_hold_after_every_put(puts: list[tuple[int, int, str]]) -> None:
    kept = filled()
    for seq, size, tenant in puts:
        kept.put(seq, seq, size, tenant)
        held = seqs(kept)
        assert seq in held and len(held) == len(kept) <= 3
        assert kept.bytes <= 100 or len(kept) == 1
