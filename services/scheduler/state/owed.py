"""The use of ended attempts that quota has not charged yet, by tenant.

While quota is away, this is what tenants used beyond their charges. Pure; derived from
`Cluster.uncharged`. Test: tests/unit/test_budgets.py.
"""

from collections import Counter

from libs.common import facts as f
from libs.common.facts import AnyFact, Unknown
from libs.common.model import TenantId, attempt_key
from libs.common.state.cluster import Charge, Cluster


class Owed:
    """The uncharged use of each tenant.

    `share_ms` is by tenant: one whole GPU for one millisecond counts 100. `charges` is by attempt.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.charges: dict[str, Charge] = {}
        self.share_ms: Counter[TenantId] = Counter()
        for key, charge in cluster.uncharged.items():
            self._add(key, charge)

    def follow(self, cluster: Cluster, fact: AnyFact | Unknown) -> None:
        """Update the sums after the cluster has folded this fact."""
        if isinstance(fact, f.JobClosed | f.JobRequeued):
            key = attempt_key(fact.job_id, fact.attempt)
            charge = cluster.uncharged.get(key)
            if charge is not None:
                self._add(key, charge)
        elif isinstance(fact, f.UsageCharged):
            paid = self.charges.pop(attempt_key(fact.job_id, fact.attempt), None)
            if paid is not None:
                self.share_ms[paid.tenant] -= paid.share_ms

    def _add(self, key: str, charge: Charge) -> None:
        self.charges[key] = charge
        self.share_ms[charge.tenant] += charge.share_ms
