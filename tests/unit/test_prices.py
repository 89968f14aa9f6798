"""The price list: which price fits, when it counts, and that parts add up exactly."""

from hypothesis import given
from hypothesis import strategies as st

from libs.common import prices as p
from libs.common.facts import ChargePart
from libs.common.model import GPU_HOUR_SHARE_MS
from libs.common.prices import NO_PRICE, Price

H100 = "NVIDIA H100 80GB HBM3"
EUR, LATER = Price(100, 2_500_000, "EUR"), Price(200, 3_000_000, "EUR")


def test_a_name_fits_a_gpu_if_its_words_stand_there_in_a_row() -> None:
    assert p.fits("h100", H100) and p.fits("H100-80gb", H100) and p.fits(p.ANY, "anything")
    assert not p.fits("h10", H100) and not p.fits("nvidia 80gb", H100)
    assert not p.fits("nvidia h100 80gb hbm3 sxm", H100)


def test_the_price_of_the_most_words_counts_and_any_counts_last() -> None:
    known = {"any": [Price(0, 1, "EUR")], "h100": [EUR], "h100 80gb": [LATER]}
    assert p.in_force(known, H100, 150) == EUR
    assert p.in_force(known, H100, 250) == LATER
    assert p.in_force(known, "A100", 250) == Price(0, 1, "EUR")


def test_a_price_counts_from_its_moment_on_and_none_before_or_after_its_removal() -> None:
    known = {"h100": [EUR, Price(300, 0, "")]}
    assert [p.in_force(known, H100, at).currency for at in (99, 100, 299, 300)] == [
        "",
        "EUR",
        "EUR",
        "",
    ]
    assert p.in_force({}, H100, 5) == NO_PRICE


def test_a_charge_is_split_where_its_price_changed() -> None:
    parts = p.priced([(H100, GPU_HOUR_SHARE_MS)], {"h100": [EUR, LATER]}, 100, 300)
    half = GPU_HOUR_SHARE_MS // 2
    assert parts == (
        ChargePart(H100, half, 2_500_000, 1_250_000, "EUR"),
        ChargePart(H100, half, 3_000_000, 1_500_000, "EUR"),
    )


def test_a_charge_without_a_price_or_without_a_span_has_one_part() -> None:
    assert p.priced([(H100, 7)], {}, 100, 300) == (ChargePart(H100, 7),)
    (part,) = p.priced([(H100, 7)], {"h100": [EUR]}, 100, 100)
    assert (part.share_ms, part.currency) == (7, "EUR")


def test_only_the_newest_moments_split_a_charge() -> None:
    moments = [Price(at, at, "EUR") for at in range(1, 101)]
    parts = p.priced([(H100, 1_000)], {"h100": moments}, 1, 200)
    assert len(parts) == p.PIECES_MAX and sum(part.share_ms for part in parts) == 1_000


def test_a_cost_is_rounded_half_up() -> None:
    assert p.cost(GPU_HOUR_SHARE_MS, 2_500_000) == 2_500_000
    assert p.cost(GPU_HOUR_SHARE_MS // 2, 1) == 1 and p.cost(GPU_HOUR_SHARE_MS // 2 - 1, 1) == 0


def test_without_weights_all_goes_to_the_last_part() -> None:
    assert p.spread(5, [0, 0]) == [0, 5]


@given(st.integers(0, 1 << 60), st.lists(st.integers(0, 1 << 50), min_size=1, max_size=50))
def test_parts_add_up_exactly_and_none_is_negative(total: int, weights: list[int]) -> None:
    parts = p.spread(total, weights)
    assert sum(parts) == total and min(parts) >= 0
    if total <= sum(weights):
        assert all(part <= weight for part, weight in zip(parts, weights, strict=True))


@given(
    st.integers(0, 1 << 50),
    st.lists(st.integers(0, 1_000), max_size=30),
    st.integers(0, 1_000),
    st.integers(0, 1_000),
)
def test_the_parts_of_any_charge_add_up_to_its_share(
    share_ms: int, moments: list[int], began_ns: int, length_ns: int
) -> None:
    known = {"h100": [Price(at, at, "EUR") for at in sorted(moments)]}
    parts = p.priced([(H100, share_ms)], known, began_ns, began_ns + length_ns)
    assert sum(part.share_ms for part in parts) == share_ms
    assert all(part.share_ms >= 0 <= part.cost_micros for part in parts)
