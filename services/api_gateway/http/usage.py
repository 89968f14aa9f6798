"""/v1/usage: what tenants, users and keys used of models and GPUs, and were charged."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Refused
from libs.common.messages.usage_messages import FURTHER, UsageAsk
from libs.common.transport import archive
from services.api_gateway.access import roles
from services.api_gateway.access.slots import SCAN
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_one_of
from services.api_gateway.times import instant_ns
from services.api_gateway.views.usage import (
    PARTS,
    as_csv,
    periods_in,
    usage_shown,
    with_running,
)

router = APIRouter(tags=["tenants"])

FORMATS: Final = ("json", "csv")
CSV: Final = "text/csv; charset=utf-8"


class UsageQuery(Query, frozen=True):
    """The time and the form of the answer.

    `since` and `until`: an instant, or a duration before now; empty: from the first record, until
    now. `by`: some of tenant, user, key, model, gpu, job, and one of hour, day and month, separated
    by commas. `format`: json or csv. `fleet`: yes also shows operators what of all GPUs' time was
    allocated. `tenant`: only what this tenant pays or uses. `user`: only the lines of this user, of
    `tenant` if it is set; then `charged_share_ms` and `charged_micros` are empty.
    """

    since: str = ""
    until: str = ""
    by: str = "tenant,user,model"
    format: str = "json"
    fleet: bool = False
    tenant: str = ""
    user: str = ""


@router.get("/v1/usage", openapi_extra=documented(UsageQuery))
async def usage(request: Request) -> Response:
    """List tokens and GPU time by tenant, user, key and model, from the archive.

    Each charge is counted when it was recorded, which is when its job or replica ended.
    """
    gateway, query = await settled(request, UsageQuery)
    check_one_of("format", query.format, FORMATS)
    by = parts_of(query.by)
    now_ns = gateway.clock.wall_ns()
    since_ns, until_ns = span_of(query.since, query.until, now_ns)
    eyes = roles.eyes(principal_of(request))
    ask = UsageAsk(
        since_ns=since_ns,
        until_ns=min(until_ns, now_ns + 1),
        tenant=tenant_of(query.tenant, eyes),
        user=query.user,
        further=tuple(part for part in by if part in FURTHER),
        fleet=query.fleet and eyes is None and not query.tenant and not query.user,
    )
    async with gateway.slots.of(SCAN, principal_of(request).tenant):
        found = await archive.usage(gateway.bus, ask)
    if ask.fleet:
        found.fleet = with_running(found.fleet, gateway.cluster, since_ns, min(until_ns, now_ns))
    shown = usage_shown(found, by, eyes, query.tenant)
    return Response(as_csv(shown), media_type=CSV) if query.format == "csv" else answer(shown)


def tenant_of(wanted: str, eyes: str | None) -> str:
    """Return the tenant to show; empty for all. Raises Refused for one that is not shown."""
    if eyes is None or wanted in ("", eyes):
        return eyes or wanted
    raise Refused(
        f"tenant: {wanted[:64]!r} is not shown to your role: leave it out, or give your own "
        f"tenant, {eyes}"
    )


def parts_of(text: str) -> list[str]:
    """Return the parts that lines are told apart by. Raises Refused."""
    by = [part for part in text.split(",") if part]
    for part in by:
        check_one_of("by", part, PARTS)
    if len(periods_in(by)) > 1:
        raise Refused(f"by: {text[:64]!r} has several periods: give one of hour, day and month")
    return by


def span_of(since: str, until: str, now_ns: int) -> tuple[int, int]:
    """Return the time that was asked for, from its first nanosecond to before the second value.

    Raises Refused.
    """
    since_ns = instant_ns(since, "since", now_ns)
    until_ns = instant_ns(until, "until", now_ns) or now_ns + 1
    if until_ns <= since_ns:
        raise Refused(f"until: {until!r} is not after since {since!r}")
    return since_ns, until_ns
