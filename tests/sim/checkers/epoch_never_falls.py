"""The scheduler's commits carry the epoch of the current term; older ones are refused."""

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, TermBegan, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker


class EpochNeverFalls(Checker):
    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if stamp.writer != "scheduler" or isinstance(commit.facts[0], TermBegan):
            return
        if stamp.epoch != cluster.epoch:
            self.fail(
                f"commit {stamp.seq} of the scheduler carries epoch {stamp.epoch} in epoch "
                f"{cluster.epoch}"
            )
