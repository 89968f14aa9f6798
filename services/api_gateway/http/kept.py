"""/v1/kept and /v1/deployments/{name}/kept/{tier}: what models keep between their replicas."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.state.cluster import Model
from libs.common.state.kept import Kept
from services.api_gateway.access import roles
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.deployments import visible_model
from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    gateway_without_query,
    principal_of,
    settled,
    signed_body_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import kept_intents as intents
from services.api_gateway.problems import Problem
from services.api_gateway.views.kept import KeptList, kept_shown

router = APIRouter(tags=["deployments"])


@router.get("/v1/kept", openapi_extra=documented(Query))
async def list_kept(request: Request) -> Response:
    """List what models keep on nodes between their replicas, by model and tier."""
    gateway, _ = await settled(request, Query)
    seen = [
        kept_shown(gateway.cluster, kept)
        for _, kept in sorted(gateway.cluster.kept.items())
        if roles.sees(principal_of(request), kept.tenant)
    ]
    return answer(KeptList(seen, None, gateway.cluster.seq))


@router.put("/v1/deployments/{name}/kept/{tier}", openapi_extra=documented(Query, intents.FIELDS))
async def keep(request: Request, name: str, tier: str) -> Response:
    """Keep one tier of a model on nodes. A request for the same tier is replaced."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    model = _own(request, name)
    known = intents.kept_of(gateway.cluster, model, tier) is not None
    await gateway.record(intents.keeping(gateway.cluster, model, tier, body))
    return answer(kept_shown(gateway.cluster, _kept(gateway, model, tier)), 200 if known else 201)


@router.delete(
    "/v1/deployments/{name}/kept/{tier}",
    status_code=204,
    openapi_extra=documented(Query, intents.DROP_FIELDS),
)
async def drop(request: Request, name: str, tier: str) -> Response:
    """Keep a tier of a model no longer, on any node."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    model = _own(request, name)
    await gateway.record(intents.dropping(model, _kept(gateway, model, tier), body))
    return Response(status_code=204)


def _own(request: Request, name: str) -> Model:
    """Return the model if the principal may change it. Raises Problem."""
    model = visible_model(request, name)
    roles.check_change(principal_of(request), f"model {model.name}", model.tenant, model.user)
    return model


def _kept(gateway: Gateway, model: Model, tier: str) -> Kept:
    kept = intents.kept_of(gateway.cluster, model, tier)
    if kept is None:
        raise Problem(
            404, f"model {model.name} does not keep the tier {tier[:32]!r}: GET /v1/kept lists them"
        )
    return kept
