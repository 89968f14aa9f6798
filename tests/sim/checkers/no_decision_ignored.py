"""The fold ignores no fact of the scheduler or of quota: the log confirms each decision.

No stop is ordered that changes nothing, because it would be ordered again without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class NoDecisionIgnored(Checker):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.stop: tuple[str, int, int] | None = None

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        self.stop = _stop(cluster, fact) if isinstance(fact, f.JobStopOrdered) else None

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if change is IGNORED and stamp.writer in ("scheduler", "quota"):
            self.fail(f"commit {stamp.seq}: the log's fold ignores {fact}")
        if (
            self.stop is not None
            and isinstance(fact, f.JobStopOrdered)
            and self.stop == _stop(cluster, fact)
        ):
            self.fail(f"commit {stamp.seq}: nothing comes of {fact}")


def _stop(cluster: Cluster, fact: f.JobStopOrdered) -> tuple[str, int, int]:
    job = cluster.jobs[fact.job_id]
    return job.stop_reason, job.stop_signal, job.stop_grace_ms
