"""When a follower may say that the leader is gone."""

from random import Random

from libs.common.leadership.watch import (
    MS,
    PAUSE_MAX_MS,
    SILENCE_MIN_MS,
    SLOWEST_TIMES,
    LeaderWatch,
)

TERM_MS = 3_000
T0 = 1_000_000 * MS
ASK_NS = 100 * MS


def watching(answer_ms: int = 1) -> LeaderWatch:
    """A follower that has just heard of a leader, which took `answer_ms` to answer."""
    watch = LeaderWatch(TERM_MS)
    watch.begin(T0 - answer_ms * MS)
    watch.answered(T0 - answer_ms * MS, T0)
    return watch


def silent_until(watch: LeaderWatch, now: int, limit: int) -> int:
    """Ask without an answer until the leader counts as gone; return when."""
    while not watch.is_gone(now):
        assert now < limit
        now += ASK_NS
    return now


def test_one_request_without_a_listener_proves_nothing_and_two_do() -> None:
    watch = watching()
    watch.absent()
    assert not watch.is_gone(T0 + ASK_NS)
    watch.absent()
    assert watch.is_gone(T0 + 2 * ASK_NS)


def test_an_answer_between_two_absences_ends_the_count() -> None:
    watch = watching()
    watch.absent()
    watch.answered(T0, T0 + ASK_NS)
    watch.absent()
    assert not watch.is_gone(T0 + 2 * ASK_NS)


def test_silence_of_a_quick_leader_ends_within_half_a_second() -> None:
    gone = silent_until(watching(), T0, T0 + TERM_MS * MS)
    assert SILENCE_MIN_MS * MS <= gone - T0 <= 400 * MS


def test_a_leader_counts_as_gone_at_the_moment_until_which_it_may_be_silent() -> None:
    watch = watching()
    now = T0 + 201 * MS + 1
    assert watch.silent_for_ms(now) == SILENCE_MIN_MS - 201
    assert not watch.is_gone(now)
    now += watch.silent_for_ms(now) * MS
    assert watch.silent_for_ms(now) == 0
    assert watch.is_gone(now)
    watch.began(now)
    assert watch.silent_for_ms(now) == TERM_MS


def test_leader_that_answers_slowly_gets_more_time_but_never_more_than_a_term() -> None:
    assert watching(answer_ms=100).silence_ms() == SLOWEST_TIMES * 100
    assert watching(answer_ms=2_000).silence_ms() == TERM_MS


def test_a_follower_that_never_heard_an_answer_waits_for_a_term() -> None:
    watch = LeaderWatch(TERM_MS)
    watch.begin(T0)
    gone = silent_until(watch, T0, T0 + 2 * TERM_MS * MS)
    assert TERM_MS * MS <= gone - T0 <= TERM_MS * MS + ASK_NS


def test_a_follower_that_was_paused_counts_again() -> None:
    watch = watching()
    assert not watch.is_gone(T0)
    woken = T0 + (PAUSE_MAX_MS + 1) * MS + TERM_MS * MS
    assert not watch.is_gone(woken)
    assert silent_until(watch, woken, woken + TERM_MS * MS) >= woken + SILENCE_MIN_MS * MS


def test_a_follower_that_was_cut_off_waits_for_the_leader_to_reconnect() -> None:
    watch = watching()
    watch.lost_bus(T0)
    watch.absent()
    watch.absent()
    assert not watch.is_gone(T0 + 200 * MS)
    watch.answered(T0, T0 + 200 * MS)
    watch.absent()
    watch.absent()
    assert watch.is_gone(T0 + 300 * MS)


def test_new_term_gets_time_until_its_first_answer() -> None:
    watch = watching()
    watch.began(T0)
    watch.absent()
    watch.absent()
    assert silent_until(watch, T0, T0 + 2 * TERM_MS * MS) == T0 + TERM_MS * MS


def test_leader_that_answers_every_request_within_a_term_is_never_gone() -> None:
    for seed in range(50):
        chance, watch, now = Random(seed), watching(), T0
        for _ in range(200):
            asked, now = now, now + ASK_NS
            if chance.random() < 0.05:
                watch.lost_bus(now)
            watch.answered(asked, now)
            assert not watch.is_gone(now)


def test_leader_that_ended_is_gone_whatever_happened_before() -> None:
    for seed in range(50):
        chance, watch, now = Random(seed), watching(), T0
        for _ in range(50):
            now += chance.randrange(1, 400) * MS
            watch.is_gone(now)
            act = chance.randrange(3)
            if act == 0:
                watch.absent()
            elif act == 1:
                watch.lost_bus(now)
            else:
                watch.began(now)
        gone = silent_until(watch, now, now + 3 * TERM_MS * MS)
        assert gone <= now + TERM_MS * MS + ASK_NS
