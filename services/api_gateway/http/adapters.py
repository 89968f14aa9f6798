"""/v1/adapters and /v1/deployments/{name}/adapters/{adapter}: LoRA adapters of models."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.state.cluster import Model
from services.api_gateway.access import roles
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.deployments import deployed_model, visible_model
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
from services.api_gateway.intents import adapter_intents as intents
from services.api_gateway.problems import Problem
from services.api_gateway.views.adapters import AdapterList, AdapterShown, adapter_shown

router = APIRouter(tags=["deployments"])


@router.get("/v1/adapters", openapi_extra=documented(Query))
async def list_adapters(request: Request) -> Response:
    """List the adapters of models by model and name, with the replicas that have them loaded."""
    gateway, _ = await settled(request, Query)
    shown = [
        _shown(gateway, model, name)
        for _, model in sorted(gateway.cluster.models.items())
        if roles.sees(principal_of(request), model.tenant)
        for name in sorted(model.adapters)
    ]
    return answer(AdapterList(shown, None, gateway.cluster.seq))


@router.put(
    "/v1/deployments/{name}/adapters/{adapter}", openapi_extra=documented(Query, intents.FIELDS)
)
async def set_adapter(request: Request, name: str, adapter: str) -> Response:
    """Add an adapter to a model, or change its path."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    model = deployed_model(request, name)
    fact = intents.setting(gateway.cluster, model, adapter, body)
    known = model.adapters.get(adapter)
    if known is None or known.path != fact.path:
        await gateway.record(fact)
    shown = _shown(gateway, visible_model(request, name), adapter)
    return answer(shown, 200 if known is not None else 201)


@router.delete(
    "/v1/deployments/{name}/adapters/{adapter}",
    status_code=204,
    openapi_extra=documented(Query, intents.REMOVE_FIELDS),
)
async def remove_adapter(request: Request, name: str, adapter: str) -> Response:
    """Remove an adapter from a model. The replicas unload it."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    model = deployed_model(request, name)
    _check_known(model, adapter)
    await gateway.record(intents.removing(model, adapter, body))
    return Response(status_code=204)


def _shown(gateway: Gateway, model: Model, name: str) -> AdapterShown:
    _check_known(model, name)
    queue = gateway.queues.get(model.name)
    loaded = queue.rules.residency.replicas_with(name) if queue is not None else []
    return adapter_shown(
        model, name, model.adapters[name], sorted(str(each.job_id) for each in loaded)
    )


def _check_known(model: Model, name: str) -> None:
    if name not in model.adapters:
        raise Problem(
            404,
            f"model {model.name} has no adapter {name[:64]!r}: `muster adapter list "
            f"{model.name}` lists them (GET /v1/adapters)",
        )
