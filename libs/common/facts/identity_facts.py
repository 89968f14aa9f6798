"""Facts of the gateways about tenants, their API keys, and access to the API.

Pure; part of the union in `facts/__init__.py`. No fact holds a secret: the log knows a key by the
SHA-256 of its text.
"""

from libs.common.facts.fact import Fact
from libs.common.model import PER_LIFE, TenantId


class TenantSet(Fact, frozen=True, tag="tenant.set"):
    """An administrator set the limits of a tenant.

    0 means no limit, except for `max_waiting` (200,000) and `max_models` (200 deployed models).
    `max_gpu_share` limits the GPUs in use at one time, in hundredths of a GPU. `gpu_hours` is the
    budget for the tenant's whole life, or with `gpu_hours_per` = "month" for each month of UTC.
    `max_pool_bytes` limits the memory pools of its jobs at one time. `shares_devices` allows the
    tenant's jobs to share devices with other tenants' jobs. `removed`: the tenant's keys are void,
    its models are undeployed and its resident data is dropped. It gets none of these until it is
    set again.
    """

    tenant: TenantId
    max_gpu_share: int = 0
    max_waiting: int = 0
    weight: int = 100
    gpu_hours: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    shares_devices: bool = False
    removed: bool = False
    user: str = ""
    gpu_hours_per: str = PER_LIFE
    max_pool_bytes: int = 0
    max_models: int = 0


class KeyCreated(Fact, frozen=True, tag="key.created"):
    """An API key was created.

    A client that presents the secret acts as `user` of `tenant` in `role`, until `expires_ns` (0:
    for ever). The fact holds only the SHA-256 of the secret. `by` is the user who created the key.
    `request` as in JobSubmitted. With the key at most `requests_per_minute` requests and
    `tokens_per_minute` tokens may be used at models (0: no limit).
    """

    key_id: str
    secret_hash: str
    tenant: TenantId
    user: str
    role: str
    name: str = ""
    expires_ns: int = 0
    by: str = ""
    request: str = ""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


class KeyRotated(Fact, frozen=True, tag="key.rotated"):
    """An API key got a new secret.

    The previous secret is valid until `old_until_ns`. Earlier ones are void.
    """

    key_id: str
    secret_hash: str
    old_until_ns: int = 0
    user: str = ""


class KeyLimitsSet(Fact, frozen=True, tag="key.limits_set"):
    """An administrator set the limits of an API key, as in KeyCreated."""

    key_id: str
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    user: str = ""


class KeyRevoked(Fact, frozen=True, tag="key.revoked"):
    """An API key was revoked: it is void from now on."""

    key_id: str
    user: str = ""


class AccessRecorded(Fact, frozen=True, tag="access.recorded"):
    """A batch of access records: who sent which request to a gateway, and whether it was allowed.

    `entries` is a MessagePack array (`access_entry.py`), compressed with zlib. `dropped` is the
    number of records that were lost before this batch because the log was full or did not answer.
    """

    entries: bytes
    count: int
    first_ns: int = 0
    last_ns: int = 0
    dropped: int = 0


IdentityWish = TenantSet | KeyCreated | KeyRotated | KeyRevoked | KeyLimitsSet
