"""No job is placed on a device that takes no work, as far as the scheduler has read.

The agent or an operator may have taken the device out of use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, GpuFaulted, GpuServiceSet, JobPlaced, Unknown
from libs.common.life import gpu_life
from libs.common.model import GpuId
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class PlacedOnlyOnWorkingDevices(Checker):
    """`away` says by which sequence a device was last taken out of use: a placement that was
    decided before may cross it.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.away: dict[GpuId, int] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        for member in fact.members if isinstance(fact, JobPlaced) else ():
            for hold in member.gpus:
                view = cluster.gpus.get(hold.uuid)
                if view is None or self.away.get(hold.uuid, 0) > commit.seen:
                    continue
                if view.health not in gpu_life.USABLE or view.service != gpu_life.ONLINE:
                    self.fail(
                        f"{member.node_id}: {hold.uuid} is {view.health} and {view.service}, "
                        f"seen {commit.seen}"
                    )

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, GpuFaulted) or (
            isinstance(fact, GpuServiceSet) and fact.service != gpu_life.ONLINE
        ):
            self.away[fact.uuid] = stamp.seq
