"""The latencies of a model in a gateway: percentiles of the last half minute."""

from services.api_gateway.openai.latencies import SECOND_NS, Latencies

MS_NS = 1_000_000


def test_without_a_request_both_are_zero() -> None:
    assert Latencies().p90_us(0) == (0, 0)


def test_nine_of_ten_first_tokens_came_within_the_percentile() -> None:
    seen = Latencies()
    for ms in range(1, 11):
        seen.first_token(ms * MS_NS, ms)
    assert seen.p90_us(10) == (10_000, 0)
    for ms in range(11, 21):
        seen.first_token(ms * MS_NS, ms)
    assert seen.p90_us(20) == (19_000, 0)


def test_the_time_per_token_counts_the_tokens_after_the_first() -> None:
    seen = Latencies()
    seen.ended(90 * MS_NS, 9, 0)
    seen.ended(90 * MS_NS, 0, 0)
    assert seen.p90_us(0) == (0, 10_000)


def test_samples_older_than_half_a_minute_count_no_more() -> None:
    seen = Latencies()
    seen.first_token(MS_NS, 0)
    seen.ended(8 * MS_NS, 4, 0)
    assert seen.p90_us(30 * SECOND_NS) == (1_000, 2_000)
    assert seen.p90_us(30 * SECOND_NS + 1) == (0, 0)
