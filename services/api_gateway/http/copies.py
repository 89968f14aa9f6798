"""/v1/jobs/{ref}/copies: copies of a job's files to another node, which bypass the gateway."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.messages.copy_messages import CopyStart
from libs.common.messages.link_messages import PATH_BYTES_MAX, LinkAsk
from services.api_gateway.access.slots import NODE
from services.api_gateway.channels import job_copies
from services.api_gateway.http.files import node_of, path_bytes
from services.api_gateway.http.queries import (
    Query,
    answer,
    body_of,
    documented,
    gateway_without_query,
    job_to_change,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.copy_intents import FIELDS, copy_request
from services.api_gateway.problems import Problem

router = APIRouter(tags=["streams"])


@router.post("/v1/jobs/{ref}/copies", status_code=202, openapi_extra=documented(Query, FIELDS))
async def copy(request: Request, ref: str) -> Response:
    """Start a copy of a file or folder into the working directory of another job of the tenant.

    The bytes travel from node to node. `GET /v1/jobs/{ref}/copies/{id}` shows progress and result.
    """
    gateway, asked = gateway_without_query(request), copy_request(await body_of(request))
    source, target = job_to_change(request, ref), job_to_change(request, asked.to_job)
    if source.tenant != target.tenant:
        raise Problem(
            422,
            f"to_job: job {target.job_id} is of tenant {target.tenant}, job {source.job_id} of "
            f"{source.tenant}: copy between jobs of one tenant",
        )
    path = path_bytes("path", asked.path, PATH_BYTES_MAX)
    to_path = path_bytes("to_path", asked.to_path, PATH_BYTES_MAX)
    to_node = job_copies.target_node(gateway, asked.to_node)
    node_id = await node_of(gateway, source, asked.attempt, asked.node_id)
    attempt = asked.attempt or source.attempt
    link = LinkAsk(to_node, source.tenant, source.job_id, attempt, path)
    async with gateway.slots.of(NODE, principal_of(request).tenant):
        granted = await job_copies.granted(gateway, node_id, link)
    start = CopyStart(
        copy=job_copies.new_id(),
        tenant=source.tenant,
        job_id=target.job_id,
        attempt=target.attempt,
        path=to_path,
        node_id=node_id,
        source_job_id=source.job_id,
        source_attempt=attempt,
        source_path=path,
        address=granted.address,
        token=granted.token,
        offer=granted.offer,
    )
    async with gateway.slots.of(NODE, principal_of(request).tenant):
        return answer(await job_copies.started(gateway, to_node, start), 202)


@router.get("/v1/jobs/{ref}/copies/{copy}", openapi_extra=documented(Query))
async def show_copy(request: Request, ref: str, copy: str) -> Response:
    """Show the progress or the result of a copy. Nodes remember their last 256 copies."""
    gateway, _ = await settled(request, Query)
    job = job_to_change(request, ref)
    async with gateway.slots.of(NODE, principal_of(request).tenant):
        return answer(await job_copies.watched(gateway, job, copy))
