"""The crashes of a model's replicas: the last one in words, and when the next replica begins.

Pure. Tests: tests/unit/test_failed_start.py.
"""

from typing import Final

from libs.common.life import failed_start
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Model
from libs.common.state.job import Job
from libs.common.state.ordering import SECOND_NS

# The first crash is replaced at once, the next after 1 s, 2 s, 4 s ...
BACKOFF_MAX_S: Final = 300
BACKOFF_STEPS_MAX: Final = 10


def backoff_until_ns(model: Model) -> int:
    """Return when the next replica may begin after the crashes so far."""
    if model.crashes < 2:
        return 0
    return (
        model.last_crash_ns
        + min(BACKOFF_MAX_S, 1 << min(model.crashes - 2, BACKOFF_STEPS_MAX)) * SECOND_NS
    )


def crashed_replica(model: Model) -> JobId:
    """Return the last replica that crashed; the fold writes it at the end of `last_crash`."""
    return JobId(model.last_crash.rpartition(", ")[2])


def last_crash(cluster: Cluster, model: Model) -> str:
    """Return how the last replica crashed, with its id at the end: better than the fold's words if
    its process never began.
    """
    replica = crashed_replica(model)
    job = cluster.jobs.get(replica)
    words = never_began(job) if job is not None else ""
    return f"{words}, {replica}" if words else model.last_crash


def never_began(job: Job) -> str:
    """Return why the process of a member never began; empty if all began."""
    found = (
        failed_start.words(member.reason, member.detail, member.node_id, member.exit_code)
        for member in sorted(job.members.values(), key=lambda member: member.rank)
    )
    return next(filter(None, found), "")
