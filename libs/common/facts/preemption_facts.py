"""Facts about jobs that make room for others: who does, what is kept free for whom, and how far a
job has saved its work.

Pure; part of the union in `facts.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, Member, NodeId


class JobPreempted(Fact, frozen=True, tag="job.preempted"):
    """The attempt ends to make room for job `by`, or, where that is the job itself, to begin anew
    with more nodes: it hears `signal`, may save its work, and is killed after `grace_ms` at the
    latest.

    It waits again then, and none of its retries is used up. `lost_share_ms`: what it would have to
    do again, by its last checkpoint (hundredths of a GPU times milliseconds). `sliced`: it has had
    its turn (`JobQueue.time_slice_s`), and waits behind those that wait.
    """

    job_id: JobId
    attempt: int
    by: JobId
    signal: int = 15
    grace_ms: int = 10_000
    lost_share_ms: int = 0
    sliced: bool = False


class DevicesReserved(Fact, frozen=True, tag="devices.reserved"):
    """These devices are for this attempt alone, as soon as they are free; until it is placed or
    ended, or until this is said again.

    Without members: no more.
    """

    job_id: JobId
    attempt: int
    members: tuple[Member, ...] = ()


class JobCheckpointed(Fact, frozen=True, tag="job.checkpointed"):
    """The job says that it has saved its work, at `at_ns` of its node's wall clock (0: when this
    was recorded); `asked`: after it was told to stop.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    asked: bool = False
    at_ns: int = 0
