"""/v1/jobs/{ref}/cancel, kill and wait: requests about an existing job."""

from typing import Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Refused
from libs.common.life import job_life
from libs.common.state.cluster import Job
from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    gateway_of,
    job_of,
    job_to_cancel,
    read,
    settled,
    signed_body_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import job_intents
from services.api_gateway.intents.fields import check_one_of
from services.api_gateway.problems import Problem
from services.api_gateway.views.jobs import ended, job_shown

KILL: Final = {"signal": 9, "grace_s": 0}

router = APIRouter(tags=["jobs"])


class WaitQuery(Query, frozen=True):
    """The query of a wait.

    `state`: wait until the job leaves this state; empty: until it has ended.
    """

    timeout_s: float = 30.0
    state: str = ""


@router.post(
    "/v1/jobs/{ref}/cancel",
    status_code=202,
    openapi_extra=documented(Query, job_intents.CANCEL_FIELDS),
)
async def cancel(request: Request, ref: str) -> Response:
    """End a job: send `signal`, and SIGKILL after `grace_s`."""
    read(request, Query)
    return await end(request, ref, await signed_body_of(request))


@router.post("/v1/jobs/{ref}/kill", status_code=202, openapi_extra=documented(Query, ("user",)))
async def kill(request: Request, ref: str) -> Response:
    """End a job at once, with SIGKILL."""
    read(request, Query)
    body = await signed_body_of(request)
    if body is not None and not isinstance(body, dict):
        raise Refused("the request body is not a JSON object: send one, or no body")
    return await end(request, ref, {**(body or {}), **KILL})


async def end(request: Request, ref: str, body: object) -> Response:
    gateway, (job, early) = gateway_of(request), job_to_cancel(request, ref)
    if ended(job):
        raise Problem(
            409,
            f"job {job.job_id} cannot be cancelled: it has ended and is {job.state}",
            state=job.state,
            id=job.job_id,
        )
    fact = job_intents.cancellation(body, job)
    if fact is not None:
        await gateway.record(replace(fact, job_id=early or job.job_id))
    return answer(job_shown(gateway.cluster, job), 202)


@router.get("/v1/jobs/{ref}/wait", openapi_extra=documented(WaitQuery))
async def wait(request: Request, ref: str) -> Response:
    """Wait until the job has left `state` (or has ended, without `state`), and return it.

    After `timeout_s` the job is returned as it is.
    """
    gateway, query = await settled(request, WaitQuery)
    longest_s = gateway.settings.wait_max_ms / 1_000
    if not 0.0 <= query.timeout_s <= longest_s:
        raise Refused(f"timeout_s: {query.timeout_s} is out of bounds: give 0 to {longest_s:.0f}")
    if query.state:
        check_one_of("state", query.state, (*job_life.LIVE, *job_life.ENDED))
    job = job_of(request, ref)
    deadline = gateway.clock.boot_ns() + int(query.timeout_s * 1e9)
    while _unchanged(job, query.state):
        left_s = (deadline - gateway.clock.boot_ns()) / 1e9
        if left_s <= 0:
            break
        await gateway.waiting.job(job.job_id, left_s)
    return answer(job_shown(gateway.cluster, job))


def _unchanged(job: Job, state: str) -> bool:
    return not ended(job) and state in ("", job.state)
