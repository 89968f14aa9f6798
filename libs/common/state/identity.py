"""API keys, names of secrets and memberships of nodes, in the state.

Pure. The state holds no secret.
"""

import msgspec

from libs.common.model import NodeId, TenantId
from libs.common.state.rate_limits import NO_LIMITS, RateLimits


class Key(msgspec.Struct):
    """An API key, by the hashes of its secrets.

    Times are nanoseconds of the writers' wall clocks; 0: never.
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
    limits: RateLimits = NO_LIMITS


class Secret(msgspec.Struct):
    """The name and version of a tenant's secret. The state does not hold its value.

    `value_id` names the value in the bucket.
    """

    tenant: TenantId
    name: str
    version: int
    set_ns: int
    user: str = ""
    value_id: str = ""


class Membership(msgspec.Struct):
    """A node's membership: invited, joined, leaving or removed.

    `secret_hash` is the one of the valid or used invitation, `public_key` the nkey that joined with
    it. `leaving`: its removal was requested; `wait`: its jobs may end first. `revoked`: why the
    servers refuse its key; empty for a valid key.
    """

    node_id: NodeId
    secret_hash: str = ""
    expires_ns: int = 0
    public_key: str = ""
    leaving: bool = False
    wait: bool = False
    removed: bool = False
    revoked: str = ""
