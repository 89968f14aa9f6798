"""/v1/jobs/{ref}/files: what lies in a job's working directory, while it runs and as long as its
node keeps it.
"""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from libs.common.errors import Refused
from libs.common.messages.file_messages import FILE
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from services.api_gateway.channels.job_files import JobFiles
from services.api_gateway.channels.relay import Reader
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answers import BYTES, TAR
from services.api_gateway.http.queries import UNBUFFERED, Query, documented, job_to_change, settled
from services.api_gateway.problems import Problem

PATH_BYTES_MAX: Final = 4_096

router = APIRouter(tags=["streams"])


class FilesQuery(Query, frozen=True):
    """`path` is seen from the working directory.

    `node_id`: whose, of several (empty: the first). `attempt`: 0 is the current one.
    """

    path: str = ""
    node_id: str = ""
    attempt: int = 0


@router.get("/v1/jobs/{ref}/files", openapi_extra=documented(FilesQuery))
async def files(request: Request, ref: str) -> Response:
    """A file's bytes, or a folder as a tar archive; X-Muster-Mode is a file's mode, octal.

    Links are followed only within the directory.
    """
    gateway, query = await settled(request, FilesQuery)
    job = job_to_change(request, ref)
    path = query.path.encode("utf-8", "surrogateescape")
    if len(path) > PATH_BYTES_MAX or b"\0" in path:
        raise Refused(f"path: give at most {PATH_BYTES_MAX} bytes without NUL")
    found = JobFiles(gateway, job, query.attempt or job.attempt, await _node(gateway, job, query))
    first = await found.part(path)
    if first.kind == FILE:
        headers = {"x-muster-mode": f"{first.mode:o}", **UNBUFFERED}
        return StreamingResponse(found.file(path, first), media_type=BYTES, headers=headers)
    return StreamingResponse(found.archive(path, first), media_type=TAR, headers=UNBUFFERED)


async def _node(gateway: Gateway, job: Job, query: FilesQuery) -> NodeId:
    """Raises Refused and Problem."""
    if not 0 <= query.attempt <= job.attempt:
        raise Refused(
            f"attempt: {query.attempt} is not known: job {job.job_id} is at attempt {job.attempt}"
        )
    reader = Reader(gateway, job, query.attempt or job.attempt, 0, "stdout")
    await reader.find()
    if reader.node_id is None and reader.attempt == job.attempt:
        raise Problem(425, f"job {job.job_id} has no files yet: it is {job.state}", state=job.state)
    if query.node_id:
        if NodeId(query.node_id) not in gateway.cluster.nodes:
            raise Problem(
                404,
                (
                    f"there is no node {query.node_id[:64]!r}: GET /v1/jobs/{job.job_id} has the "
                    "job's node_ids"
                ),
            )
        return NodeId(query.node_id)
    if reader.node_id is None:
        raise Problem(
            410,
            (
                f"the log does not hold any more where attempt {query.attempt} of job "
                f"{job.job_id} ran: give node_id"
            ),
        )
    return reader.node_id
