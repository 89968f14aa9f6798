"""The rule for locks: who gets one, when it is renewed, and when it is freed."""

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state import locks
from libs.common.state.locks import ClaimKey, all_claims, claim_of
from services.scheduler.decide.decide import decide
from services.scheduler.decide.locks import CLAIMS_AT_ONCE
from services.scheduler.state import lock_turns
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given
from tests.unit.test_reservations import hear

RED = TenantId("red")
TTL_S = 30
# A second and a thousandth of the time to live.
MARGIN_S = 1.03


def key(holder: str, lock: str = "data") -> ClaimKey:
    return ClaimKey(RED, lock, holder)


def asked(holder: str, lock: str = "data", wait_s: int = 60) -> f.LockRequested:
    return f.LockRequested(
        **key(holder, lock)._asdict(), ttl_ms=TTL_S * 1_000, wait_ms=wait_s * 1_000, user="ada"
    )


def renewal(holder: str) -> f.LockRenewRequested:
    return f.LockRenewRequested(**key(holder)._asdict())


def release(holder: str) -> f.LockReleaseRequested:
    return f.LockReleaseRequested(**key(holder)._asdict(), user="ada")


def state(*facts: AnyFact) -> State:
    made = given()
    for fact in facts:
        hear(made, fact)
    return made


def decided(made: State, now_s: float = 0, wall_s: float | None = None) -> list[AnyFact]:
    """Return all that is decided at this time, folded ahead of the log."""
    found: list[AnyFact] = []
    now_ns = int(now_s * SECOND_NS)
    wall_ns = now_ns if wall_s is None else int(wall_s * SECOND_NS)
    while facts := decide(made, now_ns, wall_ns=wall_ns):
        made.apply_own(facts, wall_ns)
        found += facts
    return found


def holder_of(made: State, lock: str = "data") -> str:
    found = locks.lock_named(made.cluster.locks, RED, lock)
    return found.held_by if found is not None else ""


def freed(holder: str, reason: str, token: int = 0) -> f.LockFreed:
    return f.LockFreed(**key(holder)._asdict(), token=token, reason=reason)


def test_a_free_lock_is_granted_for_its_time_to_live() -> None:
    granted = f.LockGranted(**key("a")._asdict(), token=100_000, expires_ns=130 * SECOND_NS)
    assert decided(state(asked("a")), 7, 100) == [granted]


def test_a_token_grows_although_the_clock_does_not() -> None:
    made = state(asked("a"), asked("b", "other"))
    tokens = [fact.token for fact in decided(made) if isinstance(fact, f.LockGranted)]
    assert tokens == [1, 2]
    hear(made, release("a"))
    hear(made, asked("c"))
    assert [fact.token for fact in decided(made) if isinstance(fact, f.LockGranted)] == [3]


def test_a_held_lock_goes_to_the_first_that_waits_when_it_is_released() -> None:
    made = state(asked("a"), asked("b"), asked("c"))
    decided(made)
    assert holder_of(made) == "a"
    hear(made, release("a"))
    assert decided(made)[0] == freed("a", lock_life.RELEASED, 1)
    assert holder_of(made) == "b"


def test_a_holder_that_does_not_renew_is_freed_after_its_time_and_a_margin() -> None:
    made = state(asked("a"), asked("b"))
    decided(made, 10)
    assert decided(made, 10 + TTL_S + MARGIN_S - 0.01) == []
    assert decided(made, 10 + TTL_S + MARGIN_S)[0] == freed("a", lock_life.EXPIRED, 10_000)
    assert holder_of(made) == "b"


def test_a_jump_of_the_wall_clock_frees_nothing() -> None:
    made = state(asked("a"))
    decided(made, 0, 100)
    assert decided(made, 1, 100_000) == []
    assert holder_of(made) == "a"


def test_a_renewal_gives_the_whole_time_again() -> None:
    made = state(asked("a"))
    decided(made, 0)
    hear(made, renewal("a"))
    renewed = decided(made, 20)
    assert [type(fact) for fact in renewed] == [f.LockRenewed]
    assert decided(made, 20 + TTL_S) == []
    assert decided(made, 20 + TTL_S + MARGIN_S) == [freed("a", lock_life.EXPIRED, 1)]


def test_a_renewal_that_waits_when_the_time_has_passed_is_granted() -> None:
    made = state(asked("a"))
    decided(made, 0)
    hear(made, renewal("a"))
    assert [type(fact) for fact in decided(made, 100)] == [f.LockRenewed]


def test_a_new_term_gives_every_holder_its_whole_time() -> None:
    made = state(asked("a"))
    decided(made, 0)
    after = State(made.cluster)
    after.epoch = made.epoch
    assert decided(after, 1_000) == []
    assert decided(after, 1_000 + TTL_S) == []
    assert decided(after, 1_000 + TTL_S + MARGIN_S) == [freed("a", lock_life.EXPIRED, 1)]


def test_a_claim_that_does_not_wait_ends_when_the_lock_is_held() -> None:
    made = state(asked("a"), asked("b", wait_s=0))
    assert freed("b", lock_life.WAIT_OVER) in decided(made)


def test_a_claim_ends_when_it_has_waited_long_enough() -> None:
    made = state(asked("a"), asked("b", wait_s=5))
    decided(made, 0)
    assert decided(made, 5) == [freed("b", lock_life.WAIT_OVER)]


def test_a_client_that_withdraws_leaves_the_queue() -> None:
    made = state(asked("a"), asked("b"), asked("c"))
    decided(made)
    hear(made, release("b"))
    assert decided(made) == [freed("b", lock_life.RELEASED)]
    hear(made, release("a"))
    decided(made)
    assert holder_of(made) == "c"


def test_claims_over_a_bound_are_refused_the_latest_first() -> None:
    names = [f"h{number}" for number in range(locks.CLAIMS_OF_LOCK_MAX + 2)]
    made = state(*(asked(name) for name in names))
    refused = [fact for fact in decided(made) if isinstance(fact, f.LockFreed)]
    assert [fact.holder for fact in refused] == names[-2:]
    assert {fact.reason for fact in refused} == {lock_life.TOO_MANY}


def test_many_locks_are_decided_in_several_groups() -> None:
    made = state(*(asked("h", f"l{number}") for number in range(CLAIMS_AT_ONCE + 1)))
    first = decide(made, 0)
    assert len(first) == CLAIMS_AT_ONCE
    made.apply_own(first, 0)
    assert len(decided(made)) == 1


def test_timers_of_claims_that_ended_are_removed() -> None:
    made = state(asked("a"))
    decided(made)
    turns = made.restless.locks
    claim = claim_of(made.cluster.locks, key("a"))
    assert claim is not None
    for number in range(1, lock_turns.TIMERS_SWEPT + 10):
        claim.renewed = number
        turns.rest(key("a"), claim, number)
    assert len(turns._timers) < 20
    turns.rest(key("a"), claim, 9)
    assert list(all_claims(made.cluster.locks)) == [key("a")]


def test_after_a_restore_no_lock_is_granted_before_nothing_unknown_can_be_alive() -> None:
    made = state(asked("a"))
    made.cluster.settling = True
    assert decided(made, 7, 100) == []
    made.cluster.settling = False
    assert [type(fact) for fact in decided(made, 7, 100)] == [f.LockGranted]
