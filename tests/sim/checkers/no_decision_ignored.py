"""No fact of the scheduler or of quota is ignored by the fold: what was decided ahead of the log is what the log comes to say."""

from libs.common.change import NOTHING, Change, Stamp
from libs.common.cluster import Cluster
from libs.common.facts import AnyFact, Commit, Unknown
from tests.sim.checkers.checker import Checker


class NoDecisionIgnored(Checker):
    def after(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit, change: Change) -> None:
        if change is NOTHING and stamp.writer in ("scheduler", "quota"):
            self.fail(f"commit {stamp.seq}: the log's fold ignores {fact}")
