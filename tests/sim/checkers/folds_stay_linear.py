"""Each fact costs a reader a bounded number of steps, whatever a tenant submits.

Each dependency that the fact makes or ends adds a few steps.

Counted only in runs with a greedy tenant (`meter.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobSubmitted, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.greed import is_greedy

if TYPE_CHECKING:
    from tests.sim.world import World

# Lines of Python: of one fact about a job, and of each dependency. About twice what was seen.
LINES_MAX: Final = 400
LINES_EACH: Final = 14


class FoldsStayLinear(Checker):
    """`size`: dependencies that the fact, which is folded now, makes or ends."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.size = 0

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        job = cluster.jobs.get(getattr(fact, "job_id", ""))  # type: ignore[call-overload]
        if job is not None:
            self.size = len(job.order.waits) + len(cluster.dependents.get(job.job_id, ()))
        else:
            self.size = len(fact.spec.after) if isinstance(fact, JobSubmitted) else 0

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        lines = self.world.meter.lines
        if is_greedy(getattr(fact, "job_id", "")) and lines > LINES_MAX + LINES_EACH * self.size:
            self.fail(
                f"{lines} lines to fold {type(fact).__name__} of {fact.job_id} with "
                f"{self.size} dependencies"
            )  # type: ignore[union-attr]
