"""/v1/deployments: models and their replicas.

Replicas are jobs: their output, history and explanation are under /v1/jobs.
"""

from contextlib import ExitStack
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from libs.common.facts import ModelDeployed
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster, Model, Tenant, is_tenant_removed
from libs.common.state.model_view import replica_spec
from services.api_gateway.access import idempotency, roles
from services.api_gateway.access.idempotency import Once
from services.api_gateway.access.roles import Principal
from services.api_gateway.gateway import Gateway
from services.api_gateway.http import uploads
from services.api_gateway.http.jobs import ask_why
from services.api_gateway.http.queries import (
    MomentPage,
    MomentQuery,
    Query,
    answer,
    answer_page,
    documented,
    gateway_of,
    gateway_without_query,
    principal_of,
    settled,
    signed_body_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import (
    model_intents,
    model_limits,
    model_names,
    pool_fields,
    secret_intents,
)
from services.api_gateway.openai.names import is_guest
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.views.models import ModelShown, guest_shown, model_shown, queue_shown

router = APIRouter(tags=["deployments"])


class ListQuery(MomentPage, frozen=True):
    """A part of the list. `all`: also undeployed models whose replicas have all ended."""

    all: bool = False


@router.post(
    "/v1/deployments", status_code=201, openapi_extra=documented(Query, model_intents.DEPLOY_FIELDS)
)
async def deploy(request: Request) -> Response:
    """Deploy a model: the scheduler keeps `replicas` of its command running."""
    gateway, body, tenant = (
        gateway_without_query(request),
        await signed_body_of(request),
        principal_of(request).tenant,
    )
    once = idempotency.once(request.headers.get(idempotency.HEADER), "model", tenant, body)
    # One deployment of a tenant at a time, so that each counts those before it.
    turn, within_s = f"models of {tenant}", gateway.settings.record_ms / 1_000
    async with gateway.claims.of(once.id), gateway.claims.of(turn, within_s):
        return await _deploy_once(request, body, once)


async def _deploy_once(request: Request, body: object, once: Once) -> Response:
    gateway, tenant = gateway_of(request), principal_of(request).tenant
    name = body.get("name") if isinstance(body, dict) else None
    known = gateway.cluster.models.get(name) if isinstance(name, str) else None
    if known is not None and known.deployed:
        if not roles.sees(principal_of(request), known.tenant):
            raise Problem(
                409,
                (
                    f"name: {name} is in use by another tenant, and model names are unique in the "
                    "cluster: choose another name"
                ),
                state="deployed",
                name=name,
            )
        if known.tenant == tenant and once.digest and known.request == once.digest:
            return answer(model_shown(gateway.cluster, known), 200, idempotency.REPLAYED)
        raise Problem(
            409,
            f"name: model {name} is deployed already: redeploy it, or undeploy it first",
            state="deployed",
            name=name,
        )
    fact = model_intents.deployment(body, known, TenantId(tenant))
    limits = gateway.cluster.tenants.get(fact.tenant) or Tenant(fact.tenant)
    model_intents.check_count(gateway.cluster, limits, fact.name, gateway.clock.wall_ns())
    return await _deploy(gateway, replace(fact, request=once.digest), 201)


async def _deploy(gateway: Gateway, fact: ModelDeployed, status: int) -> Response:
    secret_intents.check(gateway.cluster, fact.tenant, fact.spec.secrets, fact.spec.env)
    with ExitStack() as uses:
        await uploads.check(gateway, fact.tenant, fact.spec.upload, uses)
        pool_fields.check_cluster(gateway.cluster, replica_spec(fact.spec, fact.name, 0))
        await gateway.record(fact)
    model = gateway.cluster.models.get(fact.name)
    if model is None or is_tenant_removed(gateway.cluster, fact.tenant):
        raise Problem(
            409,
            (
                f"name: model {fact.name} was not deployed, because tenant {fact.tenant} was "
                "removed meanwhile: deploy it in another tenant"
            ),
        )
    if model.tenant != fact.tenant:
        raise Problem(
            409,
            (
                f"name: another tenant deployed a model {fact.name} at the same time: choose "
                "another name"
            ),
        )
    shown = model_shown(gateway.cluster, model)
    return answer(shown, status, {"location": f"/v1/deployments/{fact.name}"})


@router.get("/v1/deployments", openapi_extra=documented(ListQuery))
async def list_deployments(request: Request) -> Response:
    """List models by name: those of the tenant, and those that are shared with it."""
    moment, query = await viewed(request, ListQuery)
    principal = principal_of(request)
    seen = [model for model in moment.cluster.models.values() if _is_visible(principal, model)]
    models = sorted(seen, key=lambda model: model.name)
    shown, wanted = (
        partial(_shown, moment.cluster, principal),
        lambda model: query.all or model.deployed or bool(model.jobs),
    )
    return await answer_page(
        name="deployments",
        values=models,
        query=query,
        seq=moment.seq,
        name_of=lambda model: model.name,
        show=shown,
        wanted=wanted,
    )


@router.get("/v1/deployments/{name}", openapi_extra=documented(MomentQuery))
async def show_deployment(request: Request, name: str) -> Response:
    """Show one model with its replicas, and its queue of requests in this gateway.

    For a model that another tenant shares, the answer has only what requests to it need.
    """
    moment, _ = await viewed(request, MomentQuery)
    principal = principal_of(request)
    model = moment.cluster.models.get(name)
    if model is None or not _is_visible(principal, model):
        raise _unknown(model, name)
    shown = _shown(moment.cluster, principal, model)
    rules, eyes = moment.queue_rules(name), roles.eyes(principal)
    return answer(replace(shown, queue=queue_shown(moment.cluster, rules, eyes)))


@router.patch("/v1/deployments/{name}", openapi_extra=documented(Query, model_intents.SCALE_FIELDS))
async def scale(request: Request, name: str) -> Response:
    """Change the number of replicas."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    await gateway.record(model_intents.scaling(body, deployed_model(request, name)))
    return answer(model_shown(gateway.cluster, visible_model(request, name)))


@router.delete(
    "/v1/deployments/{name}", status_code=202, openapi_extra=documented(Query, ("user",))
)
async def undeploy(request: Request, name: str) -> Response:
    """End all replicas. The list of all models shows the model for at least an hour."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    await gateway.record(model_intents.undeployment(body, deployed_model(request, name)))
    return answer(model_shown(gateway.cluster, visible_model(request, name)), 202)


@router.post(
    "/v1/deployments/{name}/redeploy",
    status_code=202,
    openapi_extra=documented(Query, model_intents.SPEC_FIELDS),
)
async def redeploy(request: Request, name: str) -> Response:
    """Replace all replicas, one after the other. Fields that are left out stay as they are."""
    gateway = gateway_without_query(request)
    return await _deploy(
        gateway,
        model_intents.redeployment(await signed_body_of(request), deployed_model(request, name)),
        202,
    )


@router.patch("/v1/deployments/{name}/aliases", openapi_extra=documented(Query, model_names.FIELDS))
async def change_aliases(request: Request, name: str) -> Response:
    """Give a model further names for requests, or take them away."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    if facts := model_names.aliases(gateway.cluster, deployed_model(request, name), body):
        await gateway.record(*facts)
    return answer(model_shown(gateway.cluster, visible_model(request, name)))


@router.patch("/v1/deployments/{name}/guests", openapi_extra=documented(Query, model_names.FIELDS))
async def change_guests(request: Request, name: str) -> Response:
    """Share a model with other tenants, or end that: `*` stands for all tenants."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    sees_all = roles.sees_all(principal_of(request))
    if facts := model_names.guests(gateway.cluster, deployed_model(request, name), body, sees_all):
        await gateway.record(*facts)
    return answer(model_shown(gateway.cluster, visible_model(request, name)))


@router.put(
    "/v1/deployments/{name}/limits/{tenant}", openapi_extra=documented(Query, model_limits.FIELDS)
)
async def limit_tenant(request: Request, name: str, tenant: str) -> Response:
    """Set a tenant's limits at this model: `*` stands for each guest without limits of its own."""
    gateway = gateway_without_query(request)
    body = await signed_body_of(request)
    model, sees_all = deployed_model(request, name), roles.sees_all(principal_of(request))
    await gateway.record(model_limits.limits(gateway.cluster, model, tenant, body, sees_all))
    return answer(model_shown(gateway.cluster, visible_model(request, name)))


@router.get("/v1/deployments/{name}/why", openapi_extra=documented(Query))
async def why(request: Request, name: str) -> Response:
    """Explain the model's state: the scheduler's answer."""
    await settled(request, Query)
    return await ask_why(request, {"model": visible_model(request, name).name})


def _is_visible(principal: Principal, model: Model) -> bool:
    return roles.sees(principal, model.tenant) or is_guest(model, principal.tenant)


def _shown(cluster: Cluster, principal: Principal, model: Model) -> ModelShown:
    """Show a model whole to its tenant and to operators, and the part of a guest to others."""
    is_own = roles.sees(principal, model.tenant)
    if is_own:
        return model_shown(cluster, model)
    return guest_shown(cluster, model, principal.tenant)


def visible_model(request: Request, name: str) -> Model:
    """Return the model if the principal may see it. Raises Problem 404."""
    model = gateway_of(request).cluster.models.get(name)
    if model is None or not roles.sees(principal_of(request), model.tenant):
        raise _unknown(model, name)
    return model


def _unknown(model: Model | None, name: str) -> Problem:
    """Return the problem for a model that does not exist, or that the principal may not see."""
    text = (
        f"model {name[:64]!r} does not exist: "
        "list the models with `muster models` (GET /v1/deployments)"
    )
    return (Problem if model is None else Denied)(404, text)


def deployed_model(request: Request, name: str) -> Model:
    """Return the model if it is deployed and the principal may change it. Raises Problem."""
    model = visible_model(request, name)
    roles.check_change(principal_of(request), f"model {model.name}", model.tenant, model.user)
    if not model.deployed:
        raise Problem(
            409,
            f"model {name} is not deployed: deploy it with `muster deploy` (POST /v1/deployments)",
            state="undeployed",
            name=name,
        )
    return model
