"""Facts about preemption: attempts that end for another job, reserved devices, checkpoints.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, Member, NodeId


class JobPreempted(Fact, frozen=True, tag="job.preempted"):
    """The scheduler preempted an attempt to make room for the job `by`.

    If `by` is the job itself, it restarts with more nodes. The attempt receives `signal`, may save
    its work, and is killed after `grace_ms` at the latest. The job then waits again and keeps all
    its retries. `lost_share_ms` is the work since its last checkpoint, in hundredths of a GPU times
    milliseconds. `sliced`: its time slice is over (`JobQueue.time_slice_s`), and it waits behind
    the jobs that wait.
    """

    job_id: JobId
    attempt: int
    by: JobId
    signal: int = 15
    grace_ms: int = 10_000
    lost_share_ms: int = 0
    sliced: bool = False


class DevicesReserved(Fact, frozen=True, tag="devices.reserved"):
    """The scheduler reserved devices for an attempt.

    Only this attempt may use them once they are free, until it is placed or ended or the next such
    fact about it. Without members: the reservation is over.
    """

    job_id: JobId
    attempt: int
    members: tuple[Member, ...] = ()


class JobCheckpointed(Fact, frozen=True, tag="job.checkpointed"):
    """A job reported that it saved its work.

    `at_ns` is the time by its node's wall clock; 0: the time of this commit. `asked`: the job saved
    its work because it was told to stop.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    asked: bool = False
    at_ns: int = 0
