"""Facts about jobs from users, quota and the scheduler. Pure; part of the union in `facts/__init__.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, JobSpec, Member, TenantId


class JobSubmitted(Fact, frozen=True, tag="job.submitted"):
    """`request` is a digest of what was asked, where the job's id was made from the client's own key: who repeats it is recognised."""

    job_id: JobId
    spec: JobSpec
    tenant: TenantId = TenantId("default")
    user: str = ""
    request: str = ""


class CancelRequested(Fact, frozen=True, tag="cancel.requested"):
    """`grace_s` 0 is a kill. The signal is what the job hears first."""

    job_id: JobId
    signal: int = 15
    grace_s: int = 10
    user: str = ""


class JobAdmitted(Fact, frozen=True, tag="job.admitted"):
    job_id: JobId


class JobRejected(Fact, frozen=True, tag="job.rejected"):
    job_id: JobId
    reason: str


class UsageCharged(Fact, frozen=True, tag="usage.charged"):
    """One attempt's use, charged once: share (hundredths of a GPU) times milliseconds. Of a member whose node measured how long it
    ran, that time; of any other, from placement to close by the schedulers' wall clocks. Of the host likewise: thousandths of a CPU and
    MiB times milliseconds. `hour` since 1970 by quota's clock: until then what was used before has decayed (`ordering.py`); 0: not said.
    """

    job_id: JobId
    attempt: int
    tenant: TenantId
    share_ms: int
    cpu_ms: int = 0
    memory_ms: int = 0
    hour: int = 0


class JobQueued(Fact, frozen=True, tag="job.queued"):
    job_id: JobId


class JobPlaced(Fact, frozen=True, tag="job.placed"):
    """The whole decision: nothing is left to choose on the node. `port` is MASTER_PORT on the first member's node. `expires_ns` (of the
    wall clock) is when an allocation is over; 0: it is none.
    """

    job_id: JobId
    attempt: int
    members: tuple[Member, ...]
    port: int = 0
    expires_ns: int = 0


class JobStopOrdered(Fact, frozen=True, tag="job.stop_ordered"):
    job_id: JobId
    attempt: int
    reason: str
    signal: int = 15
    grace_ms: int = 10_000


class JobRequeued(Fact, frozen=True, tag="job.requeued"):
    """`attempt` is the one that ended. `counted` says whether it used up one of the user's retries.

    The next attempt is not placed before `not_before_ns` has passed, and not on a node that refused
    this one before `excluded_until_ns` has (the wall clock; 0: no such time).
    """

    job_id: JobId
    attempt: int
    reason: str
    counted: bool
    not_before_ns: int = 0
    excluded_until_ns: int = 0


class JobClosed(Fact, frozen=True, tag="job.closed"):
    """The end: `outcome` is completed, failed, cancelled or rejected. `exit_code` is what a shell would show."""

    job_id: JobId
    attempt: int
    outcome: str
    reason: str = ""
    exit_code: int | None = None
