"""/v1/tenants: the tenants of the cluster and their limits."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from libs.common.state.cluster import Cluster, Tenant
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.http.queries import (
    MomentPage,
    MomentQuery,
    Query,
    answer,
    answer_page,
    body_of,
    documented,
    gateway_without_query,
    on_record,
    principal_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import identity_intents as intents
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.views.identity import tenant_shown

router = APIRouter(tags=["tenants"])


@router.get("/v1/tenants", openapi_extra=documented(MomentPage))
async def list_tenants(request: Request) -> Response:
    """List the tenants that the principal may see, by name."""
    moment, query = await viewed(request, MomentPage)
    names = sorted({intents.DEFAULT, *moment.cluster.tenants})
    known = [
        tenant
        for tenant in (intents.known_tenant(moment.cluster, name) for name in names)
        if tenant is not None
    ]
    seen = [tenant for tenant in known if roles.sees(principal_of(request), tenant.tenant)]
    shown = partial(tenant_shown, moment.cluster)
    return await answer_page(
        name="tenants",
        values=seen,
        query=query,
        seq=moment.seq,
        name_of=lambda tenant: tenant.tenant,
        show=shown,
    )


@router.get("/v1/tenants/{name}", openapi_extra=documented(MomentQuery))
async def show_tenant(request: Request, name: str) -> Response:
    """Show one tenant with its use."""
    moment, _ = await viewed(request, MomentQuery)
    tenant = tenant_of_request(moment.cluster, principal_of(request), name)
    return answer(tenant_shown(moment.cluster, tenant))


@router.put("/v1/tenants/{name}", openapi_extra=documented(Query, intents.TENANT_FIELDS))
async def set_tenant(request: Request, name: str) -> Response:
    """Create a tenant, or replace all its limits.

    0 or left out means no limit, except for `max_waiting` (200,000) and `max_models` (200). The
    name of a removed tenant is not used again (409).
    """
    gateway = gateway_without_query(request)
    intents.check_not_removed(gateway.cluster, name)
    known = intents.known_tenant(gateway.cluster, name)
    await on_record(
        request,
        intents.tenant_setting(await body_of(request), name, principal_of(request).user),
        200 if known else 201,
    )
    tenant = tenant_of_request(gateway.cluster, principal_of(request), name)
    return answer(tenant_shown(gateway.cluster, tenant), 201 if known is None else 200)


@router.delete("/v1/tenants/{name}", status_code=204, openapi_extra=documented(Query))
async def remove_tenant(request: Request, name: str) -> Response:
    """Remove a tenant that has no keys, no deployed models and no jobs that have not ended.

    Its name is not used again.
    """
    gateway, principal = gateway_without_query(request), principal_of(request)
    tenant = tenant_of_request(gateway.cluster, principal, name)
    await on_record(request, intents.tenant_removal(gateway.cluster, tenant, principal.user), 204)
    return Response(status_code=204)


def tenant_of_request(cluster: Cluster, principal: Principal, name: str) -> Tenant:
    """Return a tenant that the principal may see. Raises Problem 404."""
    found = intents.known_tenant(cluster, name)
    if found is None or not roles.sees(principal, name):
        kind = Problem if found is None else Denied
        raise kind(
            404,
            f"tenant {name[:64]!r} does not exist: "
            "list the tenants with `muster tenant list` (GET /v1/tenants)",
        )
    return found
