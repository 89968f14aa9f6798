"""Requests about destinations of notifications: the fact, and the values for the vault.

Pure. No text here quotes a URL's path or a key. Tests: tests/unit/test_notify_body.py.
"""

import base64
import binascii
import re
from typing import Final, NamedTuple

import msgspec

from libs.common.errors import Refused
from libs.common.facts import NotificationRemoved, NotificationSet
from libs.common.folds.notification_fold import (
    DESTINATIONS_MAX,
    OF_TENANT_MAX,
    destination_key,
    free_slot,
)
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.notifications import Destination
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.intents.fields import check_known, convert
from services.api_gateway.notify import addresses, rules
from services.api_gateway.notify.messages import KEY_PREFIX
from services.api_gateway.problems import Denied, Problem

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
WEBHOOK: Final = "webhook"
SLACK: Final = "slack"
MAIL: Final = "mail"
LISTED_MAX: Final = 50
LISTED_CHARS_MAX: Final = 255
KEY_BYTES: Final = (24, 64)


class NotificationBody(msgspec.Struct, frozen=True, kw_only=True):
    """A notification: an address, and the facts that are sent to it.

    One of `webhook` (a URL), `slack` (a URL) and `mail` (an address) is given; a change may leave
    it out. `kinds` are kinds of facts, or beginnings such as `job.*`; default: job.closed. `own`:
    only jobs of the own user. `failures`: no jobs that completed. `models` and `nodes` choose by
    name. `tenants` (operators only) chooses other tenants, `*` all, and then also facts without a
    tenant. `key` signs webhooks (empty: a new one is made).
    """

    webhook: str = ""
    slack: str = ""
    mail: str = ""
    kinds: list[str] = []
    own: bool = False
    failures: bool = False
    models: list[str] = []
    nodes: list[str] = []
    tenants: list[str] = []
    key: str = ""


class Sealed(msgspec.Struct, frozen=True):
    """The values of a destination that the vault keeps: its full address and its signing key.

    They are stored before their fact is recorded. `id` is the fact's `address_id`. `before` are the
    values of the destination until then: they count until the fact is there, and for ever if it
    could not be recorded.
    """

    address: str
    key: str = ""
    id: str = ""
    before: "Sealed | None" = None


class Fresh(NamedTuple):
    """Random values for a request: a signing key, and the id of values in the vault."""

    key: str
    id: str


class NotificationChange(msgspec.Struct, frozen=True):
    """The fact of a request, and the values for the vault (None: those of before stay)."""

    fact: NotificationSet
    sealed: Sealed | None


def agreed(stored: Sealed | None, address_id: str) -> Sealed | None:
    """Return the values that belong to a destination's fact; None if the vault has others.

    Two requests may set one name at once: the values of one then never meet the fact of the other.
    """
    found = stored
    while found is not None and found.id != address_id:
        found = found.before
    return found


def vault_name(name: str) -> str:
    """Return the name of a destination in the vault. No secret of a user begins so."""
    return f"=notify.{name}"


def _no_room(cluster: Cluster, tenant: str) -> str:
    if len(cluster.notifications) >= DESTINATIONS_MAX:
        return (
            f"the cluster has {DESTINATIONS_MAX} notifications, the maximum: ask an operator to "
            "remove some"
        )
    return f"tenant {tenant} has {OF_TENANT_MAX} notifications, the maximum: remove one"


def setting(
    body: object,
    cluster: Cluster,
    principal: Principal,
    name: str,
    fresh: Fresh,
    stored: Sealed | None,
) -> NotificationChange:
    """Return what `PUT /v1/notifications/{name}` records and keeps.

    `stored` are the vault's values. Raises Refused, Problem, and Denied.
    """
    if not NAME.fullmatch(name):
        raise Refused(f"name: {name[:64]!r} is not valid: use a-z, 0-9 and - (at most 63)")
    if not isinstance(body, dict):
        raise Refused("the body is not a JSON object")
    check_known(map(str, body), NotificationBody.__struct_fields__, "field")
    fields = convert(body, NotificationBody)
    known = cluster.notifications.get(destination_key(principal.tenant, name))
    if known is not None:
        roles.check_change(principal, f"notification {name}", known.tenant, known.user)
    elif free_slot(cluster, principal.tenant) is None:
        raise Problem(409, _no_room(cluster, principal.tenant))
    if (fields.tenants or fields.nodes) and not roles.sees_all(principal):
        raise Denied(403, "tenants, nodes: only operators may choose by them: leave them out")
    if fields.tenants and known is not None and known.user != principal.user:
        text = f"tenants: notification {name} belongs to {known.user}: add one of your own"
        raise Denied(403, text)
    before = agreed(stored, known.address_id) if known is not None else None
    form, sealed, shown = _address(fields, known, fresh, before)
    return NotificationChange(
        NotificationSet(
            tenant=TenantId(principal.tenant),
            name=name,
            form=form,
            shown=shown,
            kinds=_kinds(fields.kinds),
            user=known.user if known is not None else principal.user,
            own=fields.own,
            failures=fields.failures,
            models=_names("models", fields.models),
            nodes=_names("nodes", fields.nodes),
            tenants=_names("tenants", fields.tenants),
            version=known.version + 1 if known is not None else 1,
            address_id=sealed.id if sealed is not None else known.address_id if known else "",
        ),
        sealed,
    )


def _address(
    fields: NotificationBody, known: Destination | None, fresh: Fresh, before: Sealed | None
) -> tuple[str, Sealed | None, str]:
    """Return form, values for the vault, and the part that may be shown."""
    given = {WEBHOOK: fields.webhook, SLACK: fields.slack, MAIL: fields.mail}
    forms = [form for form, value in given.items() if value]
    if not forms and known is not None and not fields.key:
        return known.form, None, known.shown
    if len(forms) != 1:
        raise Refused("webhook, slack, mail: give exactly one of them")
    (form,) = forms
    if fields.key and form != WEBHOOK:
        raise Refused(f"key: {form} has no signature: leave key out")
    last = msgspec.structs.replace(before, before=None) if before is not None else None
    if form == MAIL:
        address = addresses.mail_address(fields.mail)
        return form, Sealed(address, id=fresh.id, before=last), address
    url, key = given[form], ""
    if form == WEBHOOK:
        key = _key(fields.key or (last.key if last is not None else "") or fresh.key)
    return form, Sealed(url, key, fresh.id, last), addresses.shown(url)


def _key(text: str) -> str:
    """Return a signing key in its usual form. Raises Refused."""
    try:
        found = base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True)
    except binascii.Error:
        found = b""
    if not KEY_BYTES[0] <= len(found) <= KEY_BYTES[1]:
        raise Refused(
            f"key: give {KEY_BYTES[0]} to {KEY_BYTES[1]} bytes in base64, with or without the "
            f"prefix {KEY_PREFIX}"
        )
    return KEY_PREFIX + base64.b64encode(found).decode()


def _kinds(given: list[str]) -> tuple[str, ...]:
    """Return kinds and their beginnings. Raises Refused for those that match no kind."""
    kinds = tuple(dict.fromkeys(each.removesuffix("*") for each in given)) or rules.KINDS_DEFAULT
    known = rules.choosable()
    for kind in kinds:
        if not kind or not any(each.startswith(kind) for each in known):
            raise Refused(
                f"kinds: {kind[:64]!r} matches no kind of fact: use one or more of "
                f"{', '.join(known)}, or a beginning such as job.*"
            )
    return kinds


def _names(field: str, given: list[str]) -> tuple[str, ...]:
    if len(given) > LISTED_MAX or any(not 0 < len(each) <= LISTED_CHARS_MAX for each in given):
        raise Refused(f"{field}: give at most {LISTED_MAX} names of 1 to {LISTED_CHARS_MAX}")
    return tuple(dict.fromkeys(given))


def found(cluster: Cluster, tenant: str, name: str) -> Destination:
    """Return a destination. Raises Problem 404."""
    known = cluster.notifications.get(destination_key(tenant, name))
    if known is None:
        raise Problem(
            404,
            f"tenant {tenant} has no notification {name[:64]!r}: list them with `muster notify "
            "list` (GET /v1/notifications)",
        )
    return known


def removal(cluster: Cluster, principal: Principal, tenant: str, name: str) -> NotificationRemoved:
    """Return the fact for `DELETE /v1/notifications/{name}`. Raises Problem 404, Denied 403."""
    known = found(cluster, tenant, name)
    roles.check_change(principal, f"notification {name}", known.tenant, known.user)
    return NotificationRemoved(tenant=known.tenant, name=name, user=principal.user)
