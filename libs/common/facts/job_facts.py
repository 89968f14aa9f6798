"""Facts about jobs from users, quota and the scheduler.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, JobSpec, Member, NodeId, TenantId
from libs.common.reasons import EXITED


class JobSubmitted(Fact, frozen=True, tag="job.submitted"):
    """A job was submitted.

    `request`: digest of the request if the job's id was made from an Idempotency-Key, to recognise
    a repetition.
    """

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
    """One attempt's use, charged once: share (hundredths of a GPU) times milliseconds.

    The time is what the member's node measured, or else the span from placement to close by the
    schedulers' wall clocks. Host use is in thousandths of a CPU and MiB, times milliseconds. `hour`
    since 1970 by quota's clock: earlier use has decayed until then (`ordering.py`); 0: unknown.
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
    """The whole decision: nothing is left to choose on the node.

    `port` is MASTER_PORT on the first member's node. `expires_ns` (of the wall clock) is when an
    allocation is over; 0: it is none.
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

    The next attempt is placed after `not_before_ns`. Nodes that refused this attempt are excluded
    until `excluded_until_ns`. Both are times of the wall clock; 0: none.
    """

    job_id: JobId
    attempt: int
    reason: str
    counted: bool
    not_before_ns: int = 0
    excluded_until_ns: int = 0


class JobClosed(Fact, frozen=True, tag="job.closed"):
    """The end: `outcome` is completed, failed, cancelled or rejected.

    `exit_code` is what a shell would show.
    """

    job_id: JobId
    attempt: int
    outcome: str
    reason: str = ""
    exit_code: int | None = None


class JobStarted(Fact, frozen=True, tag="job.started"):
    """`isolation` says how its parts of devices are kept apart from others': mps, cu_mask (of an
    AMD device), simulated (not at all, where `mps` was asked for); empty: it did not ask for that,
    or the record is of before this field.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    pid: int = 0
    isolation: str = ""


class JobFinished(Fact, frozen=True, tag="job.finished"):
    """The member's main process ended.

    `exit_code` None with `signal` 0 means: ended unseen (`reason` says how).

    `run_ms` is how long it ran, by its node's boot clock, never 0 when it ran at all; 0: nobody
    measured it.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    exit_code: int | None
    signal: int = 0
    reason: str = EXITED
    detail: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    dropped_bytes: int = 0
    run_ms: int = 0


class JobRefused(Fact, frozen=True, tag="job.refused"):
    """The node did not start the member, and never will for this attempt."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    reason: str


class JobReleased(Fact, frozen=True, tag="job.released"):
    """The member's devices are back: `checks` names what was proved.

    What was not clean is in GpuFaulted beside it.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    checks: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
