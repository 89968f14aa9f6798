"""Apply facts about locks to the cluster's state: one function per kind.

Pure and total, called by `fold.py` alone. Facts of gateways only add claims and marks, and facts of
the scheduler only name claims that exist, so both commute while the scheduler works ahead. Ended
claims are forgotten in the order of the log only: a request for one that is forgotten is a new
claim.
"""

from typing import Final

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.life.lock_life import LOCK_LIFE
from libs.common.state import locks
from libs.common.state.cluster import Cluster
from libs.common.state.locks import ClaimKey, Lock, LockClaim, TenantLocks

MS: Final = 1_000_000

Request = f.LockRequested | f.LockRenewRequested | f.LockReleaseRequested
Decision = f.LockGranted | f.LockRenewed | f.LockFreed


def requested(cluster: Cluster, fact: f.LockRequested, stamp: Stamp) -> Change:
    """Add a claim at the end of the queue. One that is known, or ended lately, changes nothing."""
    key = _key(fact)
    if locks.claim_of(cluster.locks, key) is not None or locks.end_of(cluster.locks, key):
        return IGNORED
    own = cluster.locks.get(fact.tenant)
    if own is None:
        own = cluster.locks[fact.tenant] = TenantLocks()
    lock = own.locks.get(fact.lock)
    if lock is None:
        lock = own.locks[fact.lock] = Lock(fact.lock)
    lock.claims[fact.holder] = LockClaim(
        holder=fact.holder,
        user=fact.user,
        ttl_ms=fact.ttl_ms,
        wait_ms=fact.wait_ms,
        seq=stamp.seq,
        asked_ns=stamp.at_ns,
    )
    own.claims += 1
    return Change(locks=(key,))


def renew_requested(cluster: Cluster, fact: f.LockRenewRequested, stamp: Stamp) -> Change:
    """Note a request for a renewal. Only that of a holder is answered."""
    claim = locks.claim_of(cluster.locks, _key(fact))
    if claim is None or stamp.seq <= claim.asked:
        return IGNORED
    claim.asked, claim.renewal_asked_ns = stamp.seq, stamp.at_ns
    return Change(locks=(_key(fact),))


def release_requested(cluster: Cluster, fact: f.LockReleaseRequested, stamp: Stamp) -> Change:
    """Note that the client gave its claim up."""
    claim = locks.claim_of(cluster.locks, _key(fact))
    if claim is None or claim.leaves:
        return IGNORED
    claim.leaves = True
    return Change(locks=(_key(fact),))


def granted(cluster: Cluster, fact: f.LockGranted, stamp: Stamp) -> Change:
    """Give a free lock to a waiting claim, with a token that is larger than all before."""
    own, lock, claim = _found(cluster, fact)
    if own is None or lock is None or claim is None:
        return IGNORED
    if not lock.is_free or fact.token <= own.token_last or not _moves(claim, fact):
        return IGNORED
    own.token_last = fact.token
    lock.held_by = fact.holder
    claim.token, claim.expires_ns = fact.token, fact.expires_ns
    claim.granted_ns = fact.expires_ns - claim.ttl_ms * MS
    return Change(locks=(_key(fact),))


def renewed(cluster: Cluster, fact: f.LockRenewed, stamp: Stamp) -> Change:
    _, _, claim = _found(cluster, fact)
    if claim is None or claim.token != fact.token or not _moves(claim, fact):
        return IGNORED
    claim.renewed, claim.expires_ns = max(claim.renewed, fact.asked), fact.expires_ns
    return Change(locks=(_key(fact),))


def freed(cluster: Cluster, fact: f.LockFreed, stamp: Stamp) -> Change:
    """End a claim, and remember it for a while."""
    own, lock, claim = _found(cluster, fact)
    if own is None or lock is None or claim is None:
        return IGNORED
    if claim.token != fact.token or not _moves(claim, fact):
        return IGNORED
    del lock.claims[fact.holder]
    own.claims -= 1
    if lock.held_by == fact.holder:
        lock.held_by = ""
    if not lock.claims:
        del own.locks[fact.lock]
    own.ended[locks.ended_key(fact.lock, fact.holder)] = fact.reason
    if stamp.seq:  # else it is folded ahead of the log, and `forget` follows
        forget(cluster, fact)
    return Change(locks=(_key(fact),))


def forget(cluster: Cluster, fact: f.LockFreed) -> None:
    """Forget the claims that ended too long before this one, whose end is acknowledged."""
    own = cluster.locks.get(fact.tenant)
    last = locks.ended_key(fact.lock, fact.holder)
    if own is None or len(own.ended) <= locks.ENDED_KEPT or last not in own.ended:
        return
    kept = list(own.ended)[: list(own.ended).index(last) + 1]
    for each in kept[: -locks.ENDED_KEPT]:
        del own.ended[each]


def _moves(claim: LockClaim, fact: Decision) -> bool:
    """Move the claim's state by the life table; return whether the table allows the fact."""
    after = LOCK_LIFE.get((claim.state, f.kind_of(fact)))
    if after is None:
        return False
    claim.state = after
    return True


def _key(fact: Request | Decision) -> ClaimKey:
    return ClaimKey(fact.tenant, fact.lock, fact.holder)


def _found(
    cluster: Cluster, fact: Decision
) -> tuple[TenantLocks | None, Lock | None, LockClaim | None]:
    own = cluster.locks.get(fact.tenant)
    lock = own.locks.get(fact.lock) if own is not None else None
    return own, lock, lock.claims.get(fact.holder) if lock is not None else None
