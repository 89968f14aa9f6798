"""The models to check: those that a fact touched, those whose wait ended, and all of them when the
set of live nodes changed.

Pure, and derived: a part of `State`. It also holds the replicas that finish their answers before
they are stopped.
"""

from collections.abc import Container, Iterable
from heapq import heappop, heappush

from libs.common.change import Change
from libs.common.model import GpuId, JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.locks import Locks, all_claims
from services.scheduler.state.lock_turns import LockTurns


class Restless:
    """The models and nodes to check again.

    `models` may need more or fewer replicas. `draining` are retired replicas that are not stopped
    yet. `quiet` are the quiet nodes (`Leases.quiet`) at the last check. `kept_stale`: what nodes
    keep of models must be checked again; at `kept_look_ns` it is checked although nothing changed.
    `kept_alone`: since when devices have weights of a model without a replica of it, by key of the
    request. `steady`: since when a model's replicas that began after its last crash were seen
    ready, by the scheduler's clock. `locks` are the claims on locks to check again.
    """

    def __init__(self) -> None:
        self.models: dict[str, None] = {}
        self.draining: dict[JobId, None] = {}
        self.quiet: tuple[NodeId, ...] = ()
        self.kept_stale = True
        self.kept_look_ns = 0
        self.kept_alone: dict[str, dict[GpuId, int]] = {}
        self.steady: dict[str, dict[JobId, int]] = {}
        self._timers: list[tuple[int, str]] = []
        self.locks = LockTurns()

    def note(self, change: Change, locks: Locks) -> None:
        """Check again what a commit changed."""
        self.locks.note(change.locks, locks)
        self.models.update(dict.fromkeys(change.models))
        self.kept_stale = self.kept_stale or bool(change.nodes or change.models)

    def note_replica(
        self, job_id: JobId, model: str, deployed: Container[str], draining: bool
    ) -> None:
        """Check the model of a replica that changed, if it is still deployed."""
        self.kept_stale = True
        if model in deployed:
            self.models[model] = None
        if draining:
            self.draining[job_id] = None
        else:
            self.draining.pop(job_id, None)

    def wake(self, models: Iterable[str], now_ns: int, quiet: tuple[NodeId, ...]) -> None:
        """Check models again although no fact touched them, when a wait is over or the set of live
        nodes changed.
        """
        if quiet != self.quiet:
            self.quiet = quiet
            self.models.update(dict.fromkeys(models))
        while self._timers and self._timers[0][0] <= now_ns:
            self.models[heappop(self._timers)[1]] = None

    def rest(self, name: str, until_ns: int, now_ns: int) -> None:
        """Skip this model until a fact touches it, or until `until_ns`."""
        del self.models[name]
        if until_ns > now_ns:
            heappush(self._timers, (until_ns, name))


def all_of(cluster: Cluster) -> Change:
    """Return a change of everything that is indexed."""
    return Change(
        jobs=tuple(cluster.jobs),
        nodes=tuple(cluster.nodes),
        models=tuple(cluster.models),
        locks=tuple(all_claims(cluster.locks)),
    )
