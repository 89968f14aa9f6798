"""Locks and claims as the API shows them. Pure. Tests: tests/unit/test_lock_intents.py."""

import msgspec

from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state.locks import Lock, LockClaim, place_of
from services.api_gateway.times import rfc3339


class ClaimShown(msgspec.Struct):
    """A claim on a lock.

    `state`: waiting, held or over. `token` grows with each grant, also of other locks of the
    tenant; 0 while the claim waits. `before` is the number of claims before it in the queue, with
    the holder's. A client counts `ttl_s` from when it sent its request; `expires_at` is for people.
    """

    lock: str
    holder: str
    user: str
    state: str
    token: int
    ttl_s: int
    before: int
    requested_at: str | None
    held_at: str | None
    expires_at: str | None


class LockShown(msgspec.Struct):
    """A lock with its claims in the order of the queue. `holder` is empty while it is free."""

    name: str
    tenant: str
    holder: str
    user: str
    token: int
    waiting: int
    claims: tuple[ClaimShown, ...]


def claim_shown(lock: Lock, claim: LockClaim) -> ClaimShown:
    """Return the claim, with its place in the queue."""
    return _shown(lock, claim, place_of(lock, claim.holder))


def lock_shown(tenant: TenantId, lock: Lock) -> LockShown:
    """Return the lock with all its claims."""
    holder = lock.claims.get(lock.held_by)
    claims = tuple(_shown(lock, each, place) for place, each in enumerate(lock.claims.values()))
    return LockShown(
        name=lock.name,
        tenant=tenant,
        holder=lock.held_by,
        user=holder.user if holder is not None else "",
        token=holder.token if holder is not None else 0,
        waiting=sum(each.state == lock_life.WAITING for each in lock.claims.values()),
        claims=claims,
    )


def claim_over(lock: str, claim: LockClaim) -> ClaimShown:
    """Return a claim that has just ended."""
    ended = msgspec.structs.replace(claim, state=lock_life.OVER)
    return _shown(Lock(lock), ended, 0)


def _shown(lock: Lock, claim: LockClaim, place: int) -> ClaimShown:
    return ClaimShown(
        lock=lock.name,
        holder=claim.holder,
        user=claim.user,
        state=claim.state,
        token=claim.token,
        ttl_s=claim.ttl_ms // 1_000,
        before=place,
        requested_at=rfc3339(claim.asked_ns),
        held_at=rfc3339(claim.granted_ns),
        expires_at=rfc3339(claim.expires_ns),
    )
