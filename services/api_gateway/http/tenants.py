"""/v1/tenants: the tenants of the cluster and their limits."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from libs.common.state.cluster import Tenant
from services.api_gateway.access import roles
from services.api_gateway.http.queries import (
    PageQuery,
    Query,
    answer,
    answer_page,
    body_of,
    documented,
    gateway_of,
    gateway_without_query,
    on_record,
    principal_of,
    settled,
)
from services.api_gateway.intents import identity_intents as intents
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.views.identity import tenant_shown

router = APIRouter(tags=["tenants"])


@router.get("/v1/tenants", openapi_extra=documented(PageQuery))
async def list_tenants(request: Request) -> Response:
    """List the tenants that the principal may see, by name."""
    gateway, query = await settled(request, PageQuery)
    names = sorted({intents.DEFAULT, *gateway.cluster.tenants})
    known = [
        tenant
        for tenant in (intents.known_tenant(gateway.cluster, name) for name in names)
        if tenant is not None
    ]
    seen = [tenant for tenant in known if roles.sees(principal_of(request), tenant.tenant)]
    shown = partial(tenant_shown, gateway.cluster)
    return await answer_page(
        name="tenants",
        values=seen,
        query=query,
        seq=gateway.cluster.seq,
        name_of=lambda tenant: tenant.tenant,
        show=shown,
    )


@router.get("/v1/tenants/{name}", openapi_extra=documented(Query))
async def show_tenant(request: Request, name: str) -> Response:
    """Show one tenant with its present use."""
    gateway, _ = await settled(request, Query)
    return answer(tenant_shown(gateway.cluster, _tenant(request, name)))


@router.put("/v1/tenants/{name}", openapi_extra=documented(Query, intents.TENANT_FIELDS))
async def set_tenant(request: Request, name: str) -> Response:
    """Create a tenant, or replace all its limits. A limit that is left out does not apply."""
    gateway = gateway_without_query(request)
    known = intents.known_tenant(gateway.cluster, name)
    await on_record(
        request,
        intents.tenant_setting(await body_of(request), name, principal_of(request).user),
        200 if known else 201,
    )
    return answer(
        tenant_shown(gateway.cluster, _tenant(request, name)), 201 if known is None else 200
    )


@router.delete("/v1/tenants/{name}", status_code=204, openapi_extra=documented(Query))
async def remove_tenant(request: Request, name: str) -> Response:
    """Remove a tenant that has no keys, no deployed models and no jobs that have not ended."""
    gateway = gateway_without_query(request)
    await on_record(
        request,
        intents.tenant_removal(gateway.cluster, _tenant(request, name), principal_of(request).user),
        204,
    )
    return Response(status_code=204)


def _tenant(request: Request, name: str) -> Tenant:
    found = intents.known_tenant(gateway_of(request).cluster, name)
    if found is None or not roles.sees(principal_of(request), name):
        kind = Problem if found is None else Denied
        raise kind(
            404,
            f"tenant {name[:64]!r} does not exist: "
            "list the tenants with `muster tenant list` (GET /v1/tenants)",
        )
    return found
