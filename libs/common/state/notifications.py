"""The destinations of notifications, by `<tenant>.<name>`. Pure."""

import msgspec

from libs.common.model import TenantId


class Destination(msgspec.Struct):
    """One destination, as its last NotificationSet describes it.

    `created_seq` is the commit that created it: facts after that commit are sent. `slot` numbers
    the destinations of a tenant; a slot is used again after a removal. `address_id` names the
    vault's value that belongs to the destination.
    """

    tenant: TenantId
    name: str
    form: str
    shown: str
    kinds: tuple[str, ...]
    user: str
    own: bool
    failures: bool
    models: tuple[str, ...]
    nodes: tuple[str, ...]
    tenants: tuple[str, ...]
    version: int
    slot: int
    created_seq: int
    set_ns: int
    address_id: str = ""


Destinations = dict[str, Destination]
