"""/v1/moments: which past moments can be read, and which commit a time means."""

from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.http.answer_types import MomentShown, MomentsShown
from services.api_gateway.http.queries import (
    MomentQuery,
    answer,
    documented,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.moments.places import Place
from services.api_gateway.times import rfc3339

router = APIRouter(tags=["log"])


@router.get("/v1/moments", openapi_extra=documented(MomentQuery))
async def show_moments(request: Request) -> Response:
    """Return the oldest and the last moment that reads with `at` can ask for.

    With `at`, `moment` is the commit that it means: the last one at or before a time.
    """
    gateway, query = await settled(request, MomentQuery)
    places, tenant = gateway.moments.places, principal_of(request).tenant
    first, last = await places.bounds()
    found = None
    if query.at not in ("", "0"):
        found = await places.place(await places.seq_of(query.at, tenant), tenant)
    shown = MomentsShown(
        first=_shown(first), last=_shown(last), moment=_shown(found) if found else None
    )
    return answer(shown)


def _shown(place: Place) -> MomentShown:
    return MomentShown(seq=place.seq, at=rfc3339(place.at_ns))
