"""/v1/charges: the attempts that have ended, with what they used and cost."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.messages.usage_messages import ChargesAsk
from libs.common.transport import archive
from services.api_gateway.access import roles
from services.api_gateway.access.slots import SCAN
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.http.usage import CSV, FORMATS, span_of, tenant_of
from services.api_gateway.intents.fields import check_one_of, check_range
from services.api_gateway.views.charges import as_csv, charges_shown

router = APIRouter(tags=["tenants"])

# Rows in one answer, also in audit's (`charges.ROWS_MAX`).
ROWS_MAX = 1_000


class ChargesQuery(Query, frozen=True):
    """The time, whose jobs, and the form of the answer.

    `since` and `until` as for usage. `tenant` and `user`: only their jobs. `limit`: the newest
    charges, at most 1,000. `format`: json or csv.
    """

    since: str = ""
    until: str = ""
    tenant: str = ""
    user: str = ""
    limit: int = 200
    format: str = "json"


@router.get("/v1/charges", openapi_extra=documented(ChargesQuery))
async def list_charges(request: Request) -> Response:
    """List attempts that have ended, the newest first, with their use of GPUs and their cost."""
    gateway, query = await settled(request, ChargesQuery)
    check_one_of("format", query.format, FORMATS)
    check_range("limit", query.limit, 1, ROWS_MAX)
    since_ns, until_ns = span_of(query.since, query.until, gateway.clock.wall_ns())
    eyes = roles.eyes(principal_of(request))
    ask = ChargesAsk(
        since_ns=since_ns,
        until_ns=until_ns,
        limit=query.limit,
        tenant=tenant_of(query.tenant, eyes),
        user=query.user,
    )
    async with gateway.slots.of(SCAN, principal_of(request).tenant):
        shown = charges_shown(await archive.charges(gateway.bus, ask))
    return Response(as_csv(shown), media_type=CSV) if query.format == "csv" else answer(shown)
