"""Devices reserved for one job are not placed for another one.

The reservation ends when its job is placed or has ended, or when it is withdrawn.
"""

from collections.abc import Sequence

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, DevicesReserved, JobClosed, JobPlaced, Unknown
from libs.common.model import Member
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World


class ReservedDevicesStayReserved(Checker):
    """`kept` is the job for which a device of a node is reserved, from the facts alone.

    A reservation names devices of a node. It does not hold for a device that another node took over
    since, for example after a node had registered a device that it does not have.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kept: dict[tuple[str, str], str] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if not isinstance(fact, JobPlaced | JobClosed | DevicesReserved):
            return
        devices = _devices(fact.members) if not isinstance(fact, JobClosed) else []
        taken = [device for device in devices if self.kept.get(device, fact.job_id) != fact.job_id]
        if taken:
            what = "placed on" if isinstance(fact, JobPlaced) else "to have"
            self.fail(
                f"{fact.job_id} is {what} {taken[0][1]}, which is reserved for "
                f"{self.kept[taken[0]]}"
            )
        self.kept = {
            device: job_id for device, job_id in self.kept.items() if job_id != fact.job_id
        }
        if isinstance(fact, DevicesReserved):
            self.kept |= dict.fromkeys(devices, fact.job_id)


def _devices(members: Sequence[Member]) -> list[tuple[str, str]]:
    return [(member.node_id, hold.uuid) for member in members for hold in member.gpus]
