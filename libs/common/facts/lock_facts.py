"""Facts about locks of users: requests by the gateways, decisions by the scheduler.

Pure; part of the union in `facts/__init__.py`. The scheduler's facts alone move a lock from one
holder to the next, so one writer orders them. A holder is the name that a client gave its claim.
"""

from libs.common.facts.fact import Fact
from libs.common.model import TenantId


class LockRequested(Fact, frozen=True, tag="lock.requested"):
    """A client asked for a lock of its tenant, and is in its queue from here on.

    A grant lasts `ttl_ms`, unless it is renewed. The client waits for at most `wait_ms`; 0: it does
    not wait for another holder.
    """

    tenant: TenantId
    lock: str
    holder: str
    ttl_ms: int
    wait_ms: int = 0
    user: str = ""


class LockRenewRequested(Fact, frozen=True, tag="lock.renew_requested"):
    """A holder asked for another time to live."""

    tenant: TenantId
    lock: str
    holder: str


class LockReleaseRequested(Fact, frozen=True, tag="lock.release_requested"):
    """A holder gave the lock back, or a waiting client withdrew its request."""

    tenant: TenantId
    lock: str
    holder: str
    user: str = ""


class LockGranted(Fact, frozen=True, tag="lock.granted"):
    """The scheduler gave the lock to the first claim of its queue.

    `token` is larger than every token that a lock of the tenant had before. `expires_ns` is for
    people: it is a wall clock's time, and the scheduler counts the time to live on its boot clock.
    """

    tenant: TenantId
    lock: str
    holder: str
    token: int
    expires_ns: int


class LockRenewed(Fact, frozen=True, tag="lock.renewed"):
    """The scheduler gave the holder of `token` its time to live again.

    `asked` is the sequence of the LockRenewRequested that it answers.
    """

    tenant: TenantId
    lock: str
    holder: str
    token: int
    asked: int
    expires_ns: int


class LockFreed(Fact, frozen=True, tag="lock.freed"):
    """A claim ended: the holder's, with its `token`, or one that waited (`token` 0).

    `reason`: released, expired, wait_over or too_many.
    """

    tenant: TenantId
    lock: str
    holder: str
    token: int
    reason: str


LockWish = LockRequested | LockRenewRequested | LockReleaseRequested
LockDecision = LockGranted | LockRenewed | LockFreed
