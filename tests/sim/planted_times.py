"""Planted bugs about time, like those of `planted.py`: a span uses the wrong clock or the wrong
start.
"""

from collections.abc import Sequence

import pytest

from libs.common import facts as f
from libs.common.change import IGNORED
from libs.common.facts import AnyFact
from libs.common.folds import job_fold
from libs.common.life.job_life import RUNNING
from services.scheduler.service import Scheduler


def a_placement_is_as_old_as_its_decision(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the scheduler counts from its decision, but readers of the log from the log's
    own stamp.
    """
    patch.setattr(job_fold, "dated", lambda cluster, fact, stamp: IGNORED)


def a_time_limit_is_counted_between_two_wall_clocks(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the scheduler compares its own wall clock with a placement that another process
    stamped.
    """
    own = Scheduler.decide

    def by_wall(self: Scheduler, now_ns: int) -> Sequence[AnyFact]:
        leads = (
            self.state.epoch != 0
            and self.state.cluster.epoch == self.state.epoch
            and not self.stopping
        )
        for job in self.state.cluster.jobs.values() if leads else ():
            ran_s = (now_ns - job.placed_ns) / 1e9
            if job.state == RUNNING and not job.stop_reason and 0 < job.spec.time_limit_s <= ran_s:
                return (
                    f.JobStopOrdered(job_id=job.job_id, attempt=job.attempt, reason="time_limit"),
                )
        return own(self, now_ns)

    patch.setattr(Scheduler, "decide", by_wall)
