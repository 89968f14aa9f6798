"""Nobody is placed on a device of which the scheduler has read that it takes no work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common import gpu_life
from libs.common.change import Change, Stamp
from libs.common.cluster import Cluster
from libs.common.facts import AnyFact, Commit, GpuFaulted, JobPlaced, Unknown
from libs.common.model import GpuId
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class NothingPlacedOnAFaultedDevice(Checker):
    """`away` says by which sequence a device was last taken out of use: a placement that was decided before may cross it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.away: dict[GpuId, int] = {}

    def before(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit) -> None:
        if not isinstance(fact, JobPlaced):
            return
        for hold in (hold for member in fact.members for hold in member.gpus):
            view = cluster.gpus.get(hold.uuid)
            if view is not None and view.health not in gpu_life.USABLE and self.away.get(hold.uuid, 0) <= commit.seen:
                self.fail(f"{fact.job_id} attempt {fact.attempt} is placed on {hold.uuid}, which is {view.health}: {view.reason}")

    def after(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit, change: Change) -> None:
        if isinstance(fact, GpuFaulted):
            self.away[fact.uuid] = stamp.seq
