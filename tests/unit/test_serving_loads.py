"""Loads: what is counted for a replica, its measured rate, and replicas that are slow or silent."""

from services.api_gateway.serving import loads
from services.api_gateway.serving.loads import SECOND_NS, Loads


def fail(found: Loads[str], now_ns: int) -> None:
    sent = found.begin("r", 10, now_ns)
    found.failed(sent, now_ns)
    found.end(sent, now_ns)


def test_pending_tokens_end_with_the_first_token_and_the_request_with_its_end() -> None:
    found: Loads[str] = Loads()
    load = found.of("r")
    sent = found.begin("r", 1_000, 0)
    other = found.begin("r", 500, 0)
    assert (load.outstanding, load.pending) == (2, 1_500)
    found.first_token(sent, 10)
    found.first_token(sent, 11)
    assert (load.outstanding, load.pending) == (2, 500)
    found.end(sent, 12)
    found.end(other, 12)
    assert (load.outstanding, load.pending, load.waiting) == (0, 0, {})


def test_the_rate_follows_large_prompts_and_their_queue() -> None:
    found: Loads[str] = Loads()
    for second in range(300):
        first = found.begin("r", 4_000, second * SECOND_NS)
        second_sent = found.begin("r", 4_000, second * SECOND_NS)
        found.first_token(first, second * SECOND_NS + SECOND_NS // 2)
        found.first_token(second_sent, (second + 1) * SECOND_NS)
        found.end(first, (second + 1) * SECOND_NS)
        found.end(second_sent, (second + 1) * SECOND_NS)
    assert abs(found.of("r").rate - 8_000) < 20
    assert found.of("r").expected_ns(4_000) // 1_000_000 in range(498, 502)


def test_a_small_prompt_says_nothing_about_the_rate() -> None:
    found: Loads[str] = Loads()
    sent = found.begin("r", loads.MEASURED_TOKENS - 1, 0)
    found.first_token(sent, SECOND_NS)
    assert found.of("r").rate == loads.FIRST_RATE


def test_the_rate_stays_below_what_an_engine_can_do() -> None:
    found: Loads[str] = Loads()
    for number in range(1_000):
        sent = found.begin("r", 100_000, number)
        found.first_token(sent, number + 1)
        found.end(sent, number + 1)
    assert loads.RATE_MAX - loads.RATE_STEP <= found.of("r").rate <= loads.RATE_MAX


def test_three_late_first_tokens_in_a_row_make_a_replica_avoided_for_a_growing_while() -> None:
    found: Loads[str] = Loads()
    load, now_ns = found.of("r"), 0

    def answer(took_ns: int) -> None:
        nonlocal now_ns
        sent = found.begin("r", 10, now_ns)
        now_ns += took_ns
        found.first_token(sent, now_ns)
        found.end(sent, now_ns)

    late_ns = loads.LATE_FLOOR_NS + 1
    answer(late_ns)
    answer(late_ns)
    assert not load.is_avoided(now_ns)
    answer(late_ns)
    assert load.is_avoided(now_ns)
    assert not load.is_avoided(now_ns + loads.AVOID_NS)
    for _ in range(3):
        answer(late_ns)
    assert load.is_avoided(now_ns + 2 * loads.AVOID_NS - 1)
    answer(1)
    for _ in range(3):
        answer(late_ns)
    assert not load.is_avoided(now_ns + loads.AVOID_NS)


def test_a_failing_replica_is_avoided_up_to_a_bound() -> None:
    found: Loads[str] = Loads()
    load, now_ns = found.of("r"), 0
    for _ in range(20):
        now_ns = load.avoid_until_ns
        fail(found, now_ns)
    assert load.is_avoided(now_ns + loads.AVOID_MAX_NS - 1)
    assert not load.is_avoided(now_ns + loads.AVOID_MAX_NS)


def test_one_broken_connection_counts_once_for_all_its_requests() -> None:
    found: Loads[str] = Loads()
    sent = [found.begin("r", 10, 0) for _ in range(6)]
    for each in sent:
        found.failed(each, 5)
        found.end(each, 5)
    assert found.of("r").avoid_until_ns == 5 + loads.AVOID_NS
    late = found.begin("r", 10, 5)
    found.failed(late, 60 * SECOND_NS)
    assert found.of("r").avoid_until_ns == 5 + loads.AVOID_NS, "it began before the failure"
    fail(found, 6)
    assert found.of("r").avoid_until_ns == 5 + loads.AVOID_NS, "the replica is avoided already"


def test_a_complete_answer_resets_how_long_a_replica_is_avoided() -> None:
    found: Loads[str] = Loads()
    fail(found, 0)
    fail(found, 60 * SECOND_NS)
    assert found.of("r").avoid_until_ns == 60 * SECOND_NS + 2 * loads.AVOID_NS
    good = found.begin("r", 10, 70 * SECOND_NS, is_streamed=False)
    found.answered(good)
    found.end(good, 71 * SECOND_NS)
    fail(found, 80 * SECOND_NS)
    assert found.of("r").avoid_until_ns == 80 * SECOND_NS + loads.AVOID_NS


def test_a_silent_replica_with_several_requests_is_avoided() -> None:
    found: Loads[str] = Loads()
    sent = [found.begin("r", 10, 0) for _ in range(2)]
    assert not found.of("r").is_avoided(9 * SECOND_NS)
    sent.append(found.begin("r", 10, 9 * SECOND_NS))
    assert found.of("r").is_avoided(9 * SECOND_NS)
    found.first_token(sent[0], 9 * SECOND_NS)
    assert not found.of("r").is_avoided(9 * SECOND_NS)


def test_a_request_of_a_forgotten_replica_changes_nothing() -> None:
    found: Loads[str] = Loads()
    sent = found.begin("r", 10, 0)
    found.forget("r")
    found.first_token(sent, 1)
    found.end(sent, 2)
    assert found.of("r").outstanding == 0


def test_a_report_is_compared_with_the_own_count_of_its_time() -> None:
    found: Loads[str] = Loads()
    sent = [found.begin("r", 10, when) for when in (0, 10)]
    found.end(sent[0], 20)
    for when in (30, 40):
        found.begin("r", 10, when)
    found.report("r", 5, False, 25)
    assert found.of("r").running(50) == 3 + 4, "one of the five was this gateway's at 25"
    found.report("r", 9, True, 24)
    assert found.of("r").running(50) == 3 + 4, "an older report is ignored"
    found.report("r", 3, False, 60)
    assert found.of("r").running(60) == 3


def test_the_input_of_an_answer_without_a_stream_counts_for_the_expected_time() -> None:
    found: Loads[str] = Loads()
    load = found.of("r")
    assert found.next_ns() is None
    whole = found.begin("r", 16_000, 0, is_streamed=False)
    assert found.next_ns() == SECOND_NS
    found.settle(SECOND_NS - 1)
    assert load.pending == 16_000
    found.settle(SECOND_NS)
    assert (load.pending, load.outstanding, load.waiting) == (0, 1, {})
    found.first_token(whole, 60 * SECOND_NS)
    assert (load.rate, load.late) == (loads.FIRST_RATE, 0)
    found.end(whole, 60 * SECOND_NS)
    assert (load.pending, load.outstanding) == (0, 0)


def test_a_late_stream_closes_its_replica_no_longer_and_can_still_make_it_silent() -> None:
    found: Loads[str] = Loads()
    load = found.of("r")
    sent = [found.begin("r", 1_000, 0) for _ in range(3)]
    found.settle(loads.LATE_FLOOR_NS)
    assert (load.pending, len(load.waiting)) == (0, 3)
    assert load.is_avoided(loads.LATE_FLOOR_NS + 1)
    found.first_token(sent[0], loads.LATE_FLOOR_NS + 1)
    assert (load.pending, load.late) == (0, 1)
    for each in sent:
        found.end(each, loads.LATE_FLOOR_NS + 1)
    assert (load.pending, load.outstanding) == (0, 0)


def test_a_stream_is_late_after_a_bounded_time() -> None:
    found: Loads[str] = Loads()
    sent = found.begin("r", 10_000_000, 0)
    assert sent.processed_ns == loads.PROCESSED_MAX_NS


def test_what_began_ended_or_is_forgotten_is_not_settled() -> None:
    found: Loads[str] = Loads()
    began, ended, forgotten = (found.begin(name, 100, 0) for name in ("r", "r", "s"))
    found.first_token(began, 1)
    found.end(ended, 1)
    found.forget("s")
    assert found.known() == ["r"]
    found.begin("s", 100, 2)
    found.settle(loads.LATE_FLOOR_NS)
    assert (found.of("r").pending, found.of("s").pending) == (0, 100)
    assert forgotten.pending == 100


def test_the_first_time_that_a_failed_replica_is_avoided_can_be_chosen() -> None:
    found: Loads[str] = Loads(avoid_ns=SECOND_NS)
    fail(found, 0)
    assert found.of("r").is_avoided(SECOND_NS - 1)
    assert not found.of("r").is_avoided(SECOND_NS)
