"""Builds the facts that the scheduler records in place of a decision that no commit can hold. Pure.

The bounds on a submission (`model.DEVICES_MAX`) and on victims (`preemption/choose.py`) keep every
decision within a commit unless names of nodes and devices are extraordinarily long. This file holds
for those, and for jobs of logs that are older than the bounds.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.facts import AnyFact, DevicesReserved, JobClosed, JobPlaced, JobStopOrdered
from libs.common.life import job_life
from services.scheduler.state.state import State

TOO_LARGE: Final = "too large: the log cannot record its placement: ask for fewer devices"


def smaller(state: State, facts: Sequence[AnyFact]) -> Sequence[AnyFact]:
    """Return the facts to record instead: a waiting job is rejected, a stop goes without its
    reservation.
    """
    first = facts[0]
    if isinstance(first, JobStopOrdered):
        return (first,)
    if not isinstance(first, JobPlaced | DevicesReserved):
        raise AssertionError(
            f"{len(facts)} facts beginning with {type(first).__name__} fit into no commit"
        )
    job = state.cluster.jobs[first.job_id]
    if job.state != job_life.QUEUED:
        return ()  # a job that runs with fewer nodes than it could have goes on with them
    return (
        JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.REJECTED, reason=TOO_LARGE
        ),
    )
