"""/v1/jobs/{ref}/diagnoses: find the rank that a stuck or slow job waits for.

Tests: tests/integration/test_gateway_diagnoses.py.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.diagnosis.evidence import NONE, NodeSeen
from libs.common.diagnosis.rules import diagnose
from libs.common.life import job_life
from services.api_gateway.diagnosis.asking import Busy
from services.api_gateway.http.queries import (
    Query,
    answer,
    answer_list,
    documented,
    gateway_of,
    job_of,
    job_to_change,
    principal_of,
    read,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.problems import Problem
from services.api_gateway.views.diagnosis_words import (
    DiagnosisMade,
    diagnoses_of,
    fact_of,
    is_news,
)

router = APIRouter(tags=["jobs"])


class EvidenceShown(msgspec.Struct):
    """The evidence of the last diagnosis of a job, by node, as the nodes kept it."""

    id: str
    attempt: int
    nodes: list[NodeSeen]


@router.post("/v1/jobs/{ref}/diagnoses", openapi_extra=documented(Query))
async def diagnose_job(request: Request, ref: str) -> Response:
    """Examine all nodes of a running job and say which rank the others wait for, and why.

    The verdict is recorded if it names something and differs from the last one.
    """
    read(request, Query)
    gateway, job = gateway_of(request), job_to_change(request, ref)
    if job.state != job_life.RUNNING:
        raise Problem(
            409,
            f"job {job.job_id} cannot be diagnosed: it is {job.state}, and only running jobs have "
            f"processes; `muster why {ref}` explains a job that waits",
        )
    # The job changes while its nodes are examined.
    began_ns, attempt = gateway.clock.boot_ns(), job.attempt
    try:
        seen = await gateway.answers.evidence.of(job, dumps=True)
    except Busy as error:
        text = "this gateway has too many diagnoses at once: try again in some seconds"
        raise Problem(503, text) from error
    verdict = diagnose(seen)
    user = principal_of(request).user
    recorded = verdict.kind != NONE and job.attempt == attempt and is_news(job, verdict)
    if recorded:
        await gateway.record(fact_of(job, verdict, user, automatic=False))
    return answer(
        DiagnosisMade(
            id=job.job_id,
            attempt=attempt,
            verdict=verdict.kind,
            sentence=verdict.sentence,
            cause=verdict.cause,
            suspects=verdict.suspects,
            groups=verdict.groups,
            notes=verdict.notes,
            recorded=recorded,
            took_ms=(gateway.clock.boot_ns() - began_ns) // 1_000_000,
        )
    )


@router.get("/v1/jobs/{ref}/diagnoses", openapi_extra=documented(Query))
async def list_diagnoses(request: Request, ref: str) -> Response:
    """List the last recorded diagnoses of a job, the newest first."""
    gateway, _ = await settled(request, Query)
    rows = diagnoses_of(job_of(request, ref))
    return await answer_list("diagnoses", rows, {"next": None, "seq": gateway.cluster.seq})


@router.get("/v1/jobs/{ref}/diagnoses/evidence", openapi_extra=documented(Query))
async def show_evidence(request: Request, ref: str) -> Response:
    """Return the evidence of the last diagnosis: stacks, states, collectives, devices and links."""
    gateway, _ = await settled(request, Query)
    job = job_to_change(request, ref)
    attempt = job.attempt
    nodes = await gateway.answers.evidence.kept(job)
    return answer(EvidenceShown(job.job_id, attempt, nodes))
