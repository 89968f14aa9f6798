"""Facts of quota about tenants' budgets. Pure; part of the union in `facts.py`."""

from libs.common.fact import Fact
from libs.common.model import TenantId


class BudgetExhausted(Fact, frozen=True, tag="budget.exhausted"):
    """The tenant's charges have reached `gpu_hours`: nothing more of it is placed until that limit is raised. What runs goes on.

    `used_share_ms`: all its charges by then, in hundredths of a GPU times milliseconds.
    """

    tenant: TenantId
    gpu_hours: int
    used_share_ms: int
