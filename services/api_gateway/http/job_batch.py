"""/v1/jobs:batch: submit several jobs with one request.

Each job is checked, counted and answered as `POST /v1/jobs` does it, and the tenant's turn comes
before each of them. The facts are recorded together. Tests:
tests/integration/test_gateway_batch.py.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from libs.common import facts as f
from libs.common.errors import Refused, Unavailable
from libs.common.facts import JobSubmitted
from libs.common.model import JobId
from services.api_gateway.access import idempotency, roles
from services.api_gateway.access.idempotency import Once
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import DryRun
from services.api_gateway.http.batch_types import BatchAnswer, BatchProblem, BatchResult
from services.api_gateway.http.jobs import SubmitQuery, checked_fact
from services.api_gateway.http.queries import (
    answer,
    body_of,
    documented,
    gateway_of,
    job_of,
    principal_of,
    read,
    signed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import batch_intents, job_intents
from services.api_gateway.problems import TITLES, Denied, Problem
from services.api_gateway.views.jobs import job_shown

router = APIRouter(tags=["jobs"])


@router.post("/v1/jobs:batch", openapi_extra=documented(SubmitQuery, batch_intents.BATCH_FIELDS))
async def submit_jobs(request: Request) -> Response:
    """Submit several jobs. The answer comes when they are stored and visible to the next read."""
    query, body = read(request, SubmitQuery), await body_of(request)
    asked = batch_intents.batch(body)
    principal, header = principal_of(request), request.headers.get(idempotency.HEADER)
    keys = idempotency.once_each(header, "batch", principal, body, len(asked.jobs))
    batch = _Batch(request, keys, atomic=asked.all_or_nothing, dry=query.dry_run)
    with batch.uses:
        async with batch.gateway.claims.of(keys[0].id):
            batch.check_keys()
            for place, job in enumerate(asked.jobs):
                await batch.add(place, job)
                # The next job waits for the tenant's turn, and other requests are served.
                await asyncio.sleep(0)
            await batch.record()
            found = await batch.results()
    accepted = sum(result.problem is None for result in found)
    shown = BatchAnswer(
        jobs=found,
        accepted=accepted,
        refused=len(found) - accepted,
        seq=batch.gateway.cluster.seq,
    )
    replayed = bool(header) and all(result.status == 200 for result in found)
    return answer(shown, headers=idempotency.REPLAYED if replayed and not query.dry_run else None)


class _Batch:
    """The jobs of one request.

    `waiting` are the places and facts of the jobs that are not recorded yet. `atomic`: all jobs or
    none. `stopped` refuses all further jobs: a commit failed, and they may depend on its jobs. The
    uploads of the jobs are not removed until `uses` ends.
    """

    def __init__(self, request: Request, keys: Sequence[Once], atomic: bool, dry: bool) -> None:
        self.request = request
        self.gateway: Gateway = gateway_of(request)
        self.keys = keys
        self.atomic, self.dry = atomic, dry
        self.names = batch_intents.Names()
        self.uses = ExitStack()
        self.facts: dict[int, JobSubmitted] = {}
        self.problems: dict[int, Problem] = {}
        self.denied: dict[int, str] = {}
        self.waiting: dict[int, JobSubmitted] = {}
        self.waiting_bytes = 0
        self.recorded: dict[JobId, int] = {}
        self.stopped: Problem | None = None

    def check_keys(self) -> None:
        """Raise Problem 409 if the idempotency key belongs to another request."""
        tenant = principal_of(self.request).tenant
        for once in self.keys:
            job = self.gateway.cluster.jobs.get(JobId("j" + once.id)) if once.id else None
            if job is not None:
                once.check(job.tenant == tenant, job.request)

    async def add(self, place: int, job: object) -> None:
        """Check a job, and let it wait for the next commit."""
        try:
            self._check_stopped()
            fact = await self._checked(place, job)
            self.names.accept(fact)
            self.facts[place] = fact
            if not self.dry and fact.job_id not in self.gateway.cluster.jobs:
                await self._wait(place, fact)
        except (Problem, Refused, Unavailable) as error:
            self.facts.pop(place, None)
            self._refuse(place, error)
            self.names.refuse(job)

    async def _checked(self, place: int, job: object) -> JobSubmitted:
        body = signed(principal_of(self.request), job)
        return await checked_fact(
            self.request, body, self.keys[place], job_intents.submission, self._named, self.uses
        )

    def _named(self, ref: str) -> JobId:
        """Return the id of the job that `after` names: a whole id, a job of this batch, or another.

        Raises Refused and Problem.
        """
        known = self.gateway.cluster.jobs.get(JobId(ref))
        if known is not None and roles.sees(principal_of(self.request), known.tenant):
            return known.job_id
        return self.names.find(ref) or job_of(self.request, ref).job_id

    async def _wait(self, place: int, fact: JobSubmitted) -> None:
        size = f.size_of(fact)
        if self.waiting and self.waiting_bytes + size > batch_intents.BYTES_MAX:
            if self.atomic:
                raise Problem(
                    413,
                    f"the jobs take more than {batch_intents.BYTES_MAX} bytes of the log: submit "
                    "fewer at once, or leave out all_or_nothing",
                )
            await self.record()
            self._check_stopped()
        tenant = self.gateway.check_recordable(fact, self.waiting_bytes + size)
        if self.waiting:
            self.gateway.time_shares.owe_change(tenant, 0)  # `record` charges for the first one
        self.waiting[place] = fact
        self.waiting_bytes += size

    def _check_stopped(self) -> None:
        if self.stopped is not None:
            raise self.stopped

    def _refuse(self, place: int, error: Problem | Refused | Unavailable) -> None:
        if isinstance(error, Denied):
            self.denied[place] = error.detail
            self.request.scope["denied"] = batch_intents.denials(self.denied)
        problem = _problem_of(error)
        if self.atomic:
            text = f"jobs[{place}]: {problem.detail}; no job of this batch was submitted"
            kind = Denied if isinstance(problem, Denied) else Problem
            raise kind(problem.status, text, **{**problem.more, "job": place}) from error
        self.problems[place] = problem

    async def record(self) -> None:
        """Record the jobs that wait, as one commit.

        Raises Problem and Unavailable as `Gateway.record` does if the jobs belong together.
        """
        waiting, self.waiting, self.waiting_bytes = self.waiting, {}, 0
        if not waiting:
            return
        try:
            seq = await self.gateway.record(*waiting.values())
        except (Problem, Unavailable) as error:
            if self.atomic:
                raise  # the error says whether the jobs may have been recorded
            for place in waiting:
                self.facts.pop(place)
                self._refuse(place, error)
            problem = _problem_of(error)
            text = (
                "this job was not submitted, because earlier jobs of the batch could not be "
                f"recorded: {problem.detail}"
            )
            self.stopped = Problem(problem.status, text, **problem.more)
        else:
            self.recorded |= dict.fromkeys((fact.job_id for fact in waiting.values()), seq)

    async def results(self) -> list[BatchResult]:
        """Return the answer for each job, in the order of the request.

        Raises Problem 409 if the jobs belong together and another gateway used the idempotency key
        for other ones meanwhile.
        """
        found = []
        for place in range(len(self.keys)):
            if place in self.facts and not self.dry:
                self._check_replay(place)
            found.append(self._result(place))
            await asyncio.sleep(0)
        if self.atomic and self.problems:
            raise self._in_part(found)
        return found

    def _check_replay(self, place: int) -> None:
        """Refuse the job if another gateway used its idempotency key for another request
        meanwhile.
        """
        job = self.gateway.cluster.jobs[self.facts[place].job_id]
        try:
            self.keys[place].check(job.tenant == self.facts[place].tenant, job.request)
        except Problem as problem:
            self.facts.pop(place)
            self.problems[place] = problem

    def _in_part(self, found: Sequence[BatchResult]) -> Problem:
        """Return the problem of the first job that has one; it names the jobs that exist now."""
        place = min(self.problems)
        problem = self.problems[place]
        made = ", ".join(each.job.id for each in found if each.job is not None)
        also = f"; these jobs of this batch were submitted, cancel them: {made}" if made else ""
        text = f"jobs[{place}]: {problem.detail}{also}"
        return Problem(problem.status, text, **{**problem.more, "job": place})

    def _result(self, place: int) -> BatchResult:
        if place in self.problems:
            problem = self.problems[place]
            return BatchResult(status=problem.status, problem=_shown(problem))
        fact = self.facts[place]
        if self.dry:
            found = DryRun(dry_run=True, user=fact.user, spec=fact.spec, warnings=[])
            return BatchResult(status=200, checked=found)
        job = self.gateway.cluster.jobs[fact.job_id]
        is_new = job.seq == self.recorded.get(fact.job_id)
        return BatchResult(status=201 if is_new else 200, job=job_shown(self.gateway.cluster, job))


def _problem_of(error: Problem | Refused | Unavailable) -> Problem:
    if isinstance(error, Problem):
        return error
    return Problem(422 if isinstance(error, Refused) else 503, str(error))


def _shown(problem: Problem) -> BatchProblem:
    return BatchProblem(
        title=TITLES.get(problem.status, "Error"),
        status=problem.status,
        detail=problem.detail,
        retry_after_s=problem.more.get("retry_after_s"),
    )
