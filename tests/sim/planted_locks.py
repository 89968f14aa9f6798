"""Planted bugs about locks, like those of `planted.py`."""

from collections.abc import Sequence

import pytest

from libs.client.lock_term import LockTerm
from libs.common.facts import AnyFact, LockFreed
from libs.common.life import lock_life
from libs.common.state.locks import LockClaim, all_claims, claim_of
from services.scheduler.decide import decide, locks
from services.scheduler.state import lock_turns
from services.scheduler.state.state import State


def a_lock_expires_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """The scheduler compares its wall clock with the time that another one recorded."""
    serve = locks.serve_locks

    def by_wall(state: State, now_ns: int, wall_ns: int) -> Sequence[AnyFact]:
        for key in all_claims(state.cluster.locks):
            claim = claim_of(state.cluster.locks, key)
            if claim is not None and claim.token and claim.expires_ns <= wall_ns:
                reason = lock_life.EXPIRED
                return (LockFreed(**key._asdict(), token=claim.token, reason=reason),)
        return serve(state, now_ns, wall_ns)

    patch.setattr(decide, "serve_locks", by_wall)


def a_lock_expires_in_half_its_time(patch: pytest.MonkeyPatch) -> None:
    """The scheduler frees a holder after half of its time to live."""
    allowed_ns = lock_turns.allowed_ns

    def half(claim: LockClaim) -> int:
        return allowed_ns(claim) // 2

    patch.setattr(lock_turns, "allowed_ns", half)


def a_holder_works_on_without_renewals(patch: pytest.MonkeyPatch) -> None:
    """A holder whose renewals are not answered works on."""
    patch.setattr(LockTerm, "kill_ns", property(lambda term: term.counted_ns + 10 * term.ttl_ns))
