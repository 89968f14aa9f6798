"""The locks of a tenant, in the state: claims in the order of the log, and tokens. Pure.

Bounds are not part of the fold, because the scheduler works ahead of the log: it refuses what is
over them with a fact. Tests: tests/unit/test_lock_fold.py, tests/sim/test_locks.py.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from libs.common.life import lock_life
from libs.common.model import TenantId

# Locks with a claim, of one tenant; claims of one lock; claims of one tenant.
LOCKS_MAX: Final = 256
CLAIMS_OF_LOCK_MAX: Final = 256
CLAIMS_OF_TENANT_MAX: Final = 1_024
# Claims that ended last, of one tenant. A repeated request for one of them changes nothing. More
# are kept while their ends are not acknowledged.
ENDED_KEPT: Final = 256


class ClaimKey(NamedTuple):
    """The name of a claim."""

    tenant: TenantId
    lock: str
    holder: str


class LockClaim(msgspec.Struct):
    """A claim on a lock.

    `seq` is the sequence of its request, `asked` of its last request for a renewal, and `renewed`
    of the last one that was granted. `token` is 0 while it waits. `leaves`: its client gave it up.
    """

    holder: str
    user: str
    ttl_ms: int
    wait_ms: int
    seq: int
    asked_ns: int
    state: str = lock_life.WAITING
    token: int = 0
    granted_ns: int = 0
    expires_ns: int = 0
    asked: int = 0
    renewal_asked_ns: int = 0
    renewed: int = 0
    leaves: bool = False


class Lock(msgspec.Struct):
    """A lock with at least one claim: the one of its holder, and the waiting ones in the order in
    which the log has them. `held_by` is empty while the lock is free.
    """

    name: str
    claims: dict[str, LockClaim] = {}
    held_by: str = ""

    @property
    def is_free(self) -> bool:
        return not self.held_by


class TenantLocks(msgspec.Struct):
    """The locks of one tenant. It is never removed, so that no token is used twice.

    `ended` has the reason for the end of each late claim, by lock and holder.
    """

    token_last: int = 0
    claims: int = 0
    locks: dict[str, Lock] = {}
    ended: dict[str, str] = {}


Locks = dict[TenantId, TenantLocks]


def ended_key(lock: str, holder: str) -> str:
    """Return the key of a claim in `TenantLocks.ended`. The name of a lock has no slash."""
    return f"{lock}/{holder}"


def all_claims(locks: Locks) -> Iterator[ClaimKey]:
    """Iterate over the names of all claims."""
    for tenant, own in locks.items():
        for lock in own.locks.values():
            yield from (ClaimKey(tenant, lock.name, holder) for holder in lock.claims)


def lock_named(locks: Locks, tenant: TenantId, name: str) -> Lock | None:
    """Return the lock, if it has a claim."""
    own = locks.get(tenant)
    return own.locks.get(name) if own is not None else None


def claim_of(locks: Locks, key: ClaimKey) -> LockClaim | None:
    """Return the claim, if it has not ended."""
    lock = lock_named(locks, key.tenant, key.lock)
    return lock.claims.get(key.holder) if lock is not None else None


def end_of(locks: Locks, key: ClaimKey) -> str:
    """Return why the claim ended; empty if it did not, or ended too long ago."""
    own = locks.get(key.tenant)
    return own.ended.get(ended_key(key.lock, key.holder), "") if own is not None else ""


def place_of(lock: Lock, holder: str) -> int:
    """Return how many claims of the lock are before this one."""
    return next(place for place, name in enumerate(lock.claims) if name == holder)


def first_waiting(lock: Lock) -> LockClaim | None:
    """Return the claim that gets the lock next."""
    waits = (claim for claim in lock.claims.values() if claim.state == lock_life.WAITING)
    return next(waits, None)


def over_bound(own: TenantLocks, lock: Lock, claim: LockClaim) -> str:
    """Return which bound the claim is over, in words; empty for none.

    Of the claims that are too many, the latest ones are over the bound.
    """
    if len(lock.claims) > CLAIMS_OF_LOCK_MAX and place_of(lock, claim.holder) >= CLAIMS_OF_LOCK_MAX:
        return f"lock {lock.name} has {CLAIMS_OF_LOCK_MAX} claims"
    if len(own.locks) > LOCKS_MAX and _is_late(own, claim.seq, LOCKS_MAX, by_lock=True):
        return f"the tenant has {LOCKS_MAX} locks"
    is_full = own.claims > CLAIMS_OF_TENANT_MAX
    if is_full and _is_late(own, claim.seq, CLAIMS_OF_TENANT_MAX, by_lock=False):
        return f"the tenant has {CLAIMS_OF_TENANT_MAX} claims on locks"
    return ""


def _is_late(own: TenantLocks, seq: int, most: int, *, by_lock: bool) -> bool:
    """Return whether `most` locks, or claims, of the tenant are older than `seq`."""
    older = 0
    for lock in own.locks.values():
        seqs = [claim.seq for claim in lock.claims.values() if claim.seq < seq]
        older += bool(seqs) if by_lock else len(seqs)
    return older >= most
