"""/v1/allocations: held devices and their holders, and devices held without a command; /v1/whatif:
whether a job would start now, and where.
"""

from contextlib import ExitStack
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.model import TenantId, attempt_of
from libs.common.state.cluster import GpuView, Job
from services.api_gateway.access import roles
from services.api_gateway.access.slots import QUESTION
from services.api_gateway.http.intents_on_jobs import cancel
from services.api_gateway.http.jobs import ask_scheduler, checked_with_state, job_fact, submitted
from services.api_gateway.http.queries import (
    PageQuery,
    Query,
    answer,
    answer_page,
    documented,
    gateway_of,
    job_of,
    job_to_change,
    principal_of,
    read,
    settled,
    signed_body_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import allocation_intents, job_intents
from services.api_gateway.views.allocations import (
    allocation_shown,
    hold_shown,
    holder_of,
    holds,
    id_of,
)

router = APIRouter(tags=["allocations"])


class HoldsQuery(PageQuery, frozen=True):
    node: str = ""
    job: str = ""
    gpu: str = ""
    kind: str = ""


@router.get("/v1/allocations", openapi_extra=documented(HoldsQuery))
async def list_holds(request: Request) -> Response:
    """List every held part of a device with its holder.

    Only operators and administrators see the parts that other tenants hold.
    """
    gateway, query = await settled(request, HoldsQuery)
    cluster, principal = gateway.cluster, principal_of(request)

    def wanted(hold: tuple[GpuView, str]) -> bool:
        view, key = hold
        job = holder_of(cluster, hold)
        seen = roles.sees_all(principal) or (job is not None and roles.sees(principal, job.tenant))
        named = query.node in ("", view.node_id) and query.gpu in ("", view.gpu.uuid)
        kind = job.spec.kind if job is not None else ""
        return (
            seen
            and named
            and query.job in ("", attempt_of(key).job_id)
            and query.kind in ("", kind)
        )

    return await answer_page(
        name="allocations",
        values=list(holds(cluster)),
        query=query,
        seq=cluster.seq,
        name_of=id_of,
        show=partial(hold_shown, cluster),
        wanted=wanted,
    )


@router.post(
    "/v1/allocations", status_code=201, openapi_extra=documented(Query, allocation_intents.FIELDS)
)
async def allocate(request: Request) -> Response:
    """Request devices without a command, for a time that begins with their placement."""
    read(request, Query)
    with ExitStack() as uses:
        fact, once = await job_fact(request, "allocation", allocation_intents.allocation, uses)
        job, status, headers = await submitted(gateway_of(request), fact, once)
    return _answer_with(
        request, job, status, {"location": f"/v1/allocations/{job.job_id}", **headers}
    )


@router.get("/v1/allocations/{ref}", openapi_extra=documented(Query))
async def show_allocation(request: Request, ref: str) -> Response:
    """Show what an allocation, a job or a replica holds, since when and until when."""
    await settled(request, Query)
    return _answer_with(request, job_of(request, ref))


@router.patch(
    "/v1/allocations/{ref}", openapi_extra=documented(Query, allocation_intents.EXTEND_FIELDS)
)
async def extend(request: Request, ref: str) -> Response:
    """Extend an allocation by the duration `by`."""
    read(request, Query)
    body = await signed_body_of(request)
    gateway, job = gateway_of(request), job_to_change(request, ref)
    own = gateway.index.allocations_of(job.tenant)
    await gateway.record(allocation_intents.extension(body, job, gateway.cluster, own))
    return _answer_with(request, job)


@router.delete("/v1/allocations/{ref}", status_code=202, openapi_extra=documented(Query))
async def release(request: Request, ref: str) -> Response:
    """Release an allocation's devices, or withdraw its request."""
    allocation_intents.check_allocation(job_to_change(request, ref))
    await cancel(request, ref)
    return _answer_with(request, job_of(request, ref), 202)


def _answer_with(
    request: Request, job: Job, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    gateway = gateway_of(request)
    return answer(allocation_shown(gateway.cluster, job, gateway.clock.wall_ns()), status, headers)


@router.post("/v1/whatif", openapi_extra=documented(Query, job_intents.WHAT_IF_FIELDS))
async def what_if(request: Request) -> Response:
    """Return whether a job would start now and where, or why not. With `add_nodes` the answer is as
    if these nodes had joined. Nothing is recorded or reserved. A job that could not be submitted is
    refused as its submission would be.
    """
    gateway, _ = await settled(request, Query)
    principal = principal_of(request)
    job, add = job_intents.what_if(await signed_body_of(request), TenantId(principal.tenant))
    job = checked_with_state(gateway, job, lambda ref: job_of(request, ref).job_id)
    question = msgspec.msgpack.encode(
        {
            "spec": job.spec,
            "tenant": job.tenant,
            "user": job.user,
            "add": add,
            "asker": roles.eyes(principal),
        }
    )
    async with gateway.slots.of(QUESTION, principal.tenant):
        return await ask_scheduler(gateway, "whatif", question)
