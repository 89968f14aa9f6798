"""Locks in the fold: claims in the order of the log, one holder, tokens that only grow."""

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state import locks
from libs.common.state.locks import ClaimKey, Lock, LockClaim
from tests.history import History, copy, picture, stamp_of, subject_of

RED = TenantId("red")


def key(holder: str, lock: str = "data") -> ClaimKey:
    return ClaimKey(RED, lock, holder)


def asked(holder: str, lock: str = "data", wait_ms: int = 9_000) -> f.LockRequested:
    return f.LockRequested(**key(holder, lock)._asdict(), ttl_ms=5_000, wait_ms=wait_ms, user="ada")


def granted(holder: str, token: int, lock: str = "data") -> f.LockGranted:
    expires_ns = 6_000_000_000
    return f.LockGranted(**key(holder, lock)._asdict(), token=token, expires_ns=expires_ns)


def freed(holder: str, token: int = 0, lock: str = "data") -> f.LockFreed:
    return f.LockFreed(**key(holder, lock)._asdict(), token=token, reason=lock_life.EXPIRED)


def history(*facts: f.AnyFact) -> History:
    made = History()
    for fact in facts:
        assert made.say(fact), fact
    return made


def many(made: History, *facts: f.AnyFact) -> None:
    """Fold facts without comparing the whole state each time."""
    for fact in facts:
        fold.apply(made.cluster, fact, stamp_of(subject_of(fact), made.cluster.facts + 1))


def lock_in(made: History, name: str = "data") -> Lock:
    lock = locks.lock_named(made.cluster.locks, RED, name)
    assert lock is not None
    return lock


def claim_in(made: History, holder: str) -> LockClaim:
    claim = locks.claim_of(made.cluster.locks, key(holder))
    assert claim is not None
    return claim


def test_claims_stand_in_the_order_of_the_log() -> None:
    made = history(asked("a"), asked("b"))
    assert list(lock_in(made).claims) == ["a", "b"]
    assert locks.place_of(lock_in(made), "b") == 1
    assert locks.first_waiting(lock_in(made)) is claim_in(made, "a")
    assert list(locks.all_claims(made.cluster.locks)) == [key("a"), key("b")]


def test_a_repeated_request_changes_nothing() -> None:
    made = history(asked("a"), granted("a", 1))
    assert not made.say(asked("a"))
    assert made.say(freed("a", 1))
    assert not made.say(asked("a"))
    assert locks.end_of(made.cluster.locks, key("a")) == lock_life.EXPIRED


def test_a_grant_gives_a_free_lock_to_a_waiting_claim() -> None:
    made = history(asked("a"), granted("a", 7))
    assert lock_in(made).held_by == "a"
    assert (claim_in(made, "a").state, claim_in(made, "a").token) == (lock_life.HELD, 7)
    assert claim_in(made, "a").granted_ns == 1_000_000_000


def test_a_held_lock_is_granted_to_no_other_claim() -> None:
    made = history(asked("a"), asked("b"), granted("a", 1))
    assert not made.say(granted("b", 2))
    assert not made.say(granted("a", 2))
    assert lock_in(made).held_by == "a"


def test_no_token_is_used_twice_even_by_another_lock() -> None:
    made = history(asked("a"), granted("a", 5), freed("a", 5), asked("b", "other"))
    assert not made.say(granted("b", 5, "other"))
    assert made.say(granted("b", 6, "other"))


def test_a_renewal_is_answered_by_the_sequence_of_its_request() -> None:
    made = history(asked("a"), granted("a", 1))
    assert made.say(f.LockRenewRequested(**key("a")._asdict()))
    claim = claim_in(made, "a")
    assert claim.asked > claim.renewed == 0
    renewed = f.LockRenewed(**key("a")._asdict(), token=1, asked=claim.asked, expires_ns=9)
    assert made.say(renewed)
    assert (claim.renewed, claim.expires_ns) == (claim.asked, 9)


def test_a_renewal_of_another_token_or_of_no_holder_is_ignored() -> None:
    made = history(asked("a"), asked("b"), granted("a", 1))
    for holder, token in (("a", 2), ("b", 0), ("c", 1)):
        fact = f.LockRenewed(**key(holder)._asdict(), token=token, asked=9, expires_ns=9)
        assert not made.say(fact)


def test_a_freed_lock_goes_to_the_next_claim_with_a_larger_token() -> None:
    made = history(asked("a"), asked("b"), granted("a", 1), freed("a", 1), granted("b", 2))
    assert lock_in(made).held_by == "b"
    assert made.cluster.locks[RED].claims == 1


def test_the_end_of_another_grant_frees_nothing() -> None:
    made = history(asked("a"), granted("a", 2))
    assert not made.say(freed("a", 1))
    assert lock_in(made).held_by == "a"


def test_a_claim_that_waits_can_be_freed_without_a_token() -> None:
    made = history(asked("a"), asked("b"), granted("a", 1), freed("b"))
    assert list(lock_in(made).claims) == ["a"]
    assert lock_in(made).held_by == "a"


def test_a_lock_without_claims_leaves_the_state_and_its_tenant_keeps_the_token() -> None:
    made = history(asked("a"), granted("a", 4), freed("a", 4))
    assert locks.lock_named(made.cluster.locks, RED, "data") is None
    assert made.cluster.locks[RED].token_last == 4


def test_a_release_is_noted_once() -> None:
    made = history(asked("a"))
    fact = f.LockReleaseRequested(**key("a")._asdict())
    assert made.say(fact)
    assert claim_in(made, "a").leaves
    assert not made.say(fact)


def test_facts_about_unknown_claims_are_ignored() -> None:
    made = history()
    for fact in (
        granted("a", 1),
        freed("a"),
        f.LockRenewRequested(**key("a")._asdict()),
        f.LockReleaseRequested(**key("a")._asdict()),
    ):
        assert not made.say(fact)
    assert locks.end_of(made.cluster.locks, key("a")) == ""


def test_only_the_last_ended_claims_are_remembered() -> None:
    made = history()
    for number in range(locks.ENDED_KEPT + 1):
        many(made, asked(f"h{number}"), freed(f"h{number}"))
    assert len(made.cluster.locks[RED].ended) == locks.ENDED_KEPT
    assert locks.end_of(made.cluster.locks, key("h0")) == ""
    assert locks.end_of(made.cluster.locks, key("h1")) == lock_life.EXPIRED


def test_a_late_repeated_request_and_ends_ahead_of_the_log_commute() -> None:
    """The scheduler folds its ends before the log has them, and the request in between."""
    made = history()
    for number in range(locks.ENDED_KEPT):
        many(made, asked(f"h{number}"), freed(f"h{number}"))
    many(made, asked("x"), asked("y"))
    ahead = copy(made.cluster)
    for holder in ("x", "y"):
        fold.apply(ahead, freed(holder), stamp_of(subject_of(freed(holder)), 0))
    for cluster in (made.cluster, ahead):
        fold.apply(cluster, asked("h0"), stamp_of(subject_of(asked("h0")), 9_000))
    for number, holder in enumerate(("x", "y"), start=1):
        commit = f.Commit(
            version=1,
            min_reader=1,
            writer="s1",
            number=number,
            epoch=0,
            at_ns=number,
            seen=0,
            facts=(freed(holder),),
        )
        fold.apply_entry(made.cluster, made.cluster.seq + 1, subjects.SCHEDULER, commit)
        fold.pass_over(ahead, ahead.seq + 1, subjects.SCHEDULER, commit)
        assert list(made.cluster.locks[RED].ended) == [
            each for each in ahead.locks[RED].ended if holder == "y" or each != "data/y"
        ]
    assert picture(ahead) == picture(made.cluster)
    assert locks.claim_of(ahead.locks, key("h0")) is None


def test_the_latest_claims_are_over_a_bound() -> None:
    made = history()
    for number in range(locks.CLAIMS_OF_LOCK_MAX + 1):
        many(made, asked(f"h{number}"))
    own, lock = made.cluster.locks[RED], lock_in(made)
    first, last = claim_in(made, "h0"), claim_in(made, f"h{locks.CLAIMS_OF_LOCK_MAX}")
    assert locks.over_bound(own, lock, first) == ""
    assert "lock data has" in locks.over_bound(own, lock, last)


def test_the_latest_locks_of_a_tenant_are_over_a_bound() -> None:
    made = history()
    for number in range(locks.LOCKS_MAX + 1):
        many(made, asked("h", f"l{number}"))
    own = made.cluster.locks[RED]
    last = own.locks[f"l{locks.LOCKS_MAX}"]
    assert locks.over_bound(own, own.locks["l0"], own.locks["l0"].claims["h"]) == ""
    assert "256 locks" in locks.over_bound(own, last, last.claims["h"])


def test_the_latest_claims_of_a_tenant_are_over_a_bound() -> None:
    made = history()
    for number in range(locks.CLAIMS_OF_TENANT_MAX + 1):
        many(made, asked(f"h{number}", f"l{number % 8}"))
    own = made.cluster.locks[RED]
    last = own.locks["l0"]
    late = last.claims[f"h{locks.CLAIMS_OF_TENANT_MAX}"]
    assert "claims on locks" in locks.over_bound(own, last, late)
    assert locks.over_bound(own, last, last.claims["h0"]) == ""
