"""Processes of different tenants never use one device, unless both are allowed to share."""

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, TenantSet, Unknown
from libs.common.model import job_of
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World


class TenantsNeverShareAGpu(Checker):
    """`words` are (sequence, shares) by tenant; a commit's `seen` says which of them its decisions
    knew.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.words: dict[str, list[tuple[int, bool]]] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, TenantSet):
            self.words.setdefault(fact.tenant, []).append((stamp.seq, fact.shares_devices))
        elif isinstance(fact, JobPlaced):
            tenant = cluster.jobs[fact.job_id].tenant
            for hold in (hold for member in fact.members for hold in member.gpus):
                others = {
                    cluster.jobs[job_of(key)].tenant for key in cluster.gpus[hold.uuid].holds
                } - {tenant}  # type: ignore[index]
                if others and not all(
                    self._shared(each, commit.seen) for each in (tenant, *sorted(others))
                ):
                    self.fail(
                        f"{fact.job_id} of {tenant} was placed on {hold.uuid} beside jobs of "
                        f"{', '.join(sorted(others))}"
                    )

    def _shared(self, tenant: str, since: int) -> bool:
        """Whether its word was to share at any time since that sequence."""
        known = [(0, False), *self.words.get(tenant, [])]
        in_force = max(index for index, (seq, _) in enumerate(known) if seq <= since)
        return any(shares for _, shares in known[in_force:])
