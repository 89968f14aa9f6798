"""Nobody is placed on a device of which the scheduler has read that operators let no work onto it."""

from libs.common import gpu_life
from libs.common.change import Change, Stamp
from libs.common.cluster import Cluster
from libs.common.facts import AnyFact, Commit, GpuServiceSet, JobPlaced, Unknown
from libs.common.model import GpuId
from tests.sim.checkers.checker import Checker
from tests.sim.world import World


class PlacedOnlyOnDevicesInService(Checker):
    """`away` has each device that is out, and since which sequence: a placement that was decided before may cross it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.away: dict[GpuId, int] = {}

    def before(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit) -> None:
        for member in fact.members if isinstance(fact, JobPlaced) else ():
            for hold in member.gpus:
                if self.away.get(hold.uuid, commit.seen + 1) <= commit.seen:
                    self.fail(f"{member.node_id}: {hold.uuid} is out of service since {self.away[hold.uuid]}, seen {commit.seen}")

    def after(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit, change: Change) -> None:
        if isinstance(fact, GpuServiceSet):
            self.away.pop(fact.uuid, None)
            if fact.service != gpu_life.ONLINE:
                self.away[fact.uuid] = stamp.seq
