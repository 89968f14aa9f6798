"""/v1/jobs/{ref}/traces: traces of a running job's processes, all ranks on one clock."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from libs.common.messages.trace_messages import READY
from services.api_gateway.access.slots import NODES
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answers import GZIP
from services.api_gateway.http.queries import (
    UNBUFFERED,
    Query,
    answer,
    answer_list,
    body_of,
    documented,
    gateway_without_query,
    job_to_change,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.trace_intents import FIELDS, trace_request
from services.api_gateway.problems import Problem
from services.api_gateway.traces import job_traces
from services.api_gateway.traces.shown import TraceShown

ROUTE: Final = "/v1/jobs/{ref}/traces"

router = APIRouter(tags=["streams"])


@router.post(ROUTE, status_code=202, openapi_extra=documented(Query, FIELDS))
async def trace(request: Request, ref: str) -> Response:
    """Trace the processes of a running job for some seconds, all from the same moment.

    The trace begins 8 s later. `GET /v1/jobs/{ref}/traces/{id}` shows progress, ranks and costs.
    """
    gateway, asked = gateway_without_query(request), trace_request(await body_of(request))
    job = job_to_change(request, ref)
    async with gateway.slots.of(NODES, principal_of(request).tenant):
        return answer(await job_traces.begun(gateway, job, asked), 202)


@router.get(ROUTE, openapi_extra=documented(Query))
async def list_traces(request: Request, ref: str) -> Response:
    """List the traces of a job that its nodes keep, the newest first."""
    gateway, _ = await settled(request, Query)
    job = job_to_change(request, ref)
    async with gateway.slots.of(NODES, principal_of(request).tenant):
        rows = await job_traces.listed(gateway, job)
    return await answer_list("traces", rows, {"next": None, "seq": gateway.cluster.seq})


@router.get(f"{ROUTE}/{{trace}}", openapi_extra=documented(Query))
async def show_trace(request: Request, ref: str, trace: str) -> Response:
    """Show the progress or the result of a trace."""
    return answer((await _watched(request, ref, trace))[1])


@router.get(f"{ROUTE}/{{trace}}/file", openapi_extra=documented(Query))
async def read_trace(request: Request, ref: str, trace: str) -> Response:
    """Return all ranks as one trace in Chrome's format, compressed with gzip.

    Perfetto (https://ui.perfetto.dev) and chrome://tracing open it.
    """
    gateway, found = await _watched(request, ref, trace)
    if found.state != READY:
        raise Problem(
            409 if found.state == "failed" else 425,
            f"trace {found.id} of job {found.job_id} has no file: it is {found.state}",
            state=found.state,
        )
    name = f"trace-{found.job_id}-{found.id}.json.gz"
    pieces = job_traces.file(gateway, found, principal_of(request).tenant)
    headers = {"content-disposition": f'attachment; filename="{name}"', **UNBUFFERED}
    return StreamingResponse(pieces, media_type=GZIP, headers=headers)


async def _watched(request: Request, ref: str, trace: str) -> tuple[Gateway, TraceShown]:
    """Return the gateway and the trace as its nodes know it. Raises Problem."""
    gateway, _ = await settled(request, Query)
    job = job_to_change(request, ref)
    async with gateway.slots.of(NODES, principal_of(request).tenant):
        return gateway, await job_traces.watched(gateway, job, trace)
