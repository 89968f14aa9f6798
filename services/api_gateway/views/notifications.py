"""Destinations of notifications as the API shows them. No address or key is among the fields,
except the key of a new webhook, once. Pure.
"""

import msgspec

from libs.common.state.notifications import Destination
from services.api_gateway.notify.positions import Progress
from services.api_gateway.times import rfc3339


class NotificationShown(msgspec.Struct, kw_only=True):
    """A notification with its progress.

    `address` is the part of the address that holds no secret. `sent` counts accepted messages,
    `failures` the tries that failed since the last one, `error` is the last reason. `skipped`
    messages were given up. `upto_seq`: all chosen facts up to this commit are done.
    """

    name: str
    tenant: str
    user: str
    form: str
    address: str
    kinds: tuple[str, ...]
    own: bool
    failures_only: bool
    models: tuple[str, ...]
    nodes: tuple[str, ...]
    tenants: tuple[str, ...]
    version: int
    set_at: str | None
    sent: int = 0
    sent_at: str | None = None
    failures: int = 0
    failing_since: str | None = None
    error: str = ""
    skipped: int = 0
    upto_seq: int = 0


class NotificationSetShown(NotificationShown, kw_only=True):
    """A notification that was set. `key` signs its webhooks; it is shown only when it is new."""

    key: str = ""


class NotificationList(msgspec.Struct):
    notifications: list[NotificationShown]
    seq: int


class NotificationTested(msgspec.Struct):
    """Result of a test message: whether the receiver accepted it, and why not."""

    accepted: bool
    detail: str = ""


def notification_shown(
    destination: Destination, progress: Progress, key: str = ""
) -> NotificationSetShown:
    """Return a destination with its progress."""
    return NotificationSetShown(
        name=destination.name,
        tenant=destination.tenant,
        user=destination.user,
        form=destination.form,
        address=destination.shown,
        kinds=destination.kinds,
        own=destination.own,
        failures_only=destination.failures,
        models=destination.models,
        nodes=destination.nodes,
        tenants=destination.tenants,
        version=destination.version,
        set_at=rfc3339(destination.set_ns),
        sent=progress.sent,
        sent_at=rfc3339(progress.sent_ns),
        failures=progress.failures,
        failing_since=rfc3339(progress.failing_ns),
        error=progress.error,
        skipped=progress.skipped,
        upto_seq=progress.seq,
        key=key,
    )
