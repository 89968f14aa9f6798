"""Facts of quota about tenants' budgets. Pure; part of the union in `facts/__init__.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import TenantId


class BudgetExhausted(Fact, frozen=True, tag="budget.exhausted"):
    """A tenant's charges reached its budget of `gpu_hours`.

    No more of its jobs are placed until the budget is raised or renewed. Running jobs go on.
    `used_share_ms` are its charges, in hundredths of a GPU times milliseconds. `month` (202611, in
    UTC) is set for a monthly budget; 0: the budget is for the tenant's whole life.
    """

    tenant: TenantId
    gpu_hours: int
    used_share_ms: int
    month: int = 0


class BudgetRenewed(Fact, frozen=True, tag="budget.renewed"):
    """A new month (202611, in UTC) began for a tenant with a monthly budget.

    Charges behind this fact in the log belong to that month.
    """

    tenant: TenantId
    month: int
