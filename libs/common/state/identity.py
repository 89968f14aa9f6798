"""API keys and the names of secrets, as the fold has them; part of the state in `cluster.py`.

Pure; what is secret is in no fold.
"""

import msgspec

from libs.common.model import NodeId, TenantId


class Key(msgspec.Struct):
    """An API key that counts, by its hashes.

    Times are nanoseconds of the writers' wall clocks; 0 = never.
    """

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


class Membership(msgspec.Struct):
    """A node's membership: invited, joined, leaving or removed.

    `secret_hash` is of the invitation that still counts or was used; `public_key` is the nkey that
    joined by it. `leaving`: its removal was asked for; `wait`: its jobs may end first. `revoked`:
    why the servers refuse its key; empty for a key that counts.
    """

    node_id: NodeId
    secret_hash: str = ""
    expires_ns: int = 0
    public_key: str = ""
    leaving: bool = False
    wait: bool = False
    removed: bool = False
    revoked: str = ""
