"""/v1/jobs/{ref}/output, attach and stdin: a job's output and input."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from libs.common.errors import Refused
from libs.common.state.cluster import Job
from services.api_gateway.access.slots import INPUT
from services.api_gateway.channels.attachment import Attachment
from services.api_gateway.channels.followers import Following, following
from services.api_gateway.channels.relay import (
    NODE,
    OFFSET_MAX,
    STREAMS,
    TAIL,
    Piece,
    Reader,
    put_stdin,
)
from services.api_gateway.http.queries import (
    UNBUFFERED,
    Query,
    answer,
    documented,
    gateway_of,
    job_of,
    job_to_change,
    principal_of,
    read,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_one_of, check_range
from services.api_gateway.problems import Problem
from services.api_gateway.views.elements import no_output
from services.api_gateway.views.jobs import ended

STDIN_BYTES_MAX: Final = 256 << 10
ATTEMPT_MAX: Final = 1 << 31

router = APIRouter(tags=["streams"])


class OutputQuery(Query, frozen=True):
    """The part of the output to read.

    `attempt`: 0 is the current one. `tail_bytes`: begin that many bytes before the present end.
    """

    stream: str = "stdout"
    rank: int = 0
    attempt: int = 0
    offset: int = 0
    follow: bool = False
    tail_bytes: int = 0


class AttachQuery(Query, frozen=True):
    """The offsets of both streams to continue from, in `attempt` (0: the current one)."""

    rank: int = 0
    stdout: int = 0
    stderr: int = 0
    attempt: int = 0


class StdinQuery(Query, frozen=True):
    """The offset of the input in `attempt` (0: the current one); `eof` ends the input."""

    offset: int = 0
    attempt: int = 0
    eof: bool = False


@router.get("/v1/jobs/{ref}/output", openapi_extra=documented(OutputQuery))
async def output(request: Request, ref: str) -> Response:
    """Return the raw bytes of one rank's stream.

    The header X-Muster-Output says whether the node or the stored tail sent them, and whether the
    node has pruned the rest.
    """
    gateway, query = await settled(request, OutputQuery)
    _check(query)
    job = job_of(request, ref)
    check_member(job, query.rank)
    check_attempt(job, query.attempt)
    reader = Reader(
        gateway, job, attempt=query.attempt or job.attempt, rank=query.rank, stream=query.stream
    )
    await reader.find()
    offset = query.offset
    if query.tail_bytes and reader.node_id is not None:
        offset = max(offset, await reader.end_offset() - query.tail_bytes)
    pieces = reader.pieces(offset, query.follow)
    first = None if query.follow and not reader.over else await anext(pieces, None)
    if reader.gone:
        raise Problem(410, _gone_message(reader))
    headers = {
        "x-muster-output": _source(reader, first),
        "x-muster-offset": str(first.offset if first else offset),
        **UNBUFFERED,
    }
    media_type = "application/octet-stream"
    if not query.follow:
        return StreamingResponse(_bytes(first, pieces), media_type=media_type, headers=headers)
    place = gateway.places.take(principal_of(request).tenant, job.job_id)
    return following(
        place, Following(_bytes(first, pieces), media_type=media_type, headers=headers)
    )


def _source(reader: Reader, first: Piece | None) -> str:
    source = first.source if first else NODE
    return f"{source}, pruned on {reader.node_id}" if reader.pruned and source == TAIL else source


def _gone_message(reader: Reader) -> str:
    what = (
        f"the {reader.stream} of job {reader.job.job_id}, attempt {reader.attempt}, rank "
        f"{reader.rank}"
    )
    if reader.node_id is None:
        why = "the log no longer contains where it ran"
    else:
        why = (
            f"it was pruned on node {reader.node_id}"
            if reader.pruned
            else f"node {reader.node_id} does not answer"
        )
    return f"{what} is gone: {why}, and its end is not stored off the node"


async def _bytes(first: Piece | None, pieces: AsyncGenerator[Piece, None]) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        if first is not None:
            yield first.data
        async for piece in pieces:
            yield piece.data


def _check(query: OutputQuery) -> None:
    check_one_of("stream", query.stream, STREAMS)
    check_range("offset", query.offset, 0, OFFSET_MAX)
    check_range("tail_bytes", query.tail_bytes, 0, OFFSET_MAX)


def check_attempt(job: Job, attempt: int) -> None:
    """Raise Refused if the job has no such attempt; 0 is the current one."""
    if not 0 <= attempt <= job.attempt:
        raise Refused(
            f"attempt: job {job.job_id} has no attempt {attempt}: give 1 to {job.attempt}, or 0 "
            "for the current one"
        )


def check_member(job: Job, rank: int) -> None:
    """Raise Refused for a rank out of bounds, and Problem 409 for an array."""
    check_range("rank", rank, 0, job.spec.most_nodes - 1)
    if job.elements is not None:
        raise Problem(409, no_output(job))


@router.get("/v1/jobs/{ref}/attach", openapi_extra=documented(AttachQuery))
async def attach(request: Request, ref: str) -> Response:
    """Stream both outputs and every change of state as lines of JSON, until the job has ended."""
    gateway, query = await settled(request, AttachQuery)
    for name, value in (("stdout", query.stdout), ("stderr", query.stderr)):
        check_range(name, value, 0, OFFSET_MAX)
    job = job_of(request, ref)
    check_member(job, query.rank)
    place = gateway.places.take(principal_of(request).tenant, job.job_id)
    frames = Attachment(
        gateway,
        job,
        rank=query.rank,
        offsets={"stdout": query.stdout, "stderr": query.stderr},
        attempt=query.attempt,
    ).frames()
    return following(
        place, Following(frames, media_type="application/x-ndjson", headers=UNBUFFERED)
    )


@router.put("/v1/jobs/{ref}/stdin", openapi_extra=documented(StdinQuery))
async def stdin(request: Request, ref: str) -> Response:
    """Send input bytes at `offset`.

    The answer's `next_offset` says how far they were accepted; send the rest again.
    """
    gateway, query = gateway_of(request), read(request, StdinQuery)
    check_range("offset", query.offset, 0, OFFSET_MAX)
    check_range("attempt", query.attempt, 0, ATTEMPT_MAX)
    data = await request.body()
    if len(data) > STDIN_BYTES_MAX:
        raise Problem(
            413, f"the input has {len(data)} bytes: send at most {STDIN_BYTES_MAX} at once"
        )
    job = _input_job(job_to_change(request, ref), query.attempt)
    attempt = job.attempt
    async with gateway.slots.of(INPUT, job.job_id):
        # By its id: the name may be another job's by now. It may have been requeued.
        job = _input_job(job_to_change(request, job.job_id), attempt)
        taken = await put_stdin(gateway, job, offset=query.offset, data=data, eof=query.eof)
    if taken.error:
        raise Problem(
            409,
            f"job {job.job_id} did not accept the input: {taken.error}",
            next_offset=taken.next_offset,
            attempt=attempt,
        )
    return answer({"next_offset": taken.next_offset, "attempt": attempt, "closed": taken.closed})


def _input_job(job: Job, attempt: int) -> Job:
    """Return the job if it accepts input for the attempt now; 0 is the current attempt.

    Raises Problem.
    """
    if not job.spec.stdin:
        raise Problem(422, f"job {job.job_id} has no input: submit it with stdin: true")
    if ended(job):
        raise Problem(
            410, f"job {job.job_id} accepts no more input: it is {job.state}", state=job.state
        )
    if not job.members:
        raise Problem(
            425, f"job {job.job_id} accepts no input yet: it is {job.state}", state=job.state
        )
    if attempt not in (0, job.attempt):
        text = (
            f"attempt: job {job.job_id} is at attempt {job.attempt}, not {attempt}: send its "
            "input again from offset 0"
        )
        raise Problem(409, text, next_offset=0, attempt=job.attempt)
    return job
