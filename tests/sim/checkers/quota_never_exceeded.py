"""After a placement a tenant holds no more than its limit.

A limit that was lowered after the scheduler last read the log does not count yet.
"""

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, TenantSet, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World

NO_LIMIT = 1 << 60


class QuotaNeverExceeded(Checker):
    """`limits` are (sequence, limit) by tenant; a commit's `seen` says which of them its decisions
    knew.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.limits: dict[str, list[tuple[int, int]]] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, TenantSet):
            self.limits.setdefault(fact.tenant, []).append(
                (stamp.seq, fact.max_gpu_share or NO_LIMIT)
            )
        elif isinstance(fact, JobPlaced):
            tenant = cluster.tenants[cluster.jobs[fact.job_id].tenant]
            limit = self._limit(tenant.tenant, commit.seen)
            if tenant.held_share > limit:
                self.fail(
                    f"{tenant.tenant} holds {tenant.held_share} of {limit} after "
                    f"{fact.job_id} was placed"
                )

    def _limit(self, tenant: str, since: int) -> int:
        """The highest limit in force at any time since that sequence."""
        known = [(0, NO_LIMIT), *self.limits.get(tenant, [])]
        in_force = max(index for index, (seq, _) in enumerate(known) if seq <= since)
        return max(limit for _, limit in known[in_force:])
