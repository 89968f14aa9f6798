"""/v1/notifications: messages about facts, and their addresses.

Addresses and keys go to the vault before the fact is recorded, and are never shown again. Tests:
tests/integration/test_gateway_notifications.py.
"""

import base64
import os
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.folds.notification_fold import destination_key
from services.api_gateway.access import roles, room
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    Query,
    answer,
    answer_list,
    body_of,
    documented,
    gateway_without_query,
    on_record,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.notify import body as intents
from services.api_gateway.notify.delivery import stored_of
from services.api_gateway.notify.messages import KEY_PREFIX, TEST_KIND, Notice
from services.api_gateway.notify.positions import Position, Progress, progress_in
from services.api_gateway.problems import Problem
from services.api_gateway.times import rfc3339
from services.api_gateway.views.notifications import (
    NotificationShown,
    NotificationTested,
    notification_shown,
)

router = APIRouter(tags=["notifications"])

KEY_BYTES: Final = 32
ID_BYTES: Final = 8
# Pause between two tests of one destination.
TEST_EVERY_S: Final = 5
TESTS_KEPT: Final = 1_000


class NotificationQuery(Query, frozen=True):
    """The notification's tenant (operators only; empty: the own one)."""

    tenant: str = ""


@router.get("/v1/notifications", openapi_extra=documented(Query))
async def list_notifications(request: Request) -> Response:
    """List notifications with their progress: of the own tenant, or of all."""
    gateway, _ = await settled(request, Query)
    principal, cluster = principal_of(request), gateway.cluster
    shown = []
    for _, each in sorted(cluster.notifications.items()):
        if roles.sees(principal, each.tenant):
            position = Position(gateway.notifier.store, each)
            kept = await gateway.notifier.store.get(position.key)
            made = notification_shown(each, progress_in(kept, each, cluster.restored_seq))
            fields = NotificationShown.__struct_fields__
            shown.append(NotificationShown(**{name: getattr(made, name) for name in fields}))
    return await answer_list("notifications", shown, {"seq": cluster.seq})


@router.put(
    "/v1/notifications/{name}",
    openapi_extra=documented(Query, intents.NotificationBody.__struct_fields__),
)
async def set_notification(request: Request, name: str) -> Response:
    """Set a notification, or change it. It sends facts from now on."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    body, stored = await body_of(request), None
    if destination_key(principal.tenant, name) in gateway.cluster.notifications:
        stored = await _stored(gateway, principal.tenant, name)
    change = intents.setting(
        body=body,
        cluster=gateway.cluster,
        principal=principal,
        name=name,
        fresh=intents.Fresh(
            key=KEY_PREFIX + base64.b64encode(os.urandom(KEY_BYTES)).decode(),
            id=os.urandom(ID_BYTES).hex(),
        ),
        stored=stored,
    )
    # Checked before the values are stored, so that there are no values without their fact.
    gateway.check_room("a notification", room.CHANGES)
    key = ""
    if change.sealed is not None:
        before = change.sealed.before
        key = change.sealed.key if before is None or change.sealed.key != before.key else ""
        value = msgspec.json.encode(change.sealed).decode()
        await gateway.vault.put(principal.tenant, intents.vault_name(name), value)
    status = 201 if change.fact.version == 1 else 200
    await on_record(request, change.fact, status)
    known = intents.found(gateway.cluster, principal.tenant, name)
    progress = Progress(seq=known.created_seq, created_seq=known.created_seq)
    return answer(notification_shown(known, progress, key), status)


@router.delete(
    "/v1/notifications/{name}", status_code=204, openapi_extra=documented(NotificationQuery)
)
async def remove_notification(request: Request, name: str) -> Response:
    """Remove a notification. Messages that wait for it are not sent."""
    gateway, query = await settled(request, NotificationQuery)
    principal = principal_of(request)
    tenant = _tenant(request, query.tenant)
    known = intents.found(gateway.cluster, tenant, name)
    await on_record(request, intents.removal(gateway.cluster, principal, tenant, name), 204)
    stored = await _stored(gateway, tenant, name)
    # Another request may have set the name again meanwhile: its values stay.
    again = gateway.cluster.notifications.get(destination_key(tenant, name))
    if stored is not None and stored.id == known.address_id and again is None:
        await gateway.vault.remove(tenant, intents.vault_name(name))
    return Response(status_code=204)


@router.post("/v1/notifications/{name}/test", openapi_extra=documented(NotificationQuery))
async def test_notification(request: Request, name: str) -> Response:
    """Send a test message of a notification, once and now, and return the result."""
    gateway, query = await settled(request, NotificationQuery)
    principal = principal_of(request)
    tenant = _tenant(request, query.tenant)
    known = intents.found(gateway.cluster, tenant, name)
    roles.check_change(principal, f"notification {name}", known.tenant, known.user)
    now_ns = gateway.clock.wall_ns()
    _check_pace(gateway, destination_key(tenant, name), now_ns)
    notice = Notice(
        id=f"test-{os.urandom(8).hex()}",
        type=TEST_KIND,
        time=rfc3339(now_ns) or "",
        cluster=gateway.settings.cluster_id,
        summary=f"test of notification {name}",
        tenant=tenant,
        user=principal.user,
    )
    try:
        await gateway.notifier.send(known, notice)
    except (Refused, Unavailable, Corrupt) as error:
        return answer(NotificationTested(False, str(error)), 200)
    return answer(NotificationTested(True), 200)


def _tenant(request: Request, named: str) -> str:
    """Return the tenant of the request. Raises Problem 404 for one that the sender cannot see."""
    principal = principal_of(request)
    tenant = named or principal.tenant
    if not roles.sees(principal, tenant):
        raise Problem(404, f"tenant {tenant[:64]!r} is not yours: leave tenant out")
    return tenant


def _check_pace(gateway: Gateway, key: str, now_ns: int) -> None:
    """Note a test. Raises Problem 429 if the last one was a moment ago."""
    tests = gateway.notifier.tests
    if now_ns - tests.get(key, 0) < TEST_EVERY_S * 1_000_000_000:
        raise Problem(
            429,
            f"this notification was tested less than {TEST_EVERY_S} s ago: wait and try again",
            retry_after_s=TEST_EVERY_S,
        )
    tests.pop(key, None)
    tests[key] = now_ns
    while len(tests) > TESTS_KEPT:
        del tests[next(iter(tests))]


async def _stored(gateway: Gateway, tenant: str, name: str) -> intents.Sealed | None:
    """Return the vault's values for a name; None if there are none, or none that can be read."""
    try:
        return await stored_of(gateway.vault, tenant, name)
    except Corrupt:
        return None
