"""/v1/locks: locks of a tenant, with a time to live, a token for fencing, and a queue.

The rule behind every answer "held": the client may count the time to live from when it sent the
request. So the grant or the renewal must be later in the log than the request came here, and a
request that finds the lock granted already renews it first. Tests:
tests/integration/test_gateway_locks.py.
"""

import uuid
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.facts import LockRequested
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state import locks
from libs.common.state.locks import ClaimKey, LockClaim
from services.api_gateway.access import roles
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    MomentPage,
    MomentQuery,
    Query,
    answer,
    answer_page,
    body_of,
    documented,
    gateway_without_query,
    principal_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import lock_intents as intents
from services.api_gateway.problems import Problem
from services.api_gateway.views.locks import claim_over, claim_shown, lock_shown

router = APIRouter(tags=["locks"])

# The longest wait of one request; the client sends it again.
WAIT_ONCE_S: Final = 20.0
# The longest wait for the scheduler's decision on a renewal or a release.
DECISION_S: Final = 10.0
RETRY_AFTER_S: Final = 1


class LockQuery(MomentQuery, frozen=True):
    """The lock's tenant (operators only; empty: the own one)."""

    tenant: str = ""


@router.get("/v1/locks", openapi_extra=documented(MomentPage))
async def list_locks(request: Request) -> Response:
    """List the locks that are held or waited for, with their queues."""
    moment, query = await viewed(request, MomentPage)
    principal = principal_of(request)
    rows = [
        (tenant, lock)
        for tenant, own in sorted(moment.cluster.locks.items())
        if roles.sees(principal, tenant)
        for _, lock in sorted(own.locks.items())
    ]
    return await answer_page(
        name="locks",
        values=rows,
        query=query,
        seq=moment.seq,
        name_of=lambda row: f"{row[0]}/{row[1].name}",
        show=lambda row: lock_shown(*row),
    )


@router.get("/v1/locks/{name}", openapi_extra=documented(LockQuery))
async def show_lock(request: Request, name: str) -> Response:
    """Show the holder of a lock and the clients that wait for it."""
    moment, query = await viewed(request, LockQuery)
    principal = principal_of(request)
    tenant = TenantId(query.tenant or principal.tenant)
    sees = roles.sees(principal, tenant)
    lock = locks.lock_named(moment.cluster.locks, tenant, name) if sees else None
    if lock is None:
        raise Problem(
            404,
            f"lock {name[:64]!r} is free and has no waiting claims: list the locks with "
            "`muster locks`",
        )
    return answer(lock_shown(tenant, lock))


@router.post("/v1/locks/{name}/acquire", openapi_extra=documented(Query, intents.ACQUIRE_FIELDS))
async def acquire(request: Request, name: str) -> Response:
    """Acquire a lock, or wait in its queue.

    The answer is 200 when the lock is held, and 202 while it is not: then send the same request
    again.
    """
    gateway, principal = gateway_without_query(request), principal_of(request)
    requested = intents.request_of(await body_of(request), name, principal, uuid.uuid4().hex)
    key = ClaimKey(requested.tenant, requested.lock, requested.holder)
    known = locks.claim_of(gateway.cluster.locks, key)
    seq = await _record(gateway, requested, key) if known is None else 0
    intents.claim_to_change(gateway.cluster.locks, key, principal)
    claim = await _turn(gateway, key)
    if claim.state != lock_life.HELD:
        return answer(_shown(gateway, key, claim), 202)
    if claim.seq != seq:  # an earlier request made the claim, perhaps at another gateway
        claim = await _renew(gateway, key, claim)
    return answer(_shown(gateway, key, claim))


async def _record(gateway: Gateway, requested: LockRequested, key: ClaimKey) -> int:
    if locks.end_of(gateway.cluster.locks, key):
        raise intents.gone(gateway.cluster.locks, key)
    intents.check_room(gateway.cluster.locks, requested)
    return await gateway.record(requested)


async def _turn(gateway: Gateway, key: ClaimKey) -> LockClaim:
    """Wait until the claim is held, at most WAIT_ONCE_S. Raises Problem 409 if it ended."""
    until_ns = gateway.clock.boot_ns() + int(WAIT_ONCE_S * 1e9)
    while True:
        claim = locks.claim_of(gateway.cluster.locks, key)
        if claim is None:
            raise intents.gone(gateway.cluster.locks, key)
        left_s = (until_ns - gateway.clock.boot_ns()) / 1e9
        if claim.state == lock_life.HELD or left_s <= 0:
            return claim
        await gateway.waiting.lock(key, left_s)


@router.post("/v1/locks/{name}/renew", openapi_extra=documented(Query, intents.HOLDER_FIELDS))
async def renew(request: Request, name: str) -> Response:
    """Give the holder of a lock its time to live again, from when it sent this request."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    key = intents.key_of(await body_of(request), name, principal)
    claim = intents.claim_to_change(gateway.cluster.locks, key, principal)
    return answer(_shown(gateway, key, await _renew(gateway, key, claim)))


async def _renew(gateway: Gateway, key: ClaimKey, claim: LockClaim) -> LockClaim:
    """Record a renewal and wait for the scheduler's. Raises Problem 409, 429 or 503."""
    seq = await gateway.record(intents.renewal(key, claim, gateway.clock.wall_ns()))
    until_ns = gateway.clock.boot_ns() + int(DECISION_S * 1e9)
    while True:
        found = locks.claim_of(gateway.cluster.locks, key)
        if found is None:
            raise intents.gone(gateway.cluster.locks, key)
        if found.renewed >= seq:
            return found
        await _decision(gateway, key, until_ns, "renewed")


@router.post("/v1/locks/{name}/release", openapi_extra=documented(Query, intents.HOLDER_FIELDS))
async def release(request: Request, name: str) -> Response:
    """Give a lock back, or leave its queue. A claim that was released before is no error."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    key = intents.key_of(await body_of(request), name, principal)
    claim = intents.claim_to_change(gateway.cluster.locks, key, principal)
    if not claim.leaves:
        await gateway.record(intents.release(key, principal.user))
    until_ns = gateway.clock.boot_ns() + int(DECISION_S * 1e9)
    while locks.claim_of(gateway.cluster.locks, key) is not None:
        await _decision(gateway, key, until_ns, "released")
    return answer(claim_over(key.lock, claim))


async def _decision(gateway: Gateway, key: ClaimKey, until_ns: int, what: str) -> None:
    """Wait for the scheduler's next decision on the claim. Raises Problem 503 after `until_ns`."""
    left_s = (until_ns - gateway.clock.boot_ns()) / 1e9
    if left_s <= 0:
        text = (
            f"the scheduler has not {what} claim {key.holder} on lock {key.lock} within "
            f"{DECISION_S:.0f} s: try again"
        )
        raise Problem(503, text, retry_after_s=RETRY_AFTER_S)
    await gateway.waiting.lock(key, left_s)


def _shown(gateway: Gateway, key: ClaimKey, claim: LockClaim) -> object:
    lock = gateway.cluster.locks[key.tenant].locks[key.lock]
    return claim_shown(lock, claim)
