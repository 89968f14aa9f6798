"""Requests about locks: acquire, renew, release.

Pure. A client names its claim with `holder`, so a repeated request changes nothing. Tests:
tests/unit/test_lock_intents.py.
"""

import re
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import LockReleaseRequested, LockRenewRequested, LockRequested
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state import locks
from libs.common.state.locks import ClaimKey, LockClaim, Locks, TenantLocks
from libs.common.state.ordering import SECOND_NS
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.intents.fields import check_known, check_range, convert
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TTL_S: Final = (5, 3_600)
WAIT_MAX_S: Final = 86_400
TTL_DEFAULT: Final = "30s"
# A claim may be renewed so often within its time to live.
RENEWALS_IN_TTL: Final = 5
RETRY_AFTER_S: Final = 10
MS_IN_S: Final = 1_000
ENDED: Final = {
    lock_life.RELEASED: "it was released",
    lock_life.EXPIRED: "its time to live passed without a renewal",
    lock_life.WAIT_OVER: "the lock was not free in the time that it could wait",
    lock_life.TOO_MANY: "the tenant or the lock has too many claims",
}


class AcquireBody(msgspec.Struct, frozen=True, kw_only=True):
    """A claim on a lock.

    `holder` names the claim: a request with the same name continues it (empty: a new name). The
    lock is freed `ttl` after the last renewal. `wait` is how long the claim may wait in the queue;
    0: not at all.
    """

    holder: str = ""
    ttl: int | str = TTL_DEFAULT
    wait: int | str = 0


class HolderBody(msgspec.Struct, frozen=True, kw_only=True):
    """The claim to renew or release, as its `holder` was named."""

    holder: str


ACQUIRE_FIELDS: Final = AcquireBody.__struct_fields__
HOLDER_FIELDS: Final = HolderBody.__struct_fields__


def request_of(body: object, name: str, principal: Principal, fresh: str) -> LockRequested:
    """Return the fact for `POST /v1/locks/{name}/acquire`. `fresh` is a name that is not in use.

    Raises Refused.
    """
    fields = convert(_fields(body, ACQUIRE_FIELDS), AcquireBody)
    ttl_s, wait_s = duration_s(fields.ttl, "ttl"), duration_s(fields.wait, "wait")
    check_range("ttl", ttl_s, *TTL_S)
    check_range("wait", wait_s, 0, WAIT_MAX_S)
    return LockRequested(
        tenant=TenantId(principal.tenant),
        lock=_checked("name", name),
        holder=_checked("holder", fields.holder or fresh),
        ttl_ms=ttl_s * MS_IN_S,
        wait_ms=wait_s * MS_IN_S,
        user=principal.user,
    )


def key_of(body: object, name: str, principal: Principal) -> ClaimKey:
    """Return the claim that a request to renew or release names. Raises Refused."""
    holder = convert(_fields(body, HOLDER_FIELDS), HolderBody).holder
    return ClaimKey(TenantId(principal.tenant), _checked("name", name), _checked("holder", holder))


def claim_to_change(found: Locks, key: ClaimKey, principal: Principal) -> LockClaim:
    """Return the claim. Raises Problem 404 or 409, and Denied 403 for another user's claim."""
    claim = locks.claim_of(found, key)
    if claim is None:
        raise gone(found, key)
    roles.check_change(principal, f"claim {key.holder} on lock {key.lock}", key.tenant, claim.user)
    return claim


def gone(found: Locks, key: ClaimKey) -> Problem:
    """Return the problem of a claim that has ended, or never was."""
    reason = locks.end_of(found, key)
    if not reason:
        return Problem(
            404,
            f"lock {key.lock} has no claim {key.holder}: acquire the lock first, or list the "
            "locks with `muster locks`",
        )
    return Problem(
        409,
        f"claim {key.holder} on lock {key.lock} has ended: {ENDED.get(reason, reason)}. Acquire "
        "the lock again with another holder",
        reason=reason,
    )


def check_room(found: Locks, requested: LockRequested) -> None:
    """Check that the tenant may have one more claim, and that a claim that cannot wait finds the
    lock free.

    Raises Problem 429 or 409.
    """
    own = found.get(requested.tenant) or TenantLocks()
    lock = own.locks.get(requested.lock)
    if lock is not None and not lock.is_free and not requested.wait_ms:
        raise _held(requested, lock.claims[lock.held_by].user)
    full = ""
    if own.claims >= locks.CLAIMS_OF_TENANT_MAX:
        full = f"tenant {requested.tenant} has {locks.CLAIMS_OF_TENANT_MAX} claims on locks"
    elif lock is None and len(own.locks) >= locks.LOCKS_MAX:
        full = f"tenant {requested.tenant} has {locks.LOCKS_MAX} locks that are held or waited for"
    elif lock is not None and len(lock.claims) >= locks.CLAIMS_OF_LOCK_MAX:
        full = f"lock {requested.lock} has {locks.CLAIMS_OF_LOCK_MAX} claims"
    if full:
        raise Problem(
            429, f"{full}, the maximum: release some, or try again", retry_after_s=RETRY_AFTER_S
        )


def _held(requested: LockRequested, user: str) -> Problem:
    return Problem(
        409,
        f"lock {requested.lock} is held by {user or 'another user'}: wait for it with --wait 5m "
        "(wait), or try again",
        reason=lock_life.WAIT_OVER,
    )


def renewal(key: ClaimKey, claim: LockClaim, now_ns: int) -> LockRenewRequested:
    """Return the fact for `POST /v1/locks/{name}/renew`.

    Raises Problem 409 for a claim that waits, and 429 for one that was renewed just now.
    """
    if claim.state != lock_life.HELD:
        raise Problem(409, f"lock {key.lock} is not held by {key.holder} yet: acquire it first")
    least_s = claim.ttl_ms // RENEWALS_IN_TTL // MS_IN_S
    # The time may be another gateway's, with a clock that is ahead of this one's.
    since_s = (now_ns - claim.renewal_asked_ns) // SECOND_NS
    if 0 <= since_s < least_s:
        raise Problem(
            429,
            f"lock {key.lock} was renewed {since_s} s ago: renew it at most every {least_s} s",
            retry_after_s=least_s - since_s,
        )
    return LockRenewRequested(tenant=key.tenant, lock=key.lock, holder=key.holder)


def release(key: ClaimKey, user: str) -> LockReleaseRequested:
    """Return the fact for `POST /v1/locks/{name}/release`."""
    return LockReleaseRequested(tenant=key.tenant, lock=key.lock, holder=key.holder, user=user)


def _fields(body: object, known: tuple[str, ...]) -> dict[str, Any]:
    fields = {} if body is None else body
    if not isinstance(fields, dict):
        raise Refused(f"the request is not a JSON object: give the fields {', '.join(known)}")
    check_known(fields, known, "field")
    return fields


def _checked(field: str, value: str) -> str:
    if not NAME.fullmatch(value):
        raise Refused(
            f"{field}: {value[:64]!r} is not valid: begin with a letter or digit, then use "
            "letters, digits and ._- (at most 63 characters)"
        )
    return value
