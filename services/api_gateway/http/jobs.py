"""/v1/jobs: submit, list, show, history, why."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from libs.common import reading, subjects
from libs.common.errors import Refused, Unavailable
from libs.common.facts import JobSubmitted
from libs.common.life import job_life
from libs.common.model import JobId, TenantId
from libs.common.spans import recording
from libs.common.state.cluster import Job
from services.api_gateway.access import idempotency, roles
from services.api_gateway.access.idempotency import Once
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.slots import QUESTION
from services.api_gateway.gateway import Gateway
from services.api_gateway.http import uploads
from services.api_gateway.http.queries import (
    MomentQuery,
    Query,
    answer,
    answer_list,
    documented,
    gateway_of,
    job_of,
    principal_of,
    read,
    settled,
    signed_body_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import (
    job_intents,
    order_intents,
    pool_fields,
    reservation_intents,
    secret_intents,
)
from services.api_gateway.intents.fields import check_one_of, check_range
from services.api_gateway.moments.moment import Moment
from services.api_gateway.problems import Problem
from services.api_gateway.times import instant_ns
from services.api_gateway.views.history import concerns, row
from services.api_gateway.views.index import Place
from services.api_gateway.views.job_lookup import Page
from services.api_gateway.views.jobs import job_shown
from services.api_gateway.views.others import seen_by

LIST_MAX: Final = 1_000
# Jobs that are filtered before other requests get their turn.
SCAN_SLICE: Final = 500
HISTORY_MAX: Final = 1_000

router = APIRouter(tags=["jobs"])


class SubmitQuery(Query, frozen=True):
    dry_run: bool = False


class ListQuery(MomentQuery, frozen=True):
    """Filters of jobs. `after` is the last answer's `next`.

    `all`: also jobs that have ended. `elements`: also the elements of arrays that have begun;
    otherwise an array is one row. `newest`: the last submitted first.
    """

    all: bool = False
    elements: bool = False
    newest: bool = False
    state: str = ""
    label: tuple[str, ...] = ()
    since: str = ""
    user: str = ""
    tenant: str = ""
    name: str = ""
    kind: str = ""
    limit: int = 200
    after: int = 0


class HistoryQuery(Query, frozen=True):
    after: int = 0
    limit: int = 200


class WhyQuery(Query, frozen=True):
    at: int = 0


@router.post(
    "/v1/jobs", status_code=201, openapi_extra=documented(SubmitQuery, job_intents.SUBMIT_FIELDS)
)
async def submit(request: Request) -> Response:
    """Submit a job. The answer comes when the job is stored and visible to the next read."""
    query = read(request, SubmitQuery)
    with ExitStack() as uses:
        fact, once = await job_fact(request, "job", job_intents.submission, uses)
        if query.dry_run:
            return answer({"dry_run": True, "user": fact.user, "spec": fact.spec, "warnings": []})
        job, status, headers = await submitted(gateway_of(request), fact, once)
    return answer(
        job_shown(gateway_of(request).cluster, job),
        status,
        {"location": f"/v1/jobs/{job.job_id}", **headers},
    )


async def job_fact(
    request: Request,
    kind: str,
    meaning: Callable[[object, JobId], JobSubmitted],
    uses: ExitStack,
) -> tuple[JobSubmitted, Once]:
    """Return the fact for the body, checked against the cluster's state. Raises Refused.

    Its upload is not removed until `uses` ends.
    """
    tenant, body = principal_of(request).tenant, await signed_body_of(request)
    once = idempotency.once(request.headers.get(idempotency.HEADER), kind, tenant, body)
    fact = await checked_fact(
        request, body, once, meaning, lambda ref: job_of(request, ref).job_id, uses
    )
    return fact, once


async def checked_fact(
    request: Request,
    body: object,
    once: Once,
    meaning: Callable[[object, JobId], JobSubmitted],
    named: Callable[[str], JobId],
    uses: ExitStack,
) -> JobSubmitted:
    """Return the fact for one job of the request, checked against the cluster's state.

    `named` returns the id of a job that `after` names. The job's upload is not removed until `uses`
    ends. Raises Refused and Problem.
    """
    gateway, tenant = gateway_of(request), principal_of(request).tenant
    job_id = JobId("j" + once.id) if once.id else gateway.lookup.new_job_id()
    work = recording.current.get()
    fact = replace(
        meaning(body, job_id),
        tenant=TenantId(tenant),
        request=once.digest,
        trace="" if work is None else work.context.text,
    )
    if job_id not in gateway.cluster.jobs:
        await uploads.check(gateway, tenant, fact.spec.upload, uses)
        fact = checked_with_state(gateway, fact, named)
    return fact


def checked_with_state(
    gateway: Gateway, fact: JobSubmitted, named: Callable[[str], JobId]
) -> JobSubmitted:
    """Return the fact with job ids in `after`, checked against all of the state but uploads.

    Raises Refused and Problem.
    """
    cluster = gateway.cluster
    secret_intents.check(cluster, fact.tenant, fact.spec.secrets, fact.spec.env)
    spec = order_intents.check_order(cluster, fact.spec, named)
    order_intents.check_dependencies(cluster, spec, fact.tenant)
    pool_fields.check_cluster(cluster, spec)
    reservation_intents.check(cluster, spec, fact.tenant, fact.user)
    return replace(fact, spec=spec)


async def submitted(
    gateway: Gateway, fact: JobSubmitted, once: Once
) -> tuple[Job, int, dict[str, str]]:
    """Record the job; return it with the answer's status and headers.

    The job may be that of an earlier request with the same Idempotency-Key.
    """
    seq = 0
    async with gateway.claims.of(once.id):
        if fact.job_id not in gateway.cluster.jobs:
            seq = await gateway.record(fact)
    job = gateway.cluster.jobs[fact.job_id]
    once.check(job.tenant == fact.tenant, job.request)
    return (job, 201, {}) if job.seq == seq else (job, 200, idempotency.REPLAYED)


@router.get("/v1/jobs", openapi_extra=documented(ListQuery))
async def list_jobs(request: Request) -> Response:
    """List jobs by submission, a page at a time. Replicas stand where their model was deployed."""
    moment, query = await viewed(request, ListQuery)
    check_range("limit", query.limit, 1, LIST_MAX)
    job_filter = _JobFilter(query, moment.now_ns(), principal_of(request))
    page: list[Job] = []
    listed = moment.index.listed_back if query.newest else moment.index.listed
    tenant = roles.eyes(principal_of(request)) or query.tenant
    last = _beginning(query)
    while places := listed(last, SCAN_SLICE, tenant):
        for place in places:
            job = moment.cluster.jobs.get(place.job_id)
            if job is None or not job_filter.matches(job):
                continue
            if len(page) >= query.limit and job.seq != page[-1].seq:
                return await _page(moment, page, page[-1].seq)
            page.append(job)
        last = places[-1]
        await asyncio.sleep(0)
    return await _page(moment, page, None)


def _beginning(query: ListQuery) -> Place:
    """Return the place after which the page begins, in the list's direction."""
    if query.newest:
        return Place(query.after or sys.maxsize, 0)
    return Place(query.after, sys.maxsize)


async def _page(moment: Moment, page: list[Job], following: int | None) -> Response:
    rows = (job_shown(moment.cluster, job) for job in page)
    return await answer_list("jobs", rows, {"next": following, "seq": moment.seq})


class _JobFilter:
    """The filter of a list of jobs. Raises Refused naming the parameter that is not valid."""

    def __init__(self, query: ListQuery, now_ns: int, principal: Principal) -> None:
        self.query = query
        self.principal = principal
        self.since_ns = instant_ns(query.since, "since", now_ns)
        self.labels = [_label(text) for text in query.label]
        self.states = self._states(query)

    def _states(self, query: ListQuery) -> tuple[str, ...]:
        known = (*job_life.LIVE, *job_life.ENDED)
        if not query.state:
            return known if query.all else job_life.LIVE
        states = tuple(query.state.split(","))
        for state in states:
            check_one_of("state", state, known)
        return states

    def matches(self, job: Job) -> bool:
        query = self.query
        return (
            (query.elements or not job.array)
            and job.state in self.states
            and job.submitted_ns >= self.since_ns
            and roles.sees(self.principal, job.tenant)
            and (not query.user or job.user == query.user)
            and query.tenant in ("", job.tenant)
            and (not query.name or job.spec.name == query.name)
            and query.kind in ("", job.spec.kind)
            and _has_labels(job, self.labels)
        )


def _has_labels(job: Job, labels: Iterable[tuple[str, str | None]]) -> bool:
    """Return whether the job has all labels; a label without a value matches any value."""
    return all(
        name in job.spec.labels and value in (None, job.spec.labels[name]) for name, value in labels
    )


def _label(text: str) -> tuple[str, str | None]:
    name, has_value, value = text.partition("=")
    if not name:
        raise Refused(f"label: {text!r} has no name: write NAME=VALUE or NAME")
    return name, value if has_value else None


@router.get("/v1/jobs/{ref}", openapi_extra=documented(MomentQuery))
async def show_job(request: Request, ref: str) -> Response:
    """Show one job, by id, name, or the unique beginning of an id."""
    moment, _ = await viewed(request, MomentQuery)
    principal = principal_of(request)
    try:
        return answer(job_shown(moment.cluster, moment.lookup.job(ref, principal)))
    except Problem as problem:
        if problem.status == 404 and await moment.lookup.left_state(ref, principal):
            text = (
                f"job {ref} ended long ago and is not in the live state any more: read its facts "
                f"from the archive with `muster log --job {ref}` or GET /v1/jobs/{ref}/history"
            )
            raise Problem(410, text) from problem
        raise


@router.get("/v1/jobs/{ref}/history", openapi_extra=documented(HistoryQuery))
async def job_history(request: Request, ref: str) -> Response:
    """List all facts of a job, in order.

    `left_out` is true if some may be missing, because the archive does not answer.
    """
    gateway, query = await settled(request, HistoryQuery)
    check_range("limit", query.limit, 1, HISTORY_MAX)
    job_id, seqs, left_out = await gateway.lookup.history_page(
        ref, principal_of(request), Page(query.after, query.limit)
    )
    rows = [
        line
        for seq in seqs[: query.limit]
        for line in await _rows(gateway, principal_of(request), seq, job_id)
    ]
    following = seqs[query.limit - 1] if len(seqs) > query.limit else None
    return answer(
        {
            "id": job_id,
            "facts": rows,
            "next": following,
            "seq": gateway.cluster.seq,
            "left_out": left_out,
        }
    )


async def _rows(
    gateway: Gateway, principal: Principal, seq: int, job_id: str
) -> list[dict[str, object]]:
    entry = await gateway.entries.get(seq)
    if entry is None:
        return []
    commit = reading.read_alone(entry.subject, entry.data)
    return [
        row(seq, commit, seen_by(principal, gateway.cluster, fact))
        for fact in commit.facts
        if concerns(fact, job_id)
    ]


@router.get("/v1/jobs/{ref}/why", openapi_extra=documented(WhyQuery))
async def why(request: Request, ref: str) -> Response:
    """Explain why a job is not running, now or at a past sequence: the scheduler's answer."""
    gateway, query = await settled(request, WhyQuery)
    check_range("at", query.at, 0, gateway.cluster.seq)
    return await ask_why(request, {"job_id": job_of(request, ref).job_id, "at": query.at})


async def ask_why(request: Request, question: dict[str, object]) -> Response:
    """Answer with the explanation, without names of other tenants' jobs."""
    full = question | {"asker": roles.eyes(principal_of(request))}
    gateway, tenant = gateway_of(request), principal_of(request).tenant
    async with gateway.slots.of(QUESTION, tenant):
        return await ask_scheduler(gateway, "why", msgspec.msgpack.encode(full))


async def ask_scheduler(gateway: Gateway, verb: str, question: bytes) -> Response:
    """Answer with the scheduler's own answer. Raises Problem 503."""
    try:
        proof = await gateway.bus.request(
            subjects.ask_scheduler(verb), question, gateway.settings.ask_past_ms / 1_000
        )
    except Unavailable as error:
        raise Problem(
            503,
            (
                f"the scheduler does not answer ({error}): check that one is running; GET "
                "/v1/cluster shows the last leader"
            ),
        ) from error
    return Response(proof, media_type="application/json")
