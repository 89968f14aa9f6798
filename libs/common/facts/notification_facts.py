"""Facts of the gateways about where notifications go. No address and no key is recorded.

Pure; part of the union in `facts/__init__.py`. The vault keeps the address, which may hold a key.
"""

from libs.common.facts.fact import Fact
from libs.common.model import TenantId


class NotificationSet(Fact, frozen=True, tag="notification.set"):
    """A user set a notification, or changed it.

    `form` is webhook, slack or mail. `shown` is the part of the address that holds no secret.
    `kinds` are kinds of facts, or their beginnings (`job.`). Facts of other tenants than the own
    one are sent only if `tenants` names them (`*`: all, and facts without a tenant); operators
    alone may set it. Empty filters choose everything. `own`: the user's own jobs only. `failures`:
    of the ends of jobs only those that were not completed. `version` counts the changes.
    `address_id` names the vault's value that belongs to this fact; empty in facts that are older
    than the field.
    """

    tenant: TenantId
    name: str
    form: str
    shown: str
    kinds: tuple[str, ...]
    user: str = ""
    own: bool = False
    failures: bool = False
    models: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    version: int = 1
    address_id: str = ""


class NotificationRemoved(Fact, frozen=True, tag="notification.removed"):
    """A user removed a notification."""

    tenant: TenantId
    name: str
    user: str = ""
