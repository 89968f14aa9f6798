"""The ledger of a minute: given out once, over any number of askers, and never again after a
restart.
"""

from random import Random

from libs.common.messages import rate_messages
from libs.common.messages.rate_messages import Slice, SliceAsk, SliceReturn
from libs.common.model import TenantId
from libs.common.state.rate_limits import RateLimits
from services.quota.ledger_time import LedgerTime
from services.quota.rates import MARKS, PAGES, SLICES, WINDOW_NS, Page, Rates

T = TenantId("t")
MINUTE = 1_000 * WINDOW_NS


def open_rates() -> Rates:
    return Rates(MINUTE - WINDOW_NS)


def tenant(requests: int = 0, tokens: int = 0) -> RateLimits:
    return RateLimits(requests, tokens)


def test_a_slice_is_what_is_asked_for_or_a_small_part_of_the_limit() -> None:
    rates, limited = open_rates(), tenant(tokens=3_200)
    assert rates.reserve(limited, SliceAsk(T, 0, 10), MINUTE) == Slice(
        window=1_000,
        left_ms=60_000,
        given=True,
        requests=0,
        tokens=3_200 // SLICES,
        requests_limit=0,
        tokens_limit=3_200,
        requests_left=0,
        tokens_left=3_100,
    )
    assert rates.reserve(limited, SliceAsk(T, 0, 500), MINUTE + 1).tokens == 500


def test_rate_request_beyond_the_rest_is_refused_whole() -> None:
    rates, limited = open_rates(), tenant(requests=5, tokens=100)
    assert rates.reserve(limited, SliceAsk(T, 1, 90), MINUTE).given
    refused = rates.reserve(limited, SliceAsk(T, 1, 11), MINUTE)
    assert (
        refused.given,
        refused.requests,
        refused.tokens,
        refused.requests_left,
        refused.tokens_left,
    ) == (False, 0, 0, 4, 10)
    assert rates.reserve(limited, SliceAsk(T, 1, 10), MINUTE).given


def test_each_account_of_a_tenant_has_a_ledger_of_its_own() -> None:
    rates, limited = open_rates(), tenant(tokens=100)
    for account in ("", "key:k1", "model:chat"):
        assert rates.reserve(limited, SliceAsk(T, 0, 100, account), MINUTE).given
        assert not rates.reserve(limited, SliceAsk(T, 0, 1, account), MINUTE).given
    rates.take_back(SliceReturn(T, 1_000, 0, 60, "key:k1"), MINUTE)
    assert not rates.reserve(limited, SliceAsk(T, 0, 60), MINUTE).given
    assert rates.reserve(limited, SliceAsk(T, 0, 60, "key:k1"), MINUTE).given


def test_all_slices_of_a_minute_together_never_pass_the_limit() -> None:
    for seed in range(50):
        chance, rates, held = Random(seed), open_rates(), [0, 0]
        limited = tenant(requests=chance.randrange(1, 300), tokens=chance.randrange(1, 5_000))
        for _ in range(500):
            now = MINUTE + chance.randrange(WINDOW_NS)
            if chance.random() < 0.3:
                back = SliceReturn(
                    T, 1_000, chance.randrange(held[0] + 1), chance.randrange(held[1] + 1)
                )
                rates.take_back(back, now)
                held = [held[0] - back.requests, held[1] - back.tokens]
            else:
                given = rates.reserve(
                    limited, SliceAsk(T, chance.randrange(3), chance.randrange(200)), now
                )
                held = [held[0] + given.requests, held[1] + given.tokens]
            assert held[0] <= limited.requests_per_minute and held[1] <= limited.tokens_per_minute


def test_the_next_minute_is_a_new_budget_and_the_last_one_s_returns_are_worth_nothing() -> None:
    rates, limited = open_rates(), tenant(tokens=100)
    assert rates.reserve(limited, SliceAsk(T, 0, 100), MINUTE).given
    assert not rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE + WINDOW_NS - 1).given
    assert rates.reserve(limited, SliceAsk(T, 0, 100), MINUTE + WINDOW_NS).given
    rates.take_back(SliceReturn(T, 1_000, 0, 100), MINUTE + WINDOW_NS)
    assert not rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE + WINDOW_NS).given


def test_a_clock_that_goes_back_opens_no_minute_again() -> None:
    rates, limited = open_rates(), tenant(tokens=100)
    assert rates.reserve(limited, SliceAsk(T, 0, 100), MINUTE + WINDOW_NS).given
    assert not rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE).given


def test_a_restarted_process_gives_nothing_of_the_minute_in_which_it_began() -> None:
    rates, limited = Rates(MINUTE + 1), tenant(tokens=100)
    refused = rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE + 2)
    assert refused.starting and not refused.given
    rates.take_back(SliceReturn(T, 1_000, 0, 50), MINUTE + 3)
    assert not rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE + 4).given
    assert rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE + WINDOW_NS).given


def test_a_limit_that_is_lowered_within_the_minute_counts_at_once() -> None:
    rates = open_rates()
    assert rates.reserve(tenant(tokens=100), SliceAsk(T, 0, 60), MINUTE).given
    assert not rates.reserve(tenant(tokens=50), SliceAsk(T, 0, 1), MINUTE).given


def test_tenants_have_a_budget_each() -> None:
    rates = open_rates()
    assert rates.reserve(tenant(tokens=100), SliceAsk(T, 0, 100), MINUTE).given
    assert rates.reserve(tenant(tokens=100), SliceAsk(TenantId("u"), 0, 100), MINUTE).given


def test_the_messages_of_slices_are_read_as_they_were_sent() -> None:
    ask, back = SliceAsk(T, 1, 2), SliceReturn(T, 1_000, 3, 4)
    given = open_rates().reserve(tenant(tokens=9), SliceAsk(T, 0, 9), MINUTE)
    assert rate_messages.decode_ask(rate_messages.encode(ask)) == ask
    assert rate_messages.decode_slice(rate_messages.encode(given)) == given
    assert rate_messages.decode_return(rate_messages.encode(back)) == back


def stored(rates: Rates, epoch: int = 1) -> list[Page]:
    """Store all pages of a ledger, and return them."""
    pages = [rates.page(number, epoch) for number in range(PAGES)]
    for page in pages:
        rates.stored(page)
    return pages


def restarted(pages: list[Page], now: int) -> Rates:
    rates = Rates(now)
    rates.restore(pages)
    return rates


def test_restarts_free_nothing_and_cost_at_most_a_step_of_the_limit_each() -> None:
    for seed in range(50):
        chance, rates, pages, held = Random(seed), open_rates(), list[Page](), 0
        limited, restarts = tenant(tokens=chance.randrange(1, 5_000)), 0
        limit = limited.tokens_per_minute
        for _ in range(300):
            if chance.random() < 0.01:
                rates, restarts = restarted(pages, MINUTE), restarts + 1
            held += rates.reserve(limited, SliceAsk(T, 0, chance.randrange(1, 50)), MINUTE).tokens
            if not rates.is_covered((T, "")):
                pages = stored(rates)
            assert rates.is_covered((T, "")) and held <= limit
        while (given := rates.reserve(limited, SliceAsk(T, 0, 1), MINUTE)).given:
            held += given.tokens
        assert held >= limit - (restarts + 1) * max(1, limit // MARKS) - limit % MARKS


def test_a_second_restart_in_a_minute_still_counts_the_marks_of_before_the_first() -> None:
    rates, limited = open_rates(), tenant(tokens=100)
    names = [f"key:{number}" for number in range(3 * PAGES)]
    for name in names:
        assert rates.reserve(limited, SliceAsk(T, 0, 100, name), MINUTE).given
    second = restarted(stored(rates), MINUTE)
    assert second.reserve(limited, SliceAsk(T, 0, 10, "other"), MINUTE).given
    third = restarted(stored(second, 2), MINUTE)
    for name in names:
        assert not third.reserve(limited, SliceAsk(T, 0, 1, name), MINUTE).given
    assert third.reserve(limited, SliceAsk(T, 0, 1, names[0]), MINUTE + WINDOW_NS).given
    assert [mark.account for page in stored(third, 3) for mark in page.marks] == [names[0]]


def test_few_slices_wait_for_a_store() -> None:
    rates, limited, stores = open_rates(), tenant(requests=320, tokens=32_000), 0
    while rates.reserve(limited, SliceAsk(T, 1, 10), MINUTE).given:
        if not rates.is_covered((T, "")):
            stores += 1
            stored(rates)
    assert stores <= MARKS


def test_marks_of_an_earlier_minute_count_nothing_and_those_of_a_later_one_move_the_clock() -> None:
    rates, limited = open_rates(), tenant(tokens=100)
    assert rates.reserve(limited, SliceAsk(T, 0, 100), MINUTE).given
    pages = stored(rates)
    assert (
        restarted(pages, MINUTE + WINDOW_NS)
        .reserve(limited, SliceAsk(T, 0, 100), MINUTE + WINDOW_NS)
        .given
    )
    behind = restarted(pages, MINUTE - WINDOW_NS)
    assert not behind.reserve(limited, SliceAsk(T, 0, 1), MINUTE - WINDOW_NS).given


def test_a_page_that_was_stored_too_late_covers_nothing_of_the_new_minute() -> None:
    rates, limited = open_rates(), tenant(tokens=100)
    rates.reserve(limited, SliceAsk(T, 0, 10), MINUTE)
    late = [rates.page(number, 1) for number in range(PAGES)]
    rates.reserve(limited, SliceAsk(T, 0, 10), MINUTE + WINDOW_NS)
    for page in late:
        rates.stored(page)
    assert not rates.is_covered((T, ""))


def test_accounts_without_a_limit_are_not_stored() -> None:
    rates = open_rates()
    assert rates.reserve(tenant(), SliceAsk(T, 5, 500), MINUTE).given
    assert rates.is_covered((T, "")) and not any(page.marks for page in stored(rates))


def test_two_processes_give_one_minute_s_budget_once() -> None:
    """The former process gives its last slice after the new one has read its marks."""
    limited, ask = tenant(tokens=100), SliceAsk(T, 0, 60)
    former = open_rates()
    new = restarted(stored(former), MINUTE)
    assert former.reserve(limited, ask, MINUTE).given
    late = stored(former)
    answer = new.reserve(limited, ask, MINUTE)
    assert answer.given and new.confirmed(ask, answer) == answer
    for page in late:
        new.merge(page)
    refused = new.confirmed(ask, answer)
    assert (refused.given, refused.tokens) == (False, 0)
    assert new.confirmed(ask, refused) == refused
    assert new.reserve(limited, SliceAsk(T, 0, 40), MINUTE).given
    assert not new.reserve(limited, SliceAsk(T, 0, 1), MINUTE).given


def test_what_a_process_gave_counts_besides_a_mark_that_it_did_not_know() -> None:
    limited, former = tenant(requests=80), open_rates()
    new = restarted(stored(former), MINUTE)
    assert former.reserve(limited, SliceAsk(T, 30, 0), MINUTE).given
    assert new.reserve(limited, SliceAsk(T, 30, 0), MINUTE).given
    for page in stored(former):
        new.merge(page)
        new.merge(page)
    assert not new.reserve(limited, SliceAsk(T, 21, 0), MINUTE).given
    assert new.reserve(limited, SliceAsk(T, 20, 0), MINUTE).given


BACK_NS = 10 * WINDOW_NS


def test_minute_of_limits_lasts_a_minute_when_the_wall_clock_is_set_back() -> None:
    rates, limited, time = open_rates(), tenant(tokens=100), LedgerTime(MINUTE, 0)
    assert rates.reserve(limited, SliceAsk(T, 0, 100), time.at(MINUTE, 0, MINUTE)).given
    refused = rates.reserve(limited, SliceAsk(T, 0, 1), time.at(MINUTE - BACK_NS, 1_000, MINUTE))
    assert not refused.given and refused.left_ms <= 60_000
    later_ns = time.at(MINUTE - BACK_NS + WINDOW_NS, WINDOW_NS, MINUTE)
    assert rates.reserve(limited, SliceAsk(T, 0, 100), later_ns).given


def test_the_ledger_follows_a_wall_clock_that_is_set_forward() -> None:
    time = LedgerTime(MINUTE, 0)
    assert time.at(MINUTE + BACK_NS, 5, MINUTE) == MINUTE + BACK_NS


def test_an_earlier_process_whose_clock_was_ahead_costs_at_most_a_minute() -> None:
    limited, former = tenant(tokens=100), open_rates()
    assert former.reserve(limited, SliceAsk(T, 0, 100), MINUTE + BACK_NS).given
    new, time = restarted(stored(former), MINUTE), LedgerTime(MINUTE, 0)
    now_ns = time.at(MINUTE, 1, new.window * WINDOW_NS)
    refused = new.reserve(limited, SliceAsk(T, 0, 1), now_ns)
    assert (refused.given, refused.window, refused.left_ms) == (False, 1_010, 60_000)
    later_ns = time.at(MINUTE + WINDOW_NS, WINDOW_NS + 1, new.window * WINDOW_NS)
    assert new.reserve(limited, SliceAsk(T, 0, 100), later_ns).given
