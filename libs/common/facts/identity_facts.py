"""Facts of the gateways about tenants, their keys, and who asked for what.

Pure; part of the union in `facts.py`.

No fact holds a secret: a key is known by the SHA-256 of its text.
"""

from libs.common.facts.fact import Fact
from libs.common.model import PER_LIFE, TenantId


class TenantSet(Fact, frozen=True, tag="tenant.set"):
    """Limits of a tenant; 0 means none.

    `max_gpu_share` is in hundredths of a GPU in use at one time.

    `gpu_hours` are for its whole life, or with `gpu_hours_per` = "month" for each month of UTC.
    `shares_devices` is an administrator's word that its jobs may share a device with those of
    others. `removed`: its keys are void, and no other is made for it, until it is set again.
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


class KeyCreated(Fact, frozen=True, tag="key.created"):
    """Whoever shows the secret acts as `user` of `tenant` in `role`, until `expires_ns` (0 = for
    ever).

    Only its SHA-256 is known here.

    `by` made it; `request` as in JobSubmitted.
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


class KeyRotated(Fact, frozen=True, tag="key.rotated"):
    """The key has another secret; the one before it counts until `old_until_ns`, an earlier one no
    more.
    """

    key_id: str
    secret_hash: str
    old_until_ns: int = 0
    user: str = ""


class KeyRevoked(Fact, frozen=True, tag="key.revoked"):
    key_id: str
    user: str = ""


class AccessRecorded(Fact, frozen=True, tag="access.recorded"):
    """Who asked the gateway for what, and whether they might: a batch, as a MessagePack array of
    entries (`access_entry.py`) under zlib.

    `dropped` entries before this batch could not be kept: the log was full or did not answer.
    """

    entries: bytes
    count: int
    first_ns: int = 0
    last_ns: int = 0
    dropped: int = 0
