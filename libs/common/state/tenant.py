"""A tenant in the state: its limits, its use, and its exhausted budgets. Pure."""

from typing import Final

import msgspec

from libs.common.facts.efficiency_facts import DeviceUse
from libs.common.model import PER_LIFE, PER_MONTH, JobId, TenantId
from libs.common.state.ordering import Use

# Number of waiting jobs if an administrator set no limit (`max_waiting` 0).
WAITING_DEFAULT: Final = 200_000
# The same for deployed models (`max_models` 0). Each costs every gateway memory.
MODELS_DEFAULT: Final = 200


class Tenant(msgspec.Struct):
    """The limits of a tenant and its current use.

    A limit of 0 means none, except for `max_waiting` and `max_models`, which have defaults.

    Shares are in hundredths of a GPU. A removed tenant stays, because its usage is kept.
    `spent_gpu_hours` is the largest budget that quota recorded as exhausted, `spent_month_hours`
    the largest of `month` (202611; 0 before the first). `month_share_ms` was charged in that month.
    """

    tenant: TenantId
    max_gpu_share: int = 0
    max_waiting: int = 0
    weight: int = 100
    held_share: int = 0
    waiting: int = 0
    used_share_ms: int = 0
    gpu_hours: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    shares_devices: bool = False
    removed: bool = False
    spent_gpu_hours: int = 0
    gpu_hours_per: str = PER_LIFE
    month: int = 0
    month_share_ms: int = 0
    spent_month_hours: int = 0
    use: Use = msgspec.field(default_factory=Use)
    # Dependencies of its jobs that are not met yet (`Ordering.waits`).
    dependencies: int = 0
    max_pool_bytes: int = 0
    # The policy for its jobs whose devices are idle (IdlePolicySet).
    idle_action: str = "off"
    idle_s: int = 0
    idle_grace_s: int = 0
    # When it was set last; warnings from before do not count.
    idle_set_ns: int = 0
    max_models: int = 0

    @property
    def waiting_max(self) -> int:
        """Return how many of the tenant's jobs may wait."""
        return self.max_waiting or WAITING_DEFAULT

    @property
    def models_max(self) -> int:
        """Return how many models of the tenant may be deployed."""
        return self.max_models or MODELS_DEFAULT

    @property
    def monthly(self) -> bool:
        return self.gpu_hours_per == PER_MONTH

    @property
    def budget_share_ms(self) -> int:
        """The charges that count against the budget."""
        return self.month_share_ms if self.monthly else self.used_share_ms

    @property
    def is_limited(self) -> bool:
        """True if a limit or a budget may keep the tenant's jobs waiting."""
        return bool(self.max_gpu_share or self.max_pool_bytes or self.gpu_hours)

    @property
    def exhausted(self) -> bool:
        """True if the budget is used up: no more jobs of the tenant are placed.

        It ends with a higher limit, without a limit, or with the next month.
        """
        return (
            0 < self.gpu_hours <= (self.spent_month_hours if self.monthly else self.spent_gpu_hours)
        )


class Charge(msgspec.Struct, frozen=True):
    """The use of an ended attempt, as UsageCharged records it.

    `models` are the parts of `share_ms` by model of GPU; they add up to it.
    """

    job_id: JobId
    attempt: int
    tenant: TenantId
    share_ms: int
    cpu_ms: int = 0
    memory_ms: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    gpus: int = 0
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    use: DeviceUse | None = None
    models: tuple[tuple[str, int], ...] = ()
