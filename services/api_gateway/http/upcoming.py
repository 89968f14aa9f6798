"""/v1/upcoming: the waiting jobs in the order in which the scheduler tries them."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.model import JobId
from services.api_gateway.access import roles
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import UpcomingJob, UpcomingList
from services.api_gateway.http.jobs import ask_scheduler
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.views.jobs import job_shown

LIST_MAX: Final = 1_000
# Clients that ask the same within this time get the same answer.
KEPT_S: Final = 5.0
QUESTIONS_MAX: Final = 64

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


_found = msgspec.json.Decoder(_Found)


class SharedAnswers:
    """The scheduler's last answers, each for all clients that ask the same within KEPT_S.

    Each question costs the scheduler a process, and every open page of the queue asks again.
    """

    def __init__(self) -> None:
        self.asked: dict[bytes, tuple[float, asyncio.Task[bytes]]] = {}

    async def answer(self, gateway: Gateway, question: bytes) -> bytes:
        """Return the answer to a question. Raises Problem 503."""
        now_s = asyncio.get_running_loop().time()
        known = self.asked.get(question)
        if known is None or now_s - known[0] > KEPT_S or _has_failed(known[1]):
            while len(self.asked) >= QUESTIONS_MAX:
                self.asked.pop(next(iter(self.asked)))
            self.asked.pop(question, None)
            known = self.asked[question] = (now_s, asyncio.create_task(_ask(gateway, question)))
        return await asyncio.shield(known[1])


async def _ask(gateway: Gateway, question: bytes) -> bytes:
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
    shared = request.app.state.upcoming
    found = _found.decode(await shared.answer(gateway, msgspec.msgpack.encode(question)))
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
