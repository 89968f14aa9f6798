"""What is reserved for a job is placed for no other one, until that job is placed or has ended, or
the reservation was taken back.
"""

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, DevicesReserved, JobClosed, JobPlaced, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World


class NobodyTakesReservedDevices(Checker):
    """`kept` is by device the job for which it is reserved, from the facts alone."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kept: dict[str, str] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, JobPlaced):
            taken = [
                hold.uuid
                for member in fact.members
                for hold in member.gpus
                if self.kept.get(hold.uuid, fact.job_id) != fact.job_id
            ]
            if taken:
                self.fail(
                    f"{fact.job_id} is placed on {taken[0]}, which is reserved for "
                    f"{self.kept[taken[0]]}"
                )
        if isinstance(fact, JobPlaced | JobClosed | DevicesReserved):
            self.kept = {
                uuid: job_id for uuid, job_id in self.kept.items() if job_id != fact.job_id
            }
        if isinstance(fact, DevicesReserved):
            both = [
                hold.uuid
                for member in fact.members
                for hold in member.gpus
                if hold.uuid in self.kept
            ]
            if both:
                self.fail(f"{both[0]} is reserved for {fact.job_id} and for {self.kept[both[0]]}")
            self.kept |= {hold.uuid: fact.job_id for member in fact.members for hold in member.gpus}
