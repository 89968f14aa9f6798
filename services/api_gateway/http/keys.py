"""/v1/keys: API keys; /v1/whoami: the user and role of the request's key.

A key is shown once, in the answer that creates it.
"""

from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from libs.common.facts import KeyCreated, KeyRevoked
from libs.common.state.cluster import Key
from services.api_gateway.access import idempotency
from services.api_gateway.access.auth import hash_key, new_key, new_key_id
from services.api_gateway.access.idempotency import Once
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    PageQuery,
    Query,
    answer,
    answer_page,
    body_of,
    documented,
    gateway_without_query,
    on_record,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import identity_intents
from services.api_gateway.problems import Problem
from services.api_gateway.views.identity import key_shown

# Proxies and browsers must not store an answer with a key.
SECRET: dict[str, str] = {"cache-control": "no-store"}

router = APIRouter(tags=["keys"])


class KeysQuery(PageQuery, frozen=True):
    tenant: str = ""
    user: str = ""


@router.get("/v1/keys", openapi_extra=documented(KeysQuery))
async def list_keys(request: Request) -> Response:
    """List the keys that were not revoked, without their secrets."""
    gateway, query = await settled(request, KeysQuery)
    now_ns = gateway.clock.wall_ns()

    def wanted(key: Key) -> bool:
        return query.tenant in ("", key.tenant) and query.user in ("", key.user)

    keys, shown = list(gateway.cluster.keys.values()), partial(key_shown, now_ns=now_ns)
    return await answer_page(
        name="keys",
        values=keys,
        query=query,
        seq=gateway.cluster.seq,
        name_of=lambda key: key.key_id,
        show=shown,
        wanted=wanted,
    )


@router.post(
    "/v1/keys", status_code=201, openapi_extra=documented(Query, identity_intents.KEY_FIELDS)
)
async def create_key(request: Request) -> Response:
    """Create a key.

    A repeated Idempotency-Key answers with the key of the first request, without its secret, which
    is shown only once.
    """
    gateway, principal, body = (
        gateway_without_query(request),
        principal_of(request),
        await body_of(request),
    )
    once = idempotency.once(request.headers.get(idempotency.HEADER), "key", principal.tenant, body)
    created = identity_intents.key_creation(
        body, gateway.cluster, principal.tenant, gateway.clock.wall_ns()
    )
    key_id = once.id or new_key_id()
    text = new_key(key_id)
    fact = replace(
        created, key_id=key_id, secret_hash=hash_key(text), by=principal.user, request=once.digest
    )
    async with gateway.claims.of(once.id):
        if key_id not in gateway.cluster.keys:
            await on_record(request, fact, 201)
    return _created(gateway, fact, once, text)


def _created(gateway: Gateway, fact: KeyCreated, once: Once, text: str) -> Response:
    """Answer with the key, which an earlier request with this Idempotency-Key may have made."""
    key = gateway.cluster.keys.get(fact.key_id)
    if key is None:
        raise Problem(409, f"the key was not created: tenant {fact.tenant} was removed meanwhile")
    now_ns = gateway.clock.wall_ns()
    if key.secret_hash != fact.secret_hash:
        once.check(key.tenant == fact.tenant, key.request)
        return answer(key_shown(key, now_ns), 200, idempotency.REPLAYED)
    return answer(key_shown(key, now_ns, text), 201, SECRET)


@router.delete("/v1/keys/{key_id}", status_code=204, openapi_extra=documented(Query))
async def revoke_key(request: Request, key_id: str) -> Response:
    """Revoke a key, at once at every gateway that has folded the change."""
    gateway = gateway_without_query(request)
    await on_record(
        request,
        KeyRevoked(key_id=_key(gateway, key_id).key_id, user=principal_of(request).user),
        204,
    )
    return Response(status_code=204)


@router.post(
    "/v1/keys/{key_id}/rotate", openapi_extra=documented(Query, identity_intents.ROTATE_FIELDS)
)
async def rotate_key(request: Request, key_id: str) -> Response:
    """Give a key a new secret. The old one stays valid for `grace` (default: one day)."""
    gateway, body = gateway_without_query(request), await body_of(request)
    key = _key(gateway, key_id)
    text = new_key(key.key_id)
    now_ns = gateway.clock.wall_ns()
    await on_record(
        request,
        identity_intents.key_rotation(
            body, key, digest=hash_key(text), user=principal_of(request).user, now_ns=now_ns
        ),
    )
    folded = _key(gateway, key_id)
    if folded.secret_hash != hash_key(text):
        raise Problem(
            409, f"key {key_id} was rotated by another request at the same time: rotate it again"
        )
    return answer(key_shown(folded, gateway.clock.wall_ns(), text), 200, SECRET)


@router.put(
    "/v1/keys/{key_id}/limits", openapi_extra=documented(Query, identity_intents.LIMIT_FIELDS)
)
async def limit_key(request: Request, key_id: str) -> Response:
    """Set the limits of requests to models with this key; 0 for none."""
    gateway, body = gateway_without_query(request), await body_of(request)
    key, user = _key(gateway, key_id), principal_of(request).user
    await on_record(request, identity_intents.key_limits(body, key, user))
    return answer(key_shown(_key(gateway, key_id), gateway.clock.wall_ns()))


@router.get("/v1/whoami")
async def whoami(request: Request) -> Response:
    """Return the user, tenant and role of the request's key."""
    return answer(principal_of(request))


def _key(gateway: Gateway, key_id: str) -> Key:
    found = gateway.cluster.keys.get(key_id)
    if found is None:
        raise Problem(
            404,
            (
                f"key {key_id[:64]!r} does not exist: "
                "list the keys with `muster key list` (GET /v1/keys); the host's keys "
                "are in the file MUSTER_API_KEYS_FILE"
            ),
        )
    return found
