"""Routing: the choice of a replica. The tests named `test_rule_...` are the rules of
docs/serving.md, each of which comes from an outage of another router.
"""

from services.api_gateway.serving import loads, routing
from services.api_gateway.serving.loads import SECOND_NS
from services.api_gateway.serving.prefix_index import BLOCK_BYTES, PrefixIndex, chain
from services.api_gateway.serving.routing import (
    MS_NS,
    Candidate,
    Choice,
    Prompt,
    Route,
    Router,
    choose,
)

IDLE = Candidate(matched=0, expected_ns=0, running=0)
A, B, C = "a", "b", "c"


def prompt(blocks: int, salt: bytes = b"", session: int = 0) -> Prompt:
    """A prompt of whole blocks with 64 tokens each."""
    text = b"".join(bytes([number % 256]) * BLOCK_BYTES for number in range(blocks))
    return Prompt(64 * blocks, len(text), chain(salt, text), session)


def test_there_is_no_choice_without_a_replica() -> None:
    assert choose(10, ()) == Choice(-1, routing.NONE_LEFT)


def test_equal_replicas_take_turns() -> None:
    assert [choose(10, (IDLE, IDLE, IDLE), turn).place for turn in range(4)] == [0, 1, 2, 0]


def test_the_replica_that_holds_the_prompt_is_chosen_within_the_penalty() -> None:
    held = IDLE._replace(matched=80, expected_ns=routing.PENALTY_NS)
    assert choose(100, (IDLE, held)) == Choice(1, routing.HELD)
    saturated = held._replace(expected_ns=routing.PENALTY_NS + 1)
    assert choose(100, (IDLE, saturated)) == Choice(0, routing.SATURATED)
    assert choose(100, (saturated,)) == Choice(0, routing.HELD)


def test_a_replica_that_holds_less_is_compared_by_the_expected_time_alone() -> None:
    part = IDLE._replace(matched=79, expected_ns=routing.EQUAL_NS)
    assert choose(100, (part, IDLE)) == Choice(1, routing.LEAST_WAIT)


def test_expected_times_that_hardly_differ_leave_the_choice_to_the_outstanding_requests() -> None:
    busy = IDLE._replace(running=2)
    later = IDLE._replace(expected_ns=routing.EQUAL_NS - 1, running=1)
    assert choose(100, (busy, later)).place == 1


def test_a_replica_without_room_gets_nothing() -> None:
    full = IDLE._replace(has_room=False)
    assert choose(100, (full, IDLE)).place == 1
    assert choose(100, (full, full)) == Choice(-1, routing.NO_ROOM)


def test_rule_1_load_is_counted_before_the_request_is_sent() -> None:
    router: Router[str] = Router()
    counts = {A: 0, B: 0, C: 0}
    for _ in range(30):
        route = router.route(prompt(0), (A, B, C), 0)
        assert route.replica is not None
        router.send(prompt(0), route, 0)
        counts[route.replica] += 1
    assert counts == {A: 10, B: 10, C: 10}, "before any of them answered"


def test_rule_1_a_request_is_counted_down_however_it_ends() -> None:
    router: Router[str] = Router()
    first = router.send(prompt(4), router.route(prompt(4), (A,), 0), 0)
    router.loads.first_token(first, 1)
    router.loads.end(first, 2)
    broken = router.send(prompt(9), router.route(prompt(9), (A,), 3), 3)
    router.loads.end(broken, 4)
    assert (router.loads.of(A).outstanding, router.loads.of(A).pending) == (0, 0)


def test_rule_1b_a_report_corrects_the_own_count_and_is_never_added_to_it() -> None:
    router: Router[str] = Router()
    for _ in range(5):
        router.send(prompt(0), Route(A, "", 1), 0)
    router.loads.report(A, 5, False, 1)
    assert router.loads.of(A).running(1) == 5
    router.loads.report(A, 8, False, 2)
    assert router.loads.of(A).running(2) == 8
    assert router.loads.of(A).running(2 + loads.REPORT_NS) == 5, "an old report says nothing"


def test_rule_1c_a_replica_that_reports_to_be_full_gets_nothing_and_all_full_sheds_at_once() -> (
    None
):
    router: Router[str] = Router()
    router.loads.report(A, 0, True, 0)
    assert router.route(prompt(1), (A, B), 1).replica == B
    router.loads.report(B, 0, True, 1)
    assert router.route(prompt(1), (A, B), 1) == Route(None, routing.ALL_FULL, 64)
    assert router.route(prompt(1), (A, B), loads.REPORT_NS).replica == A, "the veto expires"


def test_rule_2_a_cache_miss_looks_at_load() -> None:
    """A replica that holds many other prompts gets no more requests for that."""
    router: Router[str] = Router()
    for number in range(50):
        router.index.add(chain(bytes([number]), bytes(BLOCK_BYTES)), A, 0)
    router.loads.begin(A, 10_000, 0)
    assert router.route(prompt(10, b"new"), (A, B), 0) == Route(B, routing.LEAST_WAIT, 640)


def test_rule_3_an_unbalanced_cluster_keeps_the_longest_prefix_among_the_less_busy() -> None:
    least = IDLE._replace(running=10, expected_ns=100 * MS_NS)
    near = Candidate(matched=50, expected_ns=50 * MS_NS, running=10 + routing.UNBALANCED)
    far = Candidate(matched=70, expected_ns=30 * MS_NS, running=11 + routing.UNBALANCED)
    assert choose(100, (least, near, far)) == Choice(1, routing.LEAST_WAIT)


def test_rule_4_one_saturated_replica_does_not_stop_affinity_to_the_others() -> None:
    """The gate compares the one wanted replica with the best other."""
    router: Router[str] = Router()
    for replica, salt in ((A, b"a"), (B, b"b")):
        router.index.add(prompt(20, salt).hashes, replica, 0)
    router.loads.begin(A, 15_000, 0)
    assert router.route(prompt(20, b"a"), (A, B, C), 0).why == routing.SATURATED
    assert router.route(prompt(20, b"b"), (A, B, C), 0) == Route(B, routing.HELD, 0)


def test_rule_5_a_session_moves_when_its_replica_is_saturated() -> None:
    """A session's replica is no hash: it is where its last request went."""
    router: Router[str] = Router()
    first = router.route(prompt(1, b"x", session=7), (A, B), 0)
    router.send(prompt(1, b"x", session=7), first, 0)
    again = router.route(prompt(1, b"y", session=7), (A, B), 0)
    assert (again.replica, again.why) == (first.replica, routing.SESSION)
    assert first.replica is not None
    router.loads.begin(first.replica, 15_000, 0)
    moved = router.route(prompt(1, b"z", session=7), (A, B), 0)
    assert moved.replica != first.replica
    router.send(prompt(1, b"z", session=7), moved, 0)
    assert router.route(prompt(1, b"w", session=7), (A, B), 0).replica == moved.replica


def test_rule_6_one_hot_prefix_is_spread_over_replicas() -> None:
    router: Router[str] = Router(room_tokens=16_384, held_room_tokens=32_768)
    hot = prompt(100)
    router.index.add(hot.hashes, A, 0)
    seen = set()
    for number in range(300):
        tail = chain(bytes([number % 250]), bytes(BLOCK_BYTES * 20))
        asked = Prompt(64 * 120, BLOCK_BYTES * 120, (*hot.hashes, *tail))
        route = router.route(asked, (A, B, C), number)
        if route.replica is None:
            assert route.why in (routing.NO_ROOM, routing.WAITS)
            break
        seen.add(route.replica)
        router.send(asked, route, number)
    assert seen == {A, B, C}


def test_rule_7_a_slow_or_silent_or_failing_replica_leaves_the_rotation() -> None:
    router: Router[str] = Router()
    router.index.add(prompt(10).hashes, A, 0)
    router.loads.failed(router.loads.begin(A, 0, 0), 0)
    assert router.route(prompt(10), (A, B), 0).replica == B
    assert router.route(prompt(10), (A,), 0).replica == A, "it is better than none"
    assert router.route(prompt(10), (A, B), loads.AVOID_NS).replica == A
    for _ in range(loads.LATE_IN_A_ROW):
        router.send(prompt(1), Route(B, "", 64), 0)
    silent = {router.route(prompt(1), (B, C), 60 * SECOND_NS).replica for _ in range(9)}
    assert silent == {C}


def test_room_ends_with_unprocessed_tokens_or_outstanding_requests() -> None:
    router: Router[str] = Router(room_tokens=1_000, room_requests=3)
    router.loads.begin(A, 5_000, 0)
    assert router.route(prompt(1), (A,), 0).why == routing.NO_ROOM
    assert router.route(prompt(99), (B,), 0).replica == B, "a large prompt may go alone"
    router.loads.begin(B, 900, 0)
    assert router.route(prompt(1), (B,), 0).replica == B
    assert router.route(prompt(2), (B,), 0).replica is None
    for _ in range(3):
        router.loads.begin(C, 0, 0)
    assert router.route(prompt(0), (C,), 0).why == routing.NO_ROOM


def test_a_request_waits_for_room_at_the_replica_that_holds_its_prompt_up_to_the_penalty() -> None:
    router: Router[str] = Router(room_tokens=1_000, held_room_tokens=1_000, penalty_ns=SECOND_NS)
    router.index.add(prompt(10).hashes, A, 0)
    router.loads.begin(A, 8_000, 0)
    assert router.route(prompt(10), (A, B), 0, waited_ns=0) == Route(None, routing.WAITS, 640)
    spent = router.route(prompt(10), (A, B), 0, waited_ns=SECOND_NS)
    assert spent == Route(B, routing.SATURATED, 640)
    router.index.add(prompt(10).hashes, C, 0)
    assert router.route(prompt(10), (A, B, C), 0) == Route(C, routing.HELD, 0)


def test_a_replica_has_more_room_for_a_prompt_that_it_holds() -> None:
    router: Router[str] = Router()
    router.index.add(prompt(10).hashes, A, 0)
    router.loads.begin(A, routing.HELD_ROOM_TOKENS, 0)
    router.loads.begin(B, routing.ROOM_TOKENS, 0)
    assert router.route(prompt(10), (A, B), 0) == Route(A, routing.HELD, 0)
    assert router.route(prompt(10, b"other"), (A, B), 0).why == routing.NO_ROOM


def test_a_request_does_not_wait_for_a_replica_without_a_place() -> None:
    router: Router[str] = Router(room_requests=1)
    router.index.add(prompt(10).hashes, A, 0)
    router.loads.begin(A, 0, 0)
    assert router.route(prompt(10), (A, B), 0) == Route(B, routing.LEAST_WAIT, 640)


def test_a_forgotten_replica_has_neither_load_nor_prompts() -> None:
    router: Router[str] = Router()
    router.send(prompt(10), router.route(prompt(10), (A,), 0), 0)
    router.forget(A)
    assert router.route(prompt(10), (A,), 0) == Route(A, routing.LEAST_WAIT, 640)


def test_sessions_are_bounded() -> None:
    router: Router[str] = Router(index=PrefixIndex(bytes_max=1))
    for session in range(1, routing.SESSIONS_MAX + 10):
        router.loads.end(router.send(Prompt(1, session=session), Route(A, "", 1), 0), 0)
    assert len(router._sessions) == routing.SESSIONS_MAX
    assert 1 not in router._sessions
