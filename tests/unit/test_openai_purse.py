"""A gateway's part of a minute: it is spent once, ends before quota's minute, and its surplus
returns.
"""

from libs.common.messages.rate_messages import Slice, SliceAsk, SliceReturn
from libs.common.model import TenantId
from services.api_gateway.openai.purse import REFUSED_NS, Need, Purse, Shown, headers_of

SECOND = 1_000_000_000
T = TenantId("t")


def filled(requests: int = 10, tokens: int = 100, limit: int = 1_600) -> Purse:
    purse = Purse(T)
    purse.put(
        Slice(
            window=7,
            left_ms=5_000,
            given=True,
            requests=requests,
            tokens=tokens,
            requests_limit=50,
            tokens_limit=limit,
            requests_left=40,
            tokens_left=limit - tokens,
        ),
        Need(1, 1),
        SECOND,
    )
    return purse


def test_the_content_of_a_purse_is_spent_once() -> None:
    purse = filled()
    assert purse.take(Need(1, 60), 2 * SECOND)
    assert not purse.take(Need(1, 41), 2 * SECOND)
    assert purse.take(Need(1, 40), 2 * SECOND)
    assert (purse.requests, purse.tokens) == (8, 0)


def test_a_purse_is_void_at_the_end_of_the_minute_counted_from_the_question() -> None:
    purse = filled()
    assert purse.take(Need(1, 1), 6 * SECOND - 1)
    assert not purse.take(Need(1, 1), 6 * SECOND)
    assert purse.ask(Need(1, 60), 6 * SECOND) == SliceAsk(T, 1, 60)


def test_a_purse_asks_only_for_the_missing_part() -> None:
    assert filled().ask(Need(1, 130), 2 * SECOND) == SliceAsk(T, 0, 30)


def test_a_slice_is_added_to_what_was_set_aside_and_a_failed_question_takes_nothing() -> None:
    purse = filled()
    purse.ask(Need(1, 130), 2 * SECOND)
    assert not purse.take(Need(0, 1), 2 * SECOND)
    purse.put_back()
    assert (purse.requests, purse.tokens) == (10, 100)


def test_each_answer_may_extend_the_minute() -> None:
    purse = filled()
    purse.put(
        Slice(
            window=7,
            left_ms=1_200,
            given=True,
            requests=0,
            tokens=1,
            requests_limit=50,
            tokens_limit=1_600,
        ),
        Need(1, 1),
        5 * SECOND,
    )
    assert purse.until_ns == 6_200_000_000
    purse.put(
        Slice(
            window=7,
            left_ms=0,
            given=True,
            requests=0,
            tokens=1,
            requests_limit=50,
            tokens_limit=1_600,
        ),
        Need(1, 1),
        6 * SECOND,
    )
    assert purse.until_ns == 6_200_000_000


def test_a_refusal_does_not_affect_the_next_minute() -> None:
    purse = filled()
    purse.put(
        Slice(
            window=7,
            left_ms=10,
            given=False,
            requests=0,
            tokens=0,
            requests_limit=50,
            tokens_limit=1_600,
            requests_left=3,
            tokens_left=20,
        ),
        Need(1, 200),
        6 * SECOND,
    )
    assert purse.refused(Need(1, 200), 6 * SECOND + 9_000_000)
    assert not purse.refused(Need(1, 200), 6 * SECOND + 10_000_000)


def test_a_slice_of_the_next_minute_replaces_the_old_content() -> None:
    purse = filled()
    purse.put(
        Slice(
            window=8,
            left_ms=60_000,
            given=True,
            requests=1,
            tokens=30,
            requests_limit=50,
            tokens_limit=1_600,
        ),
        Need(1, 1),
        6 * SECOND,
    )
    assert (purse.requests, purse.tokens) == (1, 30)


def test_a_slice_of_a_minute_that_is_past_is_not_spent() -> None:
    purse = filled()
    purse.put(
        Slice(
            window=6,
            left_ms=60_000,
            given=True,
            requests=9,
            tokens=900,
            requests_limit=50,
            tokens_limit=1_600,
        ),
        Need(1, 1),
        2 * SECOND,
    )
    assert (purse.window, purse.requests, purse.tokens) == (7, 10, 100)


def test_a_refusal_lasts_a_moment_and_not_for_smaller_requests() -> None:
    purse = filled()
    purse.put(
        Slice(
            window=7,
            left_ms=4_000,
            given=False,
            requests=0,
            tokens=0,
            requests_limit=50,
            tokens_limit=1_600,
            requests_left=3,
            tokens_left=20,
        ),
        Need(1, 200),
        2 * SECOND,
    )
    assert purse.refused(Need(1, 200), 2 * SECOND + REFUSED_NS - 1)
    assert not purse.refused(Need(1, 199), 2 * SECOND)
    assert not purse.refused(Need(1, 200), 2 * SECOND + REFUSED_NS)


def test_unused_tokens_can_be_spent_again_in_their_minute_only() -> None:
    purse = filled()
    assert purse.take(Need(1, 100), 2 * SECOND)
    assert purse.settle(7, 100, 40, 2 * SECOND) is None and purse.tokens == 60
    assert purse.settle(6, 100, 40, 2 * SECOND) is None and purse.tokens == 60
    assert purse.settle(7, 100, 40, 6 * SECOND) is None and purse.tokens == 60


def test_tokens_used_beyond_the_reservation_are_owed() -> None:
    purse = filled()
    assert purse.take(Need(1, 100), 2 * SECOND)
    purse.settle(7, 100, 130, 2 * SECOND)
    assert purse.ask(Need(0, 10), 2 * SECOND) == SliceAsk(T, 0, 40)


def test_surplus_tokens_return_to_quota() -> None:
    purse = filled(tokens=400)
    assert purse.take(Need(1, 400), 2 * SECOND)
    assert purse.settle(7, 400, 100, 2 * SECOND) == SliceReturn(T, 7, 0, 200)
    assert purse.tokens == 100


def test_the_headers_contain_only_limited_quantities() -> None:
    purse = filled()
    shown = dict(purse.headers(2 * SECOND))
    assert (
        shown[b"x-ratelimit-limit-tokens"] == b"1600"
        and shown[b"x-ratelimit-remaining-tokens"] == b"1600"
    )
    assert (
        shown[b"x-ratelimit-limit-requests"] == b"50"
        and shown[b"x-ratelimit-remaining-requests"] == b"50"
    )
    assert shown[b"x-ratelimit-reset-tokens"] == b"4s"
    purse.put(
        Slice(
            window=7,
            left_ms=4_000,
            given=True,
            requests=0,
            tokens=5,
            requests_limit=0,
            tokens_limit=1_600,
            requests_left=0,
            tokens_left=3,
        ),
        Need(0, 5),
        2 * SECOND,
    )
    assert b"x-ratelimit-limit-requests" not in dict(purse.headers(2 * SECOND))


def test_what_another_account_refused_comes_back_within_its_minute_only() -> None:
    purse = filled()
    assert purse.take(Need(1, 60), 2 * SECOND)
    purse.give_back(6, Need(1, 60), 2 * SECOND)
    purse.give_back(7, Need(1, 60), 6 * SECOND)
    assert (purse.requests, purse.tokens) == (9, 40)
    purse.give_back(7, Need(1, 60), 2 * SECOND)
    assert (purse.requests, purse.tokens) == (10, 100)


def test_headers_of_several_accounts_tell_the_limit_of_which_least_is_left() -> None:
    def shown(name: bytes, limit: int, left: int) -> Shown:
        return Shown(name, limit, left, b"5s")

    found = headers_of(
        [
            shown(b"requests", 50, 9),
            shown(b"tokens", 1_000, 200),
            shown(b"tokens", 500, 300),
            shown(b"requests", 60, 8),
        ]
    )
    assert dict(found) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"8",
        b"x-ratelimit-reset-requests": b"5s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"200",
        b"x-ratelimit-reset-tokens": b"5s",
    }


def test_a_purse_asks_and_returns_for_its_own_account() -> None:
    purse = Purse(T, "key:k1")
    assert purse.ask(Need(1, 9), SECOND) == SliceAsk(T, 1, 9, "key:k1")
    purse.put(
        Slice(window=7, left_ms=5_000, given=True, tokens=900, tokens_limit=1_600),
        Need(0, 1),
        SECOND,
    )
    back = purse.settle(7, 100, 0, 2 * SECOND)
    assert back == SliceReturn(T, 7, 0, 900, "key:k1")
