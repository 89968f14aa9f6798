"""/v1/jobs/{ref}/elements: the elements of an array, each with its state and exit code."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common import arrays
from services.api_gateway.http.queries import (
    MomentQuery,
    answer,
    documented,
    principal_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.problems import Problem
from services.api_gateway.views.elements import ElementList, elements_shown

router = APIRouter(tags=["jobs"])

LIST_MAX: Final = 1_000


class ElementsQuery(MomentQuery, frozen=True):
    """`after` is the last answer's `next`: how many elements were listed before."""

    after: int = 0
    limit: int = 1_000


@router.get("/v1/jobs/{ref}/elements", openapi_extra=documented(ElementsQuery))
async def list_elements(request: Request, ref: str) -> Response:
    """List the elements of an array in order, a page at a time."""
    moment, query = await viewed(request, ElementsQuery)
    check_range("limit", query.limit, 1, LIST_MAX)
    check_range("after", query.after, 0, arrays.ELEMENTS_MAX)
    job = moment.lookup.job(ref, principal_of(request))
    if job.spec.array is None or job.elements is None:
        raise Problem(409, f"job {job.job_id} is not an array: it has no elements")
    shown = elements_shown(moment.cluster, job, query.after, query.limit)
    following = query.after + len(shown)
    return answer(
        ElementList(
            shown, following if following < arrays.count(job.spec.array) else None, moment.seq
        )
    )
