"""/v1/jobs/{ref}/files: files of a job's working directory, as long as its node keeps them."""

from typing import Final

from starlette.requests import Request
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
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.problems import Problem

PATH_BYTES_MAX: Final = 4_096

router = APIRouter(tags=["streams"])


class FilesQuery(Query, frozen=True):
    """The file or folder to read.

    `path` is relative to the working directory. `node_id`: the node of a multi-node job (empty: the
    first). `attempt`: 0 is the current one.
    """

    path: str = ""
    node_id: str = ""
    attempt: int = 0


@router.get("/v1/jobs/{ref}/files", openapi_extra=documented(FilesQuery))
async def files(request: Request, ref: str) -> Response:
    """Return a file's bytes, or a folder as a tar archive.

    The header X-Muster-Mode has a file's mode in octal. Links are followed only within the
    directory.
    """
    gateway, query = await settled(request, FilesQuery)
    job = job_to_change(request, ref)
    path = path_bytes("path", query.path, PATH_BYTES_MAX)
    node_id = await node_of(gateway, job, query.attempt, query.node_id)
    found = JobFiles(gateway, job, query.attempt or job.attempt, node_id)
    first = await found.part(path)
    if first.kind == FILE:
        headers = {"x-muster-mode": f"{first.mode:o}", **UNBUFFERED}
        return StreamingResponse(found.file(path, first), media_type=BYTES, headers=headers)
    return StreamingResponse(found.archive(path, first), media_type=TAR, headers=UNBUFFERED)


def path_bytes(field: str, path: str, longest: int) -> bytes:
    """Return a path of a request as bytes. Raises Refused."""
    found = path.encode("utf-8", "surrogateescape")
    if len(found) > longest or b"\0" in found:
        raise Refused(f"{field}: not valid: give at most {longest} bytes, without a NUL byte")
    return found


async def node_of(gateway: Gateway, job: Job, attempt: int, node_id: str) -> NodeId:
    """Return the node whose files to read; 0 is the current attempt, an empty node the first.

    Raises Refused and Problem.
    """
    if not 0 <= attempt <= job.attempt:
        raise Refused(
            f"attempt: job {job.job_id} has no attempt {attempt}: give 1 to {job.attempt}, "
            "or 0 for the current one"
        )
    reader = Reader(gateway, job, attempt=attempt or job.attempt, rank=0, stream="stdout")
    await reader.find()
    if reader.node_id is None and reader.attempt == job.attempt:
        raise Problem(425, f"job {job.job_id} has no files yet: it is {job.state}", state=job.state)
    if node_id:
        if NodeId(node_id) not in gateway.cluster.nodes:
            raise Problem(
                404,
                (
                    f"node_id: node {node_id[:64]!r} does not exist: GET "
                    f"/v1/jobs/{job.job_id} shows the job's nodes"
                ),
            )
        return NodeId(node_id)
    if reader.node_id is None:
        raise Problem(
            410,
            (
                f"the node of attempt {attempt} of job {job.job_id} is not in the log any "
                "more: give node_id"
            ),
        )
    return reader.node_id
