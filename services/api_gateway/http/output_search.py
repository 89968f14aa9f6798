"""/v1/jobs/{ref}/output/search: the lines of a job's output that contain a text.

The gateway reads the output from its node and sends only the lines that were found. One request
reads a bounded part; its answer says where to continue. Tests: tests/integration/
test_gateway_output_search.py.
"""

from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Refused
from services.api_gateway.channels.relay import OFFSET_MAX, STREAMS, Reader
from services.api_gateway.http.queries import Query, answer, documented, job_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.http.streams import check_attempt, check_member
from services.api_gateway.intents.fields import check_one_of, check_range
from services.api_gateway.views.output_search import FoundLine, LineSearch, SearchAnswer

# One request reads at most so much of the output, and returns at most so many lines.
READ_BYTES_MAX: Final = 16 << 20
MATCHES_MAX: Final = 1_000
TEXT_MAX: Final = 256

router = APIRouter(tags=["streams"])


class SearchQuery(Query, frozen=True):
    """The text to find, and the part of the output to read.

    `attempt`: 0 is the current one. `offset`: where to begin, for example the last answer's `next`.
    """

    find: str = ""
    stream: str = "stdout"
    rank: int = 0
    attempt: int = 0
    offset: int = 0
    limit: int = 200


@router.get("/v1/jobs/{ref}/output/search", openapi_extra=documented(SearchQuery))
async def search_output(request: Request, ref: str) -> Response:
    """Find the lines of one rank's stream that contain a text, in upper or lower case."""
    gateway, query = await settled(request, SearchQuery)
    if not 0 < len(query.find) <= TEXT_MAX or "\n" in query.find:
        raise Refused(f"find: give the text to find: 1 to {TEXT_MAX} characters of one line")
    check_one_of("stream", query.stream, STREAMS)
    check_range("offset", query.offset, 0, OFFSET_MAX)
    check_range("limit", query.limit, 1, MATCHES_MAX)
    job = job_of(request, ref)
    check_member(job, query.rank)
    check_attempt(job, query.attempt)
    attempt = query.attempt or job.attempt
    reader = Reader(gateway, job, attempt=attempt, rank=query.rank, stream=query.stream)
    return answer(await _search(reader, query))


async def _search(reader: Reader, query: SearchQuery) -> SearchAnswer:
    search = LineSearch(query.find, query.offset)
    matches: list[FoundLine] = []
    read = 0
    async with aclosing(reader.pieces(query.offset, False)) as pieces:
        async for piece in pieces:
            if read == 0 and piece.offset > query.offset:
                search.offset = piece.offset
            matches += search.feed(piece.data)
            read += len(piece.data)
            if len(matches) >= query.limit or read >= READ_BYTES_MAX:
                return _cut(matches, query.limit, search.offset)
    matches += search.end()
    if len(matches) > query.limit:
        return _cut(matches, query.limit, search.offset)
    return SearchAnswer(matches, search.offset, False)


def _cut(matches: list[FoundLine], limit: int, offset: int) -> SearchAnswer:
    """Return at most `limit` matches, to be continued with the first one that is left out."""
    following = matches[limit].offset if len(matches) > limit else offset
    return SearchAnswer(matches[:limit], following, True)
