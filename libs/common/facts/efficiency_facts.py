"""Facts about the use of devices by jobs, prices of devices, and jobs whose devices are idle.

Pure; part of the union in `facts/__init__.py`. Times of devices add up over devices: two devices
that compute for a second have 2,000 ms.
"""

import msgspec

from libs.common.facts.fact import Fact
from libs.common.model import JobId, NodeId, TenantId


class DeviceUse(msgspec.Struct, frozen=True, array_like=True):
    """The use of devices by one member of an attempt, or by all of them, as agents sampled it.

    `devices` had at least one sample; `used` of them were busy at some time. `sampled_ms` is the
    time of devices between samples, `busy_ms` the part of it in which they computed.
    `peak_percent` is the highest busy percentage of a device. `memory_peak_bytes` is the most
    memory in use on one device, `memory_bytes` the size of such a device (0: not reported).
    `energy_mj` is their energy (-1: not reported); a job has the part of its share. `shared`:
    another job had one of the devices at the same time, so the figures are those of both.
    """

    devices: int = 0
    used: int = 0
    sampled_ms: int = 0
    busy_ms: int = 0
    peak_percent: int = 0
    memory_peak_bytes: int = 0
    memory_bytes: int = 0
    energy_mj: int = -1
    shared: bool = False
    simulated: bool = False


class ChargePart(msgspec.Struct, frozen=True, array_like=True):
    """The part of a charge for one model of GPU at one price.

    `cost_micros` is in millionths of the currency, `micros_per_hour` the price of one GPU for one
    hour. Without a price `currency` is empty.
    """

    gpu: str
    share_ms: int
    micros_per_hour: int = 0
    cost_micros: int = 0
    currency: str = ""


class PriceSet(Fact, frozen=True, tag="price.set"):
    """An administrator set the price of GPUs whose model contains the words of `name`.

    `micros_per_hour` is in millionths of the currency, for one GPU and one hour. It counts from the
    time of this fact on. `removed`: there is no such price from then on.
    """

    name: str
    micros_per_hour: int = 0
    currency: str = ""
    removed: bool = False
    user: str = ""


class IdlePolicySet(Fact, frozen=True, tag="idle.policy_set"):
    """An administrator set what happens to a tenant's jobs whose devices are idle.

    When all devices of a job were idle for `idle_s`, its user is warned. If they are still idle
    `grace_s` later, the job is ended: `action` "checkpoint" leaves it its own grace time to save,
    "release" leaves it a few seconds, and "warn" ends nothing. "off": no job is warned.
    """

    tenant: TenantId
    action: str = "off"
    idle_s: int = 0
    grace_s: int = 0
    user: str = ""


class JobIdleSeen(Fact, frozen=True, tag="job.idle_seen"):
    """All devices of a member have been idle for `idle_ms`; 0: one of them computes again."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    idle_ms: int = 0


class JobIdleWarned(Fact, frozen=True, tag="job.idle_warned"):
    """The scheduler warned that all devices of a job have been idle for `idle_s`, since `since_ns`.

    If they stay idle, `action` follows at `ends_ns` (wall clock; 0: never). `policy_ns` is the time
    of the IdlePolicySet that it follows; facts of earlier versions have 0. `ended` counts the
    members that had ended, which do not count.
    """

    job_id: JobId
    attempt: int
    idle_s: int
    action: str
    since_ns: int = 0
    ends_ns: int = 0
    policy_ns: int = 0
    ended: int = 0


EfficiencyWish = PriceSet | IdlePolicySet
