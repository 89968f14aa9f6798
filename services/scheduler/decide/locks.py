"""The rule for locks: grant, renew and free them.

Pure. One writer decides, so no lock has two holders at any place of the log. A holder counts its
time to live from when it sent its last successful request, this rule from when it granted it, which
is later: no lock is granted again while its last holder may still count on it.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.facts import AnyFact, LockFreed, LockGranted, LockRenewed
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state.locks import (
    ClaimKey,
    Lock,
    LockClaim,
    TenantLocks,
    first_waiting,
    over_bound,
)
from services.scheduler.state.lock_turns import MS
from services.scheduler.state.state import State

# Claims in one decision; at most one of each lock.
CLAIMS_AT_ONCE: Final = 64


def serve_locks(state: State, now_ns: int, wall_ns: int) -> Sequence[AnyFact]:
    """Return the facts of the claims that must change now."""
    turns = state.restless.locks
    turns.wake(now_ns)
    facts: list[AnyFact] = []
    decided: dict[tuple[TenantId, str], None] = {}
    tokens: dict[TenantId, int] = {}
    for key in sorted(turns.due):  # whatever the history, so that all members decide alike
        if (key.tenant, key.lock) in decided:
            continue
        own = state.cluster.locks[key.tenant]
        lock = own.locks[key.lock]
        claim = lock.claims[key.holder]
        token = _next_token(tokens.get(key.tenant, own.token_last), wall_ns)
        reason = _end(own, lock, claim, is_over=turns.is_over(key, claim))
        fact = _freed(key, claim, reason) if reason else _kept(key, lock, claim, token, wall_ns)
        if fact is None:
            turns.rest(key, claim, now_ns)
            continue
        if isinstance(fact, LockGranted):
            tokens[key.tenant] = token
        facts.append(fact)
        decided[(key.tenant, key.lock)] = None
        if len(facts) == CLAIMS_AT_ONCE:
            break
    return facts


def _end(own: TenantLocks, lock: Lock, claim: LockClaim, *, is_over: bool) -> str:
    """Return why the claim must end now; empty if it goes on.

    A holder that asked for a renewal keeps the lock, because no other claim has it.
    """
    if claim.leaves:
        return lock_life.RELEASED
    if claim.state == lock_life.HELD:
        return lock_life.EXPIRED if is_over and claim.asked <= claim.renewed else ""
    if over_bound(own, lock, claim):
        return lock_life.TOO_MANY
    if _is_next(lock, claim):
        return ""
    return lock_life.WAIT_OVER if is_over or not claim.wait_ms else ""


def _is_next(lock: Lock, claim: LockClaim) -> bool:
    return lock.is_free and first_waiting(lock) is claim


def _freed(key: ClaimKey, claim: LockClaim, reason: str) -> LockFreed:
    return LockFreed(**key._asdict(), token=claim.token, reason=reason)


def _kept(
    key: ClaimKey, lock: Lock, claim: LockClaim, token: int, wall_ns: int
) -> LockGranted | LockRenewed | None:
    expires_ns = wall_ns + claim.ttl_ms * MS
    if claim.state == lock_life.HELD:
        if claim.asked <= claim.renewed:
            return None
        return LockRenewed(
            **key._asdict(), token=claim.token, asked=claim.asked, expires_ns=expires_ns
        )
    if not _is_next(lock, claim):
        return None
    return LockGranted(**key._asdict(), token=token, expires_ns=expires_ns)


def _next_token(last: int, wall_ns: int) -> int:
    """Return a token above all earlier ones of the tenant.

    It is at least the time in milliseconds, so that a cluster restored from an old backup does not
    use a token again.
    """
    return max(last + 1, wall_ns // MS)
