"""/v1/queues, and changes of a job's place in the queue: PATCH, hold, release, requeue."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.facts import JobUpdated, RequeueRequested
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import DEFAULT_QUEUE, JobQueue
from services.api_gateway.http.intents_on_jobs import end
from services.api_gateway.http.queries import (
    MomentQuery,
    Query,
    answer,
    body_of,
    documented,
    gateway_of,
    job_of,
    job_to_change,
    principal_of,
    read,
    signed_body_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import job_intents, order_intents
from services.api_gateway.views.jobs import job_shown
from services.api_gateway.views.queues import count_jobs, queue_shown

router = APIRouter(tags=["jobs"])


@router.patch("/v1/jobs/{ref}", openapi_extra=documented(Query, order_intents.UPDATE_FIELDS))
async def update(request: Request, ref: str) -> Response:
    """Change a job's priority, or the time limit of a job that has not begun."""
    job, values = await _job_and_body(request, ref, order_intents.UPDATE_FIELDS)
    return await _recorded(
        request, job, order_intents.update(values, job, job_intents.take_user(values)), 200
    )


@router.post("/v1/jobs/{ref}/hold", status_code=202, openapi_extra=documented(Query, ("user",)))
async def hold(request: Request, ref: str) -> Response:
    """Hold a job: it is not placed until it is released. A running attempt continues."""
    job, values = await _job_and_body(request, ref, ("user",))
    return await _recorded(request, job, order_intents.hold(job, job_intents.take_user(values)))


@router.post("/v1/jobs/{ref}/release", status_code=202, openapi_extra=documented(Query, ("user",)))
async def release(request: Request, ref: str) -> Response:
    """Release a held job, so that it may be placed. An allocation releases its devices."""
    if job_of(request, ref).spec.allocation is not None:
        return await end(request, ref, await signed_body_of(request))
    job, values = await _job_and_body(request, ref, ("user",))
    return await _recorded(
        request,
        job,
        order_intents.release(job, job_intents.take_user(values), principal_of(request)),
    )


@router.post("/v1/jobs/{ref}/requeue", status_code=202, openapi_extra=documented(Query, ("user",)))
async def requeue(request: Request, ref: str) -> Response:
    """End the job's running attempt and put it back into the queue. This costs no retry."""
    job, values = await _job_and_body(request, ref, ("user",))
    return await _recorded(request, job, order_intents.requeue(job, job_intents.take_user(values)))


async def _job_and_body(
    request: Request, ref: str, known: tuple[str, ...]
) -> tuple[Job, dict[str, object]]:
    read(request, Query)
    body = await signed_body_of(request)
    job = job_to_change(request, ref)
    order_intents.check_changeable(job)
    return job, job_intents.body_fields({} if body is None else body, known)


async def _recorded(
    request: Request, job: Job, fact: JobUpdated | RequeueRequested | None, status: int = 202
) -> Response:
    gateway = gateway_of(request)
    if fact is not None:
        await gateway.record(fact)
    return answer(job_shown(gateway.cluster, job), status)


@router.get("/v1/queues", openapi_extra=documented(MomentQuery))
async def list_queues(request: Request) -> Response:
    """List queues by name, with their numbers of jobs."""
    moment, _ = await viewed(request, MomentQuery)
    cluster, seq = moment.cluster, moment.seq
    jobs = await count_jobs(cluster)
    names = sorted({DEFAULT_QUEUE, *cluster.queues})
    shown = [queue_shown(cluster, _queue(cluster, name), jobs) for name in names]
    return answer({"queues": shown, "next": None, "seq": seq})


@router.put("/v1/queues/{name}", openapi_extra=documented(Query, order_intents.QUEUE_FIELDS))
async def set_queue(request: Request, name: str) -> Response:
    """Create a queue, or replace its policy, weight, ageing, backfill and time slice."""
    read(request, Query)
    gateway = gateway_of(request)
    known = name in gateway.cluster.queues
    plugged = gateway.cluster.plugins.orders
    await gateway.record(
        order_intents.queue_setting(
            await body_of(request), name, principal_of(request).user, plugged
        )
    )
    jobs = await count_jobs(gateway.cluster)
    shown = queue_shown(gateway.cluster, _queue(gateway.cluster, name), jobs)
    return answer(shown, 200 if known else 201)


def _queue(cluster: Cluster, name: str) -> JobQueue:
    return cluster.queues.get(name) or JobQueue(name)
