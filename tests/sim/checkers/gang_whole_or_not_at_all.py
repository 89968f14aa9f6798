"""A placement has a valid number of different nodes, each with the requested devices and share."""

from libs.common.change import Stamp
from libs.common.devices import mig
from libs.common.facts import AnyFact, Commit, JobPlaced, Unknown
from libs.common.model import WHOLE_GPU, JobSpec
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.machine import CARD, GPU_MEMORY


class GangWholeOrNotAtAll(Checker):
    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if not isinstance(fact, JobPlaced):
            return
        spec = cluster.jobs[fact.job_id].spec
        nodes = {member.node_id for member in fact.members}
        whole = len(fact.members) == len(nodes) and spec.nodes <= len(nodes) <= max(
            spec.nodes, spec.nodes_max
        )
        share = share_of(spec)
        equal = all(
            len(member.gpus) == spec.gpus and all(hold.share == share for hold in member.gpus)
            for member in fact.members
        )
        if not (whole and equal):
            self.fail(
                f"{fact.job_id} asks for {spec.nodes}..{spec.nodes_max} x {spec.gpus} x "
                f"{spec.gpu_share} and was given {fact.members}"
            )


def share_of(spec: JobSpec) -> int:
    """Return the share of each device in hundredths; all devices of the simulation are of one
    model.
    """
    if spec.mig_profile:
        return mig.share(CARD, spec.mig_profile)
    return (
        -(-WHOLE_GPU * spec.gpu_memory_bytes // GPU_MEMORY)
        if spec.gpu_memory_bytes
        else spec.gpu_share
    )
