"""A placement names as many different nodes as the job asks for, each with the devices and the share that it asks for."""

from libs.common.change import Stamp
from libs.common.cluster import Cluster
from libs.common.facts import AnyFact, Commit, JobPlaced, Unknown
from tests.sim.checkers.checker import Checker


class GangWholeOrNotAtAll(Checker):
    def before(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit) -> None:
        if not isinstance(fact, JobPlaced):
            return
        spec = cluster.jobs[fact.job_id].spec
        nodes = {member.node_id for member in fact.members}
        whole = len(fact.members) == len(nodes) == spec.nodes
        equal = all(len(member.gpus) == spec.gpus and all(hold.share == spec.gpu_share for hold in member.gpus) for member in fact.members)
        if not (whole and equal):
            self.fail(f"{fact.job_id} asks for {spec.nodes} x {spec.gpus} x {spec.gpu_share} and was given {fact.members}")
