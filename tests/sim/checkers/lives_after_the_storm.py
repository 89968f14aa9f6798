"""After the last fault the cluster lives: it has a leader, its nodes come back, and jobs go on.

That every job ends is another rule (`every_job_ends.py`), whose bound is as long as all jobs take
one after the other. This one finds a cluster that stands still, and is only woken by a later fault
or by nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, is_leaving, live_jobs
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World

LOOK_S: Final = 0.5
# After the last fault: a new term that waits for the leases of the one before it.
LEADER_S: Final = 30.0
# The lease of a node that was away, its next start, and its registration.
NODES_S: Final = 45.0
# A job is in a state in which it waits for one process only: quota's or the scheduler's word, the
# agents' starts after a preflight, the proof that its devices are clean.
WITHIN_S: Final = {
    job_life.PENDING: 15.0,
    job_life.PLACED: 45.0,
    job_life.RELEASING: 30.0,
}
# Nothing runs and no fact of a job is written, although a job waits: the longest stop of a plan is
# a lease that goes on after a planned stop, or a reservation that begins later.
STILL_S: Final = 60.0
OF_JOBS: Final = (
    *(f.JobAdmitted, f.JobRejected, f.JobQueued, f.JobPlaced, f.JobStarted, f.JobFinished),
    *(f.JobReleased, f.JobRequeued, f.JobClosed, f.ElementBegun, f.JobSubmitted),
)


class LivesAfterTheStorm(Checker):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.moved_s = 0.0
        # Since when each live job has been in its state and attempt.
        self.since: dict[JobId, tuple[str, int, float]] = {}
        world.loop.call_later(LOOK_S, self._look)

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, OF_JOBS):
            self.moved_s = self.world.loop.now

    def _away(self) -> list[str]:
        """Return the nodes that take no jobs. One that leaves the cluster may wait for its own."""
        cluster = self.world.reference
        return [
            node.node_id
            for node in cluster.nodes.values()
            if not node.usable and not is_leaving(cluster, node.node_id)
        ]

    def _check_states(self, over_s: float) -> None:
        """Check how long each job has been in its state since the last fault."""
        now, before = self.world.loop.now, self.since
        self.since = {}
        for job in live_jobs(self.world.reference):
            state, attempt, since = before.get(job.job_id, ("", 0, now))
            if (state, attempt) != (job.state, job.attempt) or over_s <= 0:
                since = now
            self.since[job.job_id] = job.state, job.attempt, since
            if now - since > WITHIN_S.get(job.state, now):
                self.fail(
                    f"{job.job_id} (attempt {job.attempt}) has been {job.state} for "
                    f"{now - since:.1f} s, {over_s:.1f} s after the last fault"
                )

    def _look(self) -> None:
        world, now = self.world, self.world.loop.now
        over_s = now - world.plan.over_s
        waiting = next(live_jobs(world.reference), None)
        if over_s <= 0 or waiting is None or world.truth.living():
            self.moved_s = now
        if over_s > LEADER_S and not world.leading():
            self.fail(f"no scheduler leads {over_s:.1f} s after the last fault")
        if over_s > NODES_S and (away := self._away()):
            self.fail(f"{away} are not back {over_s:.1f} s after the last fault")
        self._check_states(over_s)
        if waiting is not None and now - self.moved_s > STILL_S:
            self.fail(
                f"nothing has moved for {now - self.moved_s:.1f} s, although {waiting.job_id} is "
                f"{waiting.state}"
            )
        if world.found is None:
            world.loop.call_later(LOOK_S, self._look)
