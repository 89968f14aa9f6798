"""Who may do what: one table, route x role, and the two questions that a route asks of it about one
thing.

Pure. A route without a row is refused to everyone, and tests/unit/test_role_table.py fails. How far
a role reaches is one of: nothing, what is one's own (asked for by the same user of the same
tenant), what is one's tenant's, everything. A thing out of reach to read is as if it did not exist
(404), one that can be read but not changed is forbidden (403). Tests over real HTTP are made from
this table: tests/integration/test_gateway_roles.py.
"""

from typing import Final, NamedTuple

import msgspec

from services.api_gateway.problems import Denied


class Principal(msgspec.Struct, frozen=True):
    """On whose word a request acts. `key_id` is public."""

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
    """How far each role reaches on a route."""

    viewer: int
    member: int
    operator: int
    admin: int


# No key is asked for.
PROBES: Final = ("/livez", "/readyz", "/metrics")
PUBLIC: Final = (*PROBES, "/join", "/join/ca")
ANY: Final = Row(ALL, ALL, ALL, ALL)
READ: Final = Row(TENANT, TENANT, ALL, ALL)
CREATE: Final = Row(NOTHING, TENANT, ALL, ALL)
CHANGE: Final = Row(NOTHING, OWN, ALL, ALL)
OPERATE: Final = Row(NOTHING, NOTHING, ALL, ALL)
ADMINISTER: Final = Row(NOTHING, NOTHING, NOTHING, ALL)

ROUTES: Final[dict[tuple[str, str], Row]] = {
    ("POST", "/v1/jobs"): CREATE,
    ("GET", "/v1/jobs"): READ,
    ("GET", "/v1/jobs/{ref}"): READ,
    ("GET", "/v1/jobs/{ref}/history"): READ,
    ("GET", "/v1/jobs/{ref}/why"): READ,
    ("GET", "/v1/jobs/{ref}/wait"): READ,
    ("GET", "/v1/jobs/{ref}/output"): READ,
    ("GET", "/v1/jobs/{ref}/attach"): READ,
    ("GET", "/v1/jobs/{ref}/files"): CHANGE,
    ("PUT", "/v1/jobs/{ref}/stdin"): CHANGE,
    ("GET", "/v1/jobs/{ref}/exec"): CHANGE,
    ("GET", "/v1/jobs/{ref}/forward"): CHANGE,
    ("POST", "/v1/jobs/{ref}/cancel"): CHANGE,
    ("POST", "/v1/jobs/{ref}/kill"): CHANGE,
    ("GET", "/v1/uploads/{sha256}"): CREATE,
    ("PUT", "/v1/uploads/{sha256}"): CREATE,
    ("PATCH", "/v1/jobs/{ref}"): CHANGE,
    ("POST", "/v1/jobs/{ref}/hold"): CHANGE,
    ("POST", "/v1/jobs/{ref}/release"): CHANGE,
    ("POST", "/v1/jobs/{ref}/requeue"): CHANGE,
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
    ("GET", "/v1/models"): READ,
    ("GET", "/v1/models/{id}"): READ,
    ("POST", "/v1/chat/completions"): CREATE,
    ("POST", "/v1/completions"): CREATE,
    ("POST", "/v1/embeddings"): CREATE,
    ("GET", "/v1/nodes"): ANY,
    ("POST", "/v1/nodes"): OPERATE,
    ("GET", "/v1/nodes/{node_id}"): ANY,
    ("GET", "/v1/nodes/{node_id}/topology"): ANY,
    ("DELETE", "/v1/nodes/{node_id}"): OPERATE,
    ("POST", "/v1/nodes/{node_id}/dead"): OPERATE,
    ("POST", "/v1/prune"): OPERATE,
    ("PUT", "/v1/nodes/{node_id}/service"): OPERATE,
    ("GET", "/v1/gpus"): ANY,
    ("GET", "/v1/gpus/{uuid}"): ANY,
    ("PUT", "/v1/gpus/{uuid}/service"): OPERATE,
    ("PUT", "/v1/gpus/{uuid}/controls/{control}"): OPERATE,
    ("PUT", "/v1/nodes/{node_id}/controls/{control}"): OPERATE,
    ("GET", "/v1/inventory"): ANY,
    ("GET", "/v1/cluster"): ANY,
    ("GET", "/v1/allocations"): READ,
    ("POST", "/v1/allocations"): CREATE,
    ("GET", "/v1/allocations/{ref}"): READ,
    ("PATCH", "/v1/allocations/{ref}"): CHANGE,
    ("DELETE", "/v1/allocations/{ref}"): CHANGE,
    ("POST", "/v1/whatif"): READ,
    ("GET", "/v1/events"): READ,
    ("GET", "/v1/watch"): READ,
    ("GET", "/v1/state"): OPERATE,
    ("GET", "/v1/access"): OPERATE,
    ("GET", "/v1/audit/events"): OPERATE,
    ("GET", "/v1/audit/head"): OPERATE,
    ("GET", "/v1/tenants"): READ,
    ("GET", "/v1/tenants/{name}"): READ,
    ("PUT", "/v1/tenants/{name}"): ADMINISTER,
    ("DELETE", "/v1/tenants/{name}"): ADMINISTER,
    ("GET", "/v1/keys"): ADMINISTER,
    ("POST", "/v1/keys"): ADMINISTER,
    ("DELETE", "/v1/keys/{key_id}"): ADMINISTER,
    ("POST", "/v1/keys/{key_id}/rotate"): ADMINISTER,
    ("GET", "/v1/secrets"): READ,
    ("PUT", "/v1/secrets/{name}"): CREATE,
    ("DELETE", "/v1/secrets/{name}"): CREATE,
    ("GET", "/v1/whoami"): ANY,
    ("GET", "/v1/version"): ANY,
}

METHODS: Final = {
    route: tuple(method for method, other in ROUTES if other == route) for _, route in ROUTES
}


def reach(role: str, method: str, route: str) -> int:
    """How far the role reaches on this route; a role that is not known reaches nothing."""
    row = ROUTES.get((method, route))
    return int(getattr(row, role)) if row is not None and role in ROLES else NOTHING


def denial(principal: Principal, method: str, route: str) -> Denied | None:
    """403 when the principal reaches nothing there; None for a method that the route does not take,
    for it answers so itself.
    """
    method = "GET" if method == "HEAD" else method
    if reach(principal.role, method, route) != NOTHING or (
        route in METHODS and method not in METHODS[route]
    ):
        return None
    return Denied(
        403,
        (
            f"a {principal.role} may not {method} {route}: ask an administrator for a key of "
            "another role"
        ),
    )


def sees_all(principal: Principal) -> bool:
    return principal.role in (OPERATOR, ADMIN)


def sees(principal: Principal, tenant: str) -> bool:
    """Whether what belongs to this tenant is there for the principal."""
    return tenant == principal.tenant or principal.role in (OPERATOR, ADMIN)


def eyes(principal: Principal) -> str | None:
    """Return the only tenant that an explanation may name to the principal; None: it
    may name all.
    """
    return None if sees_all(principal) else principal.tenant


def check_change(principal: Principal, what: str, tenant: str, user: str) -> None:
    """Raises Denied 403 when a thing that the principal sees is not theirs to change."""
    if principal.role in (OPERATOR, ADMIN) or (
        principal.role == MEMBER and (tenant, user) == (principal.tenant, principal.user)
    ):
        return
    raise Denied(
        403,
        (
            f"{what} is {user or 'someone'}'s, and a {principal.role} changes only their own: "
            "ask them or an operator"
        ),
    )


def acting_user(principal: Principal, named: str) -> str:
    """The user that a fact records.

    Raises Denied 403 when a request acts in another's name and may not.
    """
    if not named or named == principal.user or principal.role in (OPERATOR, ADMIN):
        return named or principal.user
    raise Denied(403, f"user: a {principal.role} acts only as {principal.user}: leave it out")
