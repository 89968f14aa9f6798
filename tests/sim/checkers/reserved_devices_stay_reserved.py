"""Devices reserved for one job are not placed for another one.

The reservation ends when its job is placed or has ended, when it is withdrawn, or when the job's
preflight finds a suspect there.
"""

from collections.abc import Sequence

from libs.common.change import Stamp
from libs.common.facts import (
    AnyFact,
    Commit,
    DevicesReserved,
    JobClosed,
    JobPlaced,
    PreflightEnded,
    Unknown,
)
from libs.common.facts.fabric_facts import SUSPECT
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
        if isinstance(fact, JobPlaced | DevicesReserved):
            self._check(fact)
        elif not isinstance(fact, JobClosed) and not (
            isinstance(fact, PreflightEnded) and _frees_the_place(cluster, fact)
        ):
            return
        self.kept = {
            device: job_id for device, job_id in self.kept.items() if job_id != fact.job_id
        }
        if isinstance(fact, DevicesReserved):
            self.kept |= dict.fromkeys(_devices(fact.members), fact.job_id)

    def _check(self, fact: JobPlaced | DevicesReserved) -> None:
        for device in _devices(fact.members):
            if self.kept.get(device, fact.job_id) != fact.job_id:
                what = "placed on" if isinstance(fact, JobPlaced) else "to have"
                text = f"{fact.job_id} is {what} {device[1]}, which is reserved for "
                self.fail(text + self.kept[device])


def _frees_the_place(cluster: Cluster, fact: PreflightEnded) -> bool:
    """Return whether a preflight ends its gang's reservation, because the place has a suspect."""
    test, job = cluster.fabric.tests.get(fact.test), cluster.jobs.get(fact.job_id)
    if test is None or job is None or fact.outcome != SUSPECT:
        return False
    return test.job_id == fact.job_id and job.attempt == fact.attempt


def _devices(members: Sequence[Member]) -> list[tuple[str, str]]:
    return [(member.node_id, hold.uuid) for member in members for hold in member.gpus]
