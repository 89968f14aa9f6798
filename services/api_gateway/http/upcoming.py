"""/v1/upcoming: the waiting jobs in the order in which the scheduler tries them."""

import asyncio
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.model import JobId
from libs.common.open_share import BUSY_S
from services.api_gateway.access import roles
from services.api_gateway.access.slots import QUESTION
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import UpcomingJob, UpcomingList
from services.api_gateway.http.jobs import ask_scheduler
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.problems import Problem
from services.api_gateway.views.jobs import job_shown

LIST_MAX: Final = 1_000
# Clients that ask the same within this time get the same answer.
KEPT_S: Final = 5.0
QUESTIONS_MAX: Final = 16  # of one tenant

router = APIRouter(tags=["queues"])


class UpcomingQuery(Query, frozen=True):
    """A part of the queue: at most `limit` jobs behind position `after`, of one queue or of all."""

    queue: str = ""
    after: int = 0
    limit: int = 200


class _Row(msgspec.Struct):
    position: int
    job_id: JobId
    in_s: int | None


class _Found(msgspec.Struct):
    """The scheduler's answer."""

    jobs: list[_Row]
    next: int | None
    total: int
    basis: str
    at: int


class Asked(NamedTuple):
    """A question, when it was asked, and the task that gets its answer."""

    asked_s: float
    task: asyncio.Task[bytes]


_found = msgspec.json.Decoder(_Found)


class SharedAnswers:
    """The scheduler's last answers, each for all clients that ask the same within KEPT_S.

    Each question costs the scheduler a process, and every open page of the queue asks again. The
    questions of one tenant are bounded, and are asked one at a time.
    """

    def __init__(self) -> None:
        self.asked: dict[tuple[str, bytes], Asked] = {}

    async def answer(self, gateway: Gateway, tenant: str, question: bytes) -> bytes:
        """Return the answer to a question.

        Raises Problem 503, and Problem 429 if too many questions of the tenant wait.
        """
        now_s = asyncio.get_running_loop().time()
        self._forget(now_s)
        known = self.asked.get((tenant, question))
        if known is None:
            self._make_room(tenant)
            task = asyncio.create_task(_ask(gateway, tenant, question))
            known = self.asked[tenant, question] = Asked(now_s, task)
        return await asyncio.shield(known.task)

    def _forget(self, now_s: float) -> None:
        """Forget old and failed answers."""
        for key, (asked_s, task) in [*self.asked.items()]:
            if task.done() and (now_s - asked_s > KEPT_S or _has_failed(task)):
                del self.asked[key]

    def _make_room(self, tenant: str) -> None:
        """Forget the tenant's oldest answer if it has QUESTIONS_MAX.

        Raises Problem 429 if none of them is answered yet.
        """
        own = [key for key in self.asked if key[0] == tenant]
        if len(own) < QUESTIONS_MAX:
            return
        oldest = next((key for key in own if self.asked[key].task.done()), None)
        if oldest is None:
            raise Problem(
                429,
                f"tenant {tenant} waits for {QUESTIONS_MAX} lists of upcoming jobs at this "
                "gateway, the maximum: ask again when they have arrived",
                retry_after_s=BUSY_S,
            )
        del self.asked[oldest]


async def _ask(gateway: Gateway, tenant: str, question: bytes) -> bytes:
    async with gateway.slots.of(QUESTION, tenant):
        return bytes((await ask_scheduler(gateway, "upcoming", question)).body)


def _has_failed(task: asyncio.Task[bytes]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


@router.get("/v1/upcoming", openapi_extra=documented(UpcomingQuery))
async def list_upcoming(request: Request) -> Response:
    """List waiting jobs in the order in which the scheduler tries them, with their expected starts.

    Held jobs and jobs that wait for others are not in the queue.
    """
    gateway, query = await settled(request, UpcomingQuery)
    check_range("limit", query.limit, 1, LIST_MAX)
    question = {
        "queue": query.queue,
        "after": query.after,
        "limit": query.limit,
        "asker": roles.eyes(principal_of(request)),
    }
    shared, tenant = request.app.state.upcoming, principal_of(request).tenant
    found = _found.decode(await shared.answer(gateway, tenant, msgspec.msgpack.encode(question)))
    jobs = gateway.cluster.jobs
    rows = [
        UpcomingJob(row.position, row.in_s, job_shown(gateway.cluster, jobs[row.job_id]))
        for row in found.jobs
        if row.job_id in jobs
    ]
    return answer(
        UpcomingList(
            jobs=rows,
            next=found.next,
            total=found.total,
            basis=found.basis,
            at=found.at,
            seq=gateway.cluster.seq,
        )
    )
