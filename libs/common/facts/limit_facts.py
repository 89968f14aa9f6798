"""Facts of quota about tenants' budgets. Pure; part of the union in `facts.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import TenantId


class BudgetExhausted(Fact, frozen=True, tag="budget.exhausted"):
    """The tenant's charges have reached `gpu_hours`: nothing more of it is placed until that limit
    is raised.

    What runs goes on.

    `used_share_ms`: its charges by then, in hundredths of a GPU times milliseconds. `month`
    (202611, of UTC): of that month alone, and the next one's budget is a new one; 0: of the
    tenant's whole life.
    """

    tenant: TenantId
    gpu_hours: int
    used_share_ms: int
    month: int = 0


class BudgetRenewed(Fact, frozen=True, tag="budget.renewed"):
    """A month (202611, of UTC) has begun for a tenant whose GPU hours are per month: charges in the
    log behind this are that month's.
    """

    tenant: TenantId
    month: int
