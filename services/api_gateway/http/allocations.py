"""/v1/allocations: who holds which device; /v1/whatif: whether a job would start now, and where, or why not."""

from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from libs.common.cluster import GpuView
from services.api_gateway import intents, roles
from services.api_gateway.http.jobs import ask_scheduler
from services.api_gateway.http.queries import PageQuery, Query, answer_page, documented, principal_of, settled, signed_body_of
from services.api_gateway.views.allocations import allocation_shown, allocations, holder_of, id_of

router = APIRouter(tags=["allocations"])


class AllocationsQuery(PageQuery, frozen=True):
    node: str = ""
    job: str = ""
    gpu: str = ""


@router.get("/v1/allocations", openapi_extra=documented(AllocationsQuery))
async def list_allocations(request: Request) -> Response:
    """Every part of a device that is held now, by whom; of other tenants' jobs only for who sees all."""
    gateway, query = await settled(request, AllocationsQuery)
    cluster, who = gateway.cluster, principal_of(request)

    def wanted(hold: tuple[GpuView, str]) -> bool:
        view, key = hold
        job = holder_of(cluster, hold)
        seen = roles.sees_all(who) or (job is not None and roles.sees(who, job.tenant))
        named = query.node in ("", view.node_id) and query.gpu in ("", view.gpu.uuid)
        return seen and named and query.job in ("", key.rpartition(".")[0])

    shown = partial(allocation_shown, cluster)
    return await answer_page("allocations", list(allocations(cluster)), query, cluster.seq, id_of, shown, wanted)


@router.post("/v1/whatif", openapi_extra=documented(Query, intents.WHAT_IF_FIELDS))
async def what_if(request: Request) -> Response:
    """Whether this job would start now, and where, or what stands in its way; with `add_nodes` as if these had joined. Nothing is
    recorded and nothing is held for it.
    """
    gateway, _ = await settled(request, Query)
    spec, add = intents.imagined(await signed_body_of(request))
    question = msgspec.msgpack.encode({"spec": spec, "tenant": principal_of(request).tenant, "add": add})
    return await ask_scheduler(gateway, "whatif", question, gateway.settings.ask_ms if add is None else gateway.settings.ask_past_ms)
