"""Estimates of tokens from bytes, learnt from what replicas count."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.token_estimate import (
    ASCII,
    LEARNT_BYTES,
    MIXED,
    OTHER,
    TokenEstimate,
    script_of,
)


def test_an_unlearnt_text_has_four_bytes_per_token_and_at_least_one_token() -> None:
    estimate = TokenEstimate()
    assert (estimate.tokens(4_000), estimate.tokens(0)) == (1_000, 1)


def test_the_estimate_approaches_what_replicas_count() -> None:
    estimate = TokenEstimate()
    for _ in range(200):
        estimate.learn(2_000, ASCII, 1_000)
    assert 490 <= estimate.tokens(1_000) <= 500


def test_each_script_has_its_own_ratio() -> None:
    estimate = TokenEstimate()
    for _ in range(200):
        estimate.learn(1_800, OTHER, 1_200)
    assert estimate.tokens(900, OTHER) > 550
    assert estimate.tokens(900) == 225


def test_scripts_are_told_apart_by_the_end_of_the_text() -> None:
    assert script_of(b"hello world" * 100) == ASCII
    assert script_of("grüße an die köche über öl".encode()) == MIXED
    assert script_of("你好世界".encode()) == OTHER
    assert script_of(b"") == ASCII


def test_a_report_that_is_not_about_text_changes_nothing() -> None:
    estimate = TokenEstimate()
    estimate.learn(0, ASCII, 100)
    estimate.learn(4_000, ASCII, 0)
    assert estimate.tokens(4_000) == 1_000


def test_a_small_prompt_teaches_nothing_because_of_the_chat_template() -> None:
    estimate = TokenEstimate()
    for _ in range(200):
        estimate.learn(32, ASCII, 36)
        estimate.learn(LEARNT_BYTES - 1, ASCII, 900)
    assert estimate.tokens(4_000) == 1_000
    estimate.learn(LEARNT_BYTES, ASCII, 900)
    assert estimate.tokens(4_000) > 1_000


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(1, 1 << 40))))
def test_no_report_drives_the_estimate_out_of_its_bounds(reports: list[tuple[int, int]]) -> None:
    estimate = TokenEstimate()
    for size, tokens in reports:
        estimate.learn(size, ASCII, tokens)
    assert 1_023 <= estimate.tokens(1 << 20) <= 1 << 20
