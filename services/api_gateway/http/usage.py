"""/v1/usage: what tenants, users and keys used of models and GPUs, and were charged."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from libs.common.errors import Refused
from libs.common.transport import archive
from services.api_gateway.access import roles
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.intents.fields import check_one_of
from services.api_gateway.times import instant_ns
from services.api_gateway.views.usage import PARTS, as_csv, usage_shown

router = APIRouter(tags=["tenants"])

FORMATS: Final = ("json", "csv")
CSV: Final = "text/csv; charset=utf-8"


class UsageQuery(Query, frozen=True):
    """The time and the form of the answer.

    `since` and `until`: an instant, or a duration before now; empty: from the first record, until
    now. `by`: some of tenant, user, key, model, separated by commas. `format`: json or csv.
    """

    since: str = ""
    until: str = ""
    by: str = "tenant,user,model"
    format: str = "json"


@router.get("/v1/usage", openapi_extra=documented(UsageQuery))
async def usage(request: Request) -> Response:
    """List tokens and GPU time by tenant, user, key and model, from the archive.

    Each charge is counted when it was recorded, which is when its job or replica ended.
    """
    gateway, query = await settled(request, UsageQuery)
    check_one_of("format", query.format, FORMATS)
    by = [part for part in query.by.split(",") if part]
    for part in by:
        check_one_of("by", part, PARTS)
    now_ns = gateway.clock.wall_ns()
    since_ns = instant_ns(query.since, "since", now_ns)
    until_ns = instant_ns(query.until, "until", now_ns) or now_ns + 1
    if until_ns <= since_ns:
        raise Refused(f"until: {query.until!r} is not after since {query.since!r}")
    eyes = roles.eyes(principal_of(request))
    found = await archive.usage(gateway.bus, since_ns, until_ns, eyes or "")
    shown = usage_shown(found, by, eyes)
    return Response(as_csv(shown), media_type=CSV) if query.format == "csv" else answer(shown)
