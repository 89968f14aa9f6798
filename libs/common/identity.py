"""API keys and the names of secrets, as the fold has them; part of the state in `cluster.py`. Pure; what is secret is in no fold."""

import msgspec

from libs.common.model import TenantId


class Key(msgspec.Struct):
    """An API key that counts, by its hashes. Times are nanoseconds of the writers' wall clocks; 0 = never."""

    key_id: str
    tenant: TenantId
    user: str
    role: str
    name: str
    secret_hash: str
    created_ns: int = 0
    expires_ns: int = 0
    rotated_ns: int = 0
    old_hash: str = ""
    old_until_ns: int = 0
    by: str = ""
    request: str = ""


class Secret(msgspec.Struct):
    """That a tenant has a secret of this name; the value is in no fold."""

    tenant: TenantId
    name: str
    version: int
    set_ns: int
    user: str = ""
