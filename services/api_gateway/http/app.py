"""The ASGI app: all routers behind the edge, and every error as problem details."""

from collections.abc import Awaitable, Callable
from functools import cache

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from libs.common.errors import Refused, Unavailable
from services.api_gateway.access import roles
from services.api_gateway.dashboard import routes as dashboard
from services.api_gateway.dashboard.files import shipped
from services.api_gateway.gateway import Gateway
from services.api_gateway.http import (
    access,
    adapters,
    agreement,
    allocations,
    audit,
    bus,
    channels,
    charges,
    controls,
    copies,
    deployments,
    description_page,
    diagnoses,
    elements,
    events,
    fabric,
    files,
    fleet,
    health,
    intents_on_jobs,
    job_batch,
    jobs,
    kept,
    keys,
    leases,
    locks,
    membership,
    memory,
    moments,
    nodes,
    notifications,
    order,
    output_search,
    prices,
    prune,
    pulled,
    pulls,
    readings,
    reservations,
    secrets,
    service_of_devices,
    sessions,
    sign_on,
    sockets,
    streams,
    tenants,
    traces,
    upcoming,
    uploads,
    usage,
    watch,
)
from services.api_gateway.http.answers import ANSWERS
from services.api_gateway.http.edge import Edge, refuse
from services.api_gateway.http.openapi import Schema, document
from services.api_gateway.http.queries import principal_of, settled_for_change
from services.api_gateway.http.route_description import described
from services.api_gateway.http.routing import served
from services.api_gateway.problems import Denied, Problem

# Starlette looks through them in this order, so what clients ask most comes first.
ROUTERS = (
    jobs.router,
    job_batch.router,
    health.router,
    intents_on_jobs.router,
    order.router,
    upcoming.router,
    diagnoses.router,
    deployments.router,
    kept.router,
    adapters.router,
    nodes.router,
    fleet.router,
    memory.router,
    readings.router,
    service_of_devices.router,
    controls.router,
    membership.router,
    prune.router,
    pulls.router,
    pulled.router,
    reservations.router,
    fabric.router,
    bus.router,
    leases.router,
    prices.router,
    allocations.router,
    streams.router,
    output_search.router,
    files.router,
    copies.router,
    traces.router,
    channels.router,
    elements.router,
    events.router,
    watch.router,
    sockets.router,
    tenants.router,
    keys.router,
    usage.router,
    charges.router,
    secrets.router,
    locks.router,
    notifications.router,
    agreement.router,
    uploads.router,
    access.router,
    audit.router,
    sessions.router,
    moments.router,
    sign_on.router,
)

# Every route, from the table of answers; the pages of the description take GET.
PATHS = {route: compile_path(route[1])[0] for route in ANSWERS}


def create_app(gateway: Gateway) -> Edge:
    """Return the app for one gateway. Requests to models pass the edge only."""
    return Edge(create_routes(gateway), gateway, gateway.access)


def create_routes(gateway: Gateway) -> Starlette:
    """Return all routes except OpenAI's."""
    app = Starlette(
        routes=[
            *description_page.routes(openapi),
            *(served(each, _prepare) for router in ROUTERS for each in router.routes),
            *dashboard.routes(shipped()),
        ]
    )
    # A redirection would go to the client's Host header, behind a TLS proxy over plain HTTP, and
    # the client would send its key there.
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    app.state.upcoming = upcoming.SharedAnswers()
    for kind, status in ((Problem, 0), (Refused, 422), (Unavailable, 503)):
        app.add_exception_handler(kind, _typed(status))
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(500, _bug)
    return app


@cache
def openapi() -> Schema:
    """Return the OpenAPI description of all routes."""
    return document(described(ROUTERS))


async def _prepare(request: Request) -> None:
    """Authorise the request and wait for the `min_seq` of a change, before any route runs.

    Raises Denied 403, Refused or Problem 503.
    """
    route = request.scope["route"].path
    denial = (
        None
        if route in roles.PUBLIC
        else roles.denial(principal_of(request), request.method, route)
    )
    if denial is not None:
        raise denial
    await settled_for_change(request)


def _typed(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, Denied):
            request.scope["denied"] = error.detail
        return refuse(
            error if isinstance(error, Problem) else Problem(status, str(error)), request.scope
        )

    return on_error


async def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what, methods = f"{request.method} {request.url.path[:200]}", _methods(request)
    details = {
        404: f"{what}: no such route: see /docs for all routes",
        405: f"{what}: the route does not accept this method: use {' or '.join(methods)}",
    }
    answer = refuse(
        Problem(error.status_code, details.get(error.status_code, str(error.detail))), request.scope
    )
    if error.status_code == 405:
        answer.headers["allow"] = ", ".join(methods)
    return answer


def _methods(request: Request) -> list[str]:
    """Return the methods that routes accept on this path."""
    path = request.scope["path"]
    return sorted(
        {method for (method, _), regex in PATHS.items() if regex.match(path) is not None}
    ) or ["GET"]


async def _bug(request: Request, error: Exception) -> Response:
    return refuse(
        Problem(
            500,
            (
                f"{request.method} {request.url.path[:200]} failed because of a bug in the "
                "gateway: report it with the traceback from the gateway's log"
            ),
        ),
        request.scope,
    )
