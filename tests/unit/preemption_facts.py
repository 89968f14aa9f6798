"""Facts of preemption for tests: preemptible jobs that run, preempted jobs, reserved devices."""

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId
from tests.given import (
    member,
    placed,
    started,
    waiting,
)

REQUEUED = {"reason": "preempted", "counted": False}


def running(job: str, *gpus: int, node: str = "a", **fields: object) -> list[AnyFact]:
    """Return the facts of a preemptible job that runs on these devices."""
    asked = {"gpus": len(gpus), "priority": 10, "preemptible": True} | fields
    return [*waiting(job, **asked), placed(job, member(node, *gpus)), started(job, node)]


def preempted(
    job: str, by: str, attempt: int = 1, lost_share_ms: int = 0, signal: int = 15, grace_s: int = 10
) -> f.JobPreempted:
    return f.JobPreempted(
        job_id=JobId(job),
        attempt=attempt,
        by=JobId(by),
        signal=signal,
        grace_ms=1_000 * grace_s,
        lost_share_ms=lost_share_ms,
    )


def reserved(job: str, *members: object, attempt: int = 1) -> f.DevicesReserved:
    return f.DevicesReserved(job_id=JobId(job), attempt=attempt, members=members)  # type: ignore[arg-type]


def gang_on(*nodes: str, **fields: object) -> list[AnyFact]:
    members = [member(node, 0, 1, rank=rank) for rank, node in enumerate(nodes)]
    begun = [started("gang", node) for node in nodes]
    return [
        *waiting("gang", nodes=len(nodes), gpus=2, priority=10, **fields),
        placed("gang", *members),
        *begun,
    ]
