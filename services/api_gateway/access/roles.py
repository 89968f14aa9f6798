"""Authorisation: one table of route x role, and the checks of a single thing.

Pure. A route without a row is refused to everyone, and tests/unit/test_role_table.py fails. A
role's reach on a route is NOTHING, OWN (things of the same user of the same tenant), TENANT, or
ALL. A thing that the principal cannot read is answered as if it did not exist (404). A thing that
it can read but not change is forbidden (403). tests/integration/test_gateway_roles.py checks every
row over HTTP.
"""

from typing import Final, NamedTuple

import msgspec

from services.api_gateway.problems import Denied


class Principal(msgspec.Struct, frozen=True):
    """The user, tenant and role that a request acts as. `key_id` is public."""

    key_id: str
    tenant: str
    user: str
    role: str


VIEWER: Final = "viewer"
MEMBER: Final = "member"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
ROLES: Final = (VIEWER, MEMBER, OPERATOR, ADMIN)

NOTHING: Final = 0
OWN: Final = 1
TENANT: Final = 2
ALL: Final = 3


class Row(NamedTuple):
    """The reach of each role on a route."""

    viewer: int
    member: int
    operator: int
    admin: int


# Routes that need no key.
PROBES: Final = ("/livez", "/readyz", "/metrics")
# Routes below /v1 that need no key: signing in.
SIGN_ON: Final = (
    "/v1/session",
    "/v1/session/oidc",
    "/v1/session/oidc/callback",
    "/v1/session/device",
    "/v1/session/device/token",
)
PUBLIC: Final = (*PROBES, "/join", "/join/ca", *SIGN_ON)
ANY: Final = Row(ALL, ALL, ALL, ALL)
READ: Final = Row(TENANT, TENANT, ALL, ALL)
CREATE: Final = Row(NOTHING, TENANT, ALL, ALL)
CHANGE: Final = Row(NOTHING, OWN, ALL, ALL)
OPERATE: Final = Row(NOTHING, NOTHING, ALL, ALL)
ADMINISTER: Final = Row(NOTHING, NOTHING, NOTHING, ALL)

ROUTES: Final[dict[tuple[str, str], Row]] = {
    ("POST", "/v1/jobs"): CREATE,
    ("POST", "/v1/jobs:batch"): CREATE,
    ("GET", "/v1/jobs"): READ,
    ("GET", "/v1/jobs/{ref}"): READ,
    ("GET", "/v1/jobs/{ref}/elements"): READ,
    ("GET", "/v1/jobs/{ref}/history"): READ,
    ("GET", "/v1/jobs/{ref}/why"): READ,
    ("GET", "/v1/jobs/{ref}/pulls"): READ,
    ("POST", "/v1/jobs/{ref}/diagnoses"): CHANGE,
    ("GET", "/v1/jobs/{ref}/diagnoses"): READ,
    ("GET", "/v1/jobs/{ref}/diagnoses/evidence"): CHANGE,
    ("GET", "/v1/jobs/{ref}/wait"): READ,
    ("GET", "/v1/pulled"): READ,
    ("DELETE", "/v1/pulled/{node_id}"): CREATE,
    ("GET", "/v1/jobs/{ref}/output"): READ,
    ("GET", "/v1/jobs/{ref}/output/search"): READ,
    ("GET", "/v1/jobs/{ref}/attach"): READ,
    ("GET", "/v1/jobs/{ref}/files"): CHANGE,
    ("POST", "/v1/jobs/{ref}/copies"): CHANGE,
    ("GET", "/v1/jobs/{ref}/copies/{copy}"): CHANGE,
    ("POST", "/v1/jobs/{ref}/traces"): CHANGE,
    ("GET", "/v1/jobs/{ref}/traces"): CHANGE,
    ("GET", "/v1/jobs/{ref}/traces/{trace}"): CHANGE,
    ("GET", "/v1/jobs/{ref}/traces/{trace}/file"): CHANGE,
    ("PUT", "/v1/jobs/{ref}/stdin"): CHANGE,
    ("GET", "/v1/jobs/{ref}/exec"): CHANGE,
    ("GET", "/v1/jobs/{ref}/forward"): CHANGE,
    ("POST", "/v1/jobs/{ref}/cancel"): CHANGE,
    ("POST", "/v1/jobs/{ref}/kill"): CHANGE,
    ("GET", "/v1/uploads"): CREATE,
    ("GET", "/v1/uploads/{sha256}"): CREATE,
    ("PUT", "/v1/uploads/{sha256}"): CREATE,
    ("DELETE", "/v1/uploads/{sha256}"): CREATE,
    ("PATCH", "/v1/jobs/{ref}"): CHANGE,
    ("POST", "/v1/jobs/{ref}/hold"): CHANGE,
    ("POST", "/v1/jobs/{ref}/release"): CHANGE,
    ("POST", "/v1/jobs/{ref}/requeue"): CHANGE,
    ("GET", "/v1/upcoming"): READ,
    ("GET", "/v1/queues"): ANY,
    ("PUT", "/v1/queues/{name}"): ADMINISTER,
    ("GET", "/v1/reservations"): ANY,
    ("PUT", "/v1/reservations/{name}"): OPERATE,
    ("DELETE", "/v1/reservations/{name}"): OPERATE,
    ("POST", "/v1/deployments"): CREATE,
    ("GET", "/v1/deployments"): READ,
    ("GET", "/v1/deployments/{name}"): READ,
    ("GET", "/v1/deployments/{name}/why"): READ,
    ("PATCH", "/v1/deployments/{name}"): CHANGE,
    ("DELETE", "/v1/deployments/{name}"): CHANGE,
    ("POST", "/v1/deployments/{name}/redeploy"): CHANGE,
    ("PATCH", "/v1/deployments/{name}/aliases"): CHANGE,
    ("PATCH", "/v1/deployments/{name}/guests"): CHANGE,
    ("PUT", "/v1/deployments/{name}/limits/{tenant}"): CHANGE,
    ("GET", "/v1/adapters"): READ,
    ("PUT", "/v1/deployments/{name}/adapters/{adapter}"): CHANGE,
    ("DELETE", "/v1/deployments/{name}/adapters/{adapter}"): CHANGE,
    ("GET", "/v1/kept"): READ,
    ("PUT", "/v1/deployments/{name}/kept/{tier}"): CHANGE,
    ("DELETE", "/v1/deployments/{name}/kept/{tier}"): CHANGE,
    ("GET", "/v1/models"): READ,
    ("GET", "/v1/models/{id}"): READ,
    ("POST", "/v1/chat/completions"): CREATE,
    ("POST", "/v1/completions"): CREATE,
    ("POST", "/v1/embeddings"): CREATE,
    ("POST", "/v1/responses"): CREATE,
    ("POST", "/v1/audio/speech"): CREATE,
    ("POST", "/v1/audio/transcriptions"): CREATE,
    ("POST", "/v1/audio/translations"): CREATE,
    ("POST", "/v1/images/generations"): CREATE,
    ("POST", "/v1/images/edits"): CREATE,
    ("POST", "/v1/images/variations"): CREATE,
    ("POST", "/v1/rerank"): CREATE,
    ("POST", "/v1/score"): CREATE,
    ("POST", "/tokenize"): CREATE,
    ("POST", "/detokenize"): CREATE,
    ("GET", "/v1/nodes"): ANY,
    ("POST", "/v1/nodes"): OPERATE,
    ("GET", "/v1/nodes/{node_id}"): ANY,
    ("GET", "/v1/nodes/{node_id}/readings"): READ,
    ("GET", "/v1/nodes/{node_id}/topology"): ANY,
    ("DELETE", "/v1/nodes/{node_id}"): OPERATE,
    ("POST", "/v1/nodes/{node_id}/dead"): OPERATE,
    ("POST", "/v1/prune"): OPERATE,
    ("PUT", "/v1/nodes/{node_id}/service"): OPERATE,
    ("GET", "/v1/fleet"): ANY,
    ("GET", "/v1/gpus"): ANY,
    ("GET", "/v1/gpus/{uuid}"): ANY,
    ("PUT", "/v1/gpus/{uuid}/service"): OPERATE,
    ("PUT", "/v1/gpus/{uuid}/controls/{control}"): OPERATE,
    ("PUT", "/v1/nodes/{node_id}/controls/{control}"): OPERATE,
    ("GET", "/v1/inventory"): ANY,
    ("GET", "/v1/bus"): OPERATE,
    ("POST", "/v1/bus/{server}/restart"): OPERATE,
    ("POST", "/v1/bus/{server}/replace"): ADMINISTER,
    ("POST", "/v1/bus/replicas/{count}"): ADMINISTER,
    ("GET", "/v1/leases"): ANY,
    ("POST", "/v1/leases"): OPERATE,
    ("GET", "/v1/fabric"): ANY,
    ("POST", "/v1/fabric/tests"): OPERATE,
    ("GET", "/v1/fabric/tests/{test}"): ANY,
    ("GET", "/v1/cluster"): ANY,
    ("GET", "/v1/cluster/verify"): OPERATE,
    ("GET", "/v1/memory"): READ,
    ("GET", "/v1/allocations"): READ,
    ("POST", "/v1/allocations"): CREATE,
    ("GET", "/v1/allocations/{ref}"): READ,
    ("PATCH", "/v1/allocations/{ref}"): CHANGE,
    ("DELETE", "/v1/allocations/{ref}"): CHANGE,
    ("POST", "/v1/whatif"): READ,
    ("GET", "/v1/events"): READ,
    ("GET", "/v1/watch"): READ,
    ("GET", "/v1/ws"): READ,
    ("GET", "/v1/state"): OPERATE,
    ("GET", "/v1/access"): OPERATE,
    ("GET", "/v1/audit/events"): OPERATE,
    ("GET", "/v1/audit/head"): OPERATE,
    ("GET", "/v1/usage"): READ,
    ("GET", "/v1/charges"): READ,
    ("GET", "/v1/prices"): ANY,
    ("PUT", "/v1/prices/{name}"): ADMINISTER,
    ("DELETE", "/v1/prices/{name}"): ADMINISTER,
    ("PUT", "/v1/tenants/{name}/idle"): ADMINISTER,
    ("GET", "/v1/tenants"): READ,
    ("GET", "/v1/tenants/{name}"): READ,
    ("PUT", "/v1/tenants/{name}"): ADMINISTER,
    ("DELETE", "/v1/tenants/{name}"): ADMINISTER,
    ("GET", "/v1/keys"): ADMINISTER,
    ("POST", "/v1/keys"): ADMINISTER,
    ("DELETE", "/v1/keys/{key_id}"): ADMINISTER,
    ("POST", "/v1/keys/{key_id}/rotate"): ADMINISTER,
    ("PUT", "/v1/keys/{key_id}/limits"): ADMINISTER,
    ("GET", "/v1/secrets"): READ,
    ("PUT", "/v1/secrets/{name}"): CREATE,
    ("DELETE", "/v1/secrets/{name}"): CREATE,
    ("GET", "/v1/notifications"): READ,
    ("PUT", "/v1/notifications/{name}"): CREATE,
    ("DELETE", "/v1/notifications/{name}"): CHANGE,
    ("POST", "/v1/notifications/{name}/test"): CHANGE,
    ("GET", "/v1/locks"): READ,
    ("GET", "/v1/locks/{name}"): READ,
    ("POST", "/v1/locks/{name}/acquire"): CREATE,
    ("POST", "/v1/locks/{name}/renew"): CHANGE,
    ("POST", "/v1/locks/{name}/release"): CHANGE,
    ("GET", "/v1/whoami"): ANY,
    ("GET", "/v1/version"): ANY,
    ("GET", "/v1/moments"): ANY,
    ("POST", "/v1/session/links"): ANY,
}

METHODS: Final = {
    route: tuple(method for method, other in ROUTES if other == route) for _, route in ROUTES
}


def reach(role: str, method: str, route: str) -> int:
    """Return the role's reach on this route; NOTHING for an unknown role."""
    row = ROUTES.get((method, route))
    return int(getattr(row, role)) if row is not None and role in ROLES else NOTHING


def denial(principal: Principal, method: str, route: str) -> Denied | None:
    """Return a 403 if the principal may not use the route, else None.

    A method that the route does not have is not denied here: the route answers 405.
    """
    method = "GET" if method == "HEAD" else method
    if reach(principal.role, method, route) != NOTHING or (
        route in METHODS and method not in METHODS[route]
    ):
        return None
    return Denied(
        403,
        (
            f"the role {principal.role} may not use {method} {route}: ask an administrator for a "
            "key with another role"
        ),
    )


def sees_all(principal: Principal) -> bool:
    return principal.role in (OPERATOR, ADMIN)


def sees(principal: Principal, tenant: str) -> bool:
    """Return whether the principal may see things of this tenant."""
    return tenant == principal.tenant or principal.role in (OPERATOR, ADMIN)


def eyes(principal: Principal) -> str | None:
    """Return the only tenant that an explanation may name to the principal; None for all."""
    return None if sees_all(principal) else principal.tenant


def check_change(principal: Principal, what: str, tenant: str, user: str) -> None:
    """Raise Denied 403 if the principal may see a thing but not change it."""
    if principal.role in (OPERATOR, ADMIN) or (
        principal.role == MEMBER and (tenant, user) == (principal.tenant, principal.user)
    ):
        return
    raise Denied(
        403,
        (
            f"{what} belongs to {user or 'another user'}, and the role {principal.role} may change "
            f"{'only its own' if principal.role == MEMBER else 'nothing'}: ask the owner or an "
            "operator"
        ),
    )


def acting_user(principal: Principal, named: str) -> str:
    """Return the user that the fact records.

    Raises Denied 403 if the request names another user and the principal may not act for others.
    """
    if not named or named == principal.user or principal.role in (OPERATOR, ADMIN):
        return named or principal.user
    text = (
        f"user: the role {principal.role} may act only as {principal.user}, not as {named}: leave "
        "out user"
    )
    raise Denied(403, text)
