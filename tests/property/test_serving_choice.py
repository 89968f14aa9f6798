"""The choice of a replica against the rule as the documentation words it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.routing import (
    EQUAL_NS,
    HELD_PERCENT,
    PENALTY_NS,
    UNBALANCED,
    Candidate,
    Prompt,
    Router,
    choose,
)

TOKENS = 1_000
CANDIDATE = st.builds(
    Candidate,
    matched=st.sampled_from((0, 500, 799, 800, 1_000)),
    expected_ns=st.integers(0, 2 * PENALTY_NS),
    running=st.integers(0, 2 * UNBALANCED),
    has_room=st.booleans(),
    has_place=st.booleans(),
    is_vetoed=st.booleans(),
    is_avoided=st.booleans(),
    has_session=st.booleans(),
)


def naive(candidates: list[Candidate], waited_ns: int) -> set[int]:
    """Return the places that may be chosen, -1 for none; which of equals is left open."""
    pool = {place: each for place, each in enumerate(candidates) if not each.is_vetoed}
    pool = {p: each for p, each in pool.items() if not each.is_avoided} or pool
    pool = {p: each for p, each in pool.items() if each.has_place}
    free = {p: each for p, each in pool.items() if each.has_room}
    if not free:
        return {-1}
    wanted = {
        p: each
        for p, each in pool.items()
        if each.has_session or each.matched / TOKENS >= HELD_PERCENT / 100
    }
    wanted = {p: each for p, each in wanted.items() if each.has_room} or wanted
    fewest = min(each.running for each in free.values())
    others = {
        p: each
        for p, each in free.items()
        if p not in wanted and each.running - fewest <= UNBALANCED
    }
    if not wanted or not others:
        return {p if candidates[p].has_room else -1 for p in best(wanted or others)}
    return {
        verdict(candidates, held, other, waited_ns)
        for held in best(wanted)
        for other in best(others)
    }


def best(group: dict[int, Candidate]) -> set[int]:
    def load(each: Candidate) -> tuple[int, int]:
        return each.expected_ns // EQUAL_NS, each.running

    least = min(map(load, group.values()))
    return {p for p, each in group.items() if load(each) == least}


def verdict(candidates: list[Candidate], held: int, other: int, waited_ns: int) -> int:
    later_ns = candidates[held].expected_ns - candidates[other].expected_ns
    if candidates[held].has_room:
        return other if later_ns > PENALTY_NS else held
    return other if later_ns + waited_ns > PENALTY_NS else -1


@settings(deadline=None)
@given(st.lists(CANDIDATE, max_size=6), st.integers(0, 20), st.integers(0, 2 * PENALTY_NS))
def test_the_choice_is_one_of_the_naive_rule(
    candidates: list[Candidate], turn: int, waited_ns: int
) -> None:
    found = choose(TOKENS, candidates, turn, waited_ns=waited_ns)
    assert found.place in naive(candidates, waited_ns)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sfe"), st.integers(1, 5_000)), max_size=80))
def test_counts_are_those_of_the_requests_that_are_open(steps: list[tuple[str, int]]) -> None:
    router: Router[str] = Router()
    open_: list[tuple[object, str, int, bool]] = []
    for now_ns, (action, tokens) in enumerate(steps):
        if action == "s":
            route = router.route(Prompt(tokens), ("a", "b"), now_ns)
            if route.replica is not None:
                sent = router.send(Prompt(tokens), route, now_ns)
                open_.append((sent, route.replica, tokens, False))
        elif open_:
            sent, replica, size, _ = open_.pop(tokens % len(open_))
            if action == "f":
                router.loads.first_token(sent, now_ns)  # type: ignore[arg-type]
                open_.append((sent, replica, size, True))
            else:
                router.loads.end(sent, now_ns)  # type: ignore[arg-type]
        for each in ("a", "b"):
            own = [entry for entry in open_ if entry[1] == each]
            assert router.loads.of(each).outstanding == len(own)
            assert router.loads.of(each).pending == sum(e[2] for e in own if not e[3])
