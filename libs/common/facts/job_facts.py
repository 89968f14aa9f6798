"""Facts about jobs and their members, from users, quota, the scheduler and the agents.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.efficiency_facts import ChargePart, DeviceUse
from libs.common.facts.fact import Fact
from libs.common.facts.usage_facts import ChargeLine
from libs.common.model import JobId, JobSpec, Member, NodeId, TenantId
from libs.common.reasons import EXITED


class JobSubmitted(Fact, frozen=True, tag="job.submitted"):
    """A job was submitted.

    `request`: digest of the request if the job's id was made from an Idempotency-Key, to recognise
    a repetition. `trace`: the `traceparent` of the request (docs/spans.md); empty if it is not
    traced.
    """

    job_id: JobId
    spec: JobSpec
    tenant: TenantId = TenantId("default")
    user: str = ""
    request: str = ""
    trace: str = ""


class CancelRequested(Fact, frozen=True, tag="cancel.requested"):
    """A user asked to cancel a job.

    The job receives `signal` first, and KILL after `grace_s` seconds. `grace_s` 0 kills at once.
    """

    job_id: JobId
    signal: int = 15
    grace_s: int = 10
    user: str = ""


class JobAdmitted(Fact, frozen=True, tag="job.admitted"):
    """Quota admitted the job."""

    job_id: JobId


class JobRejected(Fact, frozen=True, tag="job.rejected"):
    """Quota rejected the job. It has ended."""

    job_id: JobId
    reason: str


class UsageCharged(Fact, frozen=True, tag="usage.charged"):
    """Quota charged the use of one attempt to its tenant, once.

    `share_ms` is in hundredths of a GPU times milliseconds. The time is the one that each member's
    node measured, or else the time from placement to end by the schedulers' wall clocks. Host use
    is in thousandths of a CPU and in MiB, times milliseconds. `hour` is the hour since 1970 by
    quota's clock, up to which earlier use has decayed (`ordering.py`); 0: unknown. `user` is the
    job's. For a replica, `lines` are the parts of `share_ms` that requests caused; it was idle for
    the rest. `parts` are those of each model of GPU at each price. In `busy_share_ms` the devices
    computed and in `idle_share_ms` they did not; the rest was not measured. `use` is that of all
    members. The attempt was placed at `began_ns` and ended at `ended_ns`, by the wall clocks of the
    schedulers (0: unknown), on `gpus` devices.
    """

    job_id: JobId
    attempt: int
    tenant: TenantId
    share_ms: int
    cpu_ms: int = 0
    memory_ms: int = 0
    hour: int = 0
    user: str = ""
    lines: tuple[ChargeLine, ...] = ()
    began_ns: int = 0
    ended_ns: int = 0
    gpus: int = 0
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    use: DeviceUse | None = None
    parts: tuple[ChargePart, ...] = ()


class JobQueued(Fact, frozen=True, tag="job.queued"):
    """The scheduler put an admitted job into its queue."""

    job_id: JobId


class JobPlaced(Fact, frozen=True, tag="job.placed"):
    """The scheduler placed an attempt on nodes and devices.

    The fact is the complete decision: a node has nothing left to choose. `port` is MASTER_PORT on
    the first member's node. `expires_ns` (wall clock) is the end of an allocation; 0 for other
    jobs. `lender` is the waiting job whose reserved nodes the attempt uses, until a job that stands
    before it could start; empty for most.
    """

    job_id: JobId
    attempt: int
    members: tuple[Member, ...]
    port: int = 0
    expires_ns: int = 0
    lender: JobId = JobId("")


class JobStopOrdered(Fact, frozen=True, tag="job.stop_ordered"):
    """The scheduler ordered an attempt to stop: `signal` first, KILL after `grace_ms`."""

    job_id: JobId
    attempt: int
    reason: str
    signal: int = 15
    grace_ms: int = 10_000


class JobRequeued(Fact, frozen=True, tag="job.requeued"):
    """An attempt ended and the job waits for its next attempt.

    `attempt` is the one that ended. `counted`: it used up one of the user's retries. The next
    attempt is placed after `not_before_ns`. Nodes that refused this attempt are excluded until
    `excluded_until_ns`. Both are times of the wall clock; 0: none. For a batch of elements,
    `elements` is the place of the first one that the next attempt runs.
    """

    job_id: JobId
    attempt: int
    reason: str
    counted: bool
    not_before_ns: int = 0
    excluded_until_ns: int = 0
    elements: int = 0


class JobClosed(Fact, frozen=True, tag="job.closed"):
    """The job ended.

    `outcome` is completed, failed, cancelled or rejected. `exit_code` is the one that a shell
    would show. For a batch of elements that was placed, `elements` counts those with a result.
    """

    job_id: JobId
    attempt: int
    outcome: str
    reason: str = ""
    exit_code: int | None = None
    elements: int = 0


class JobStarted(Fact, frozen=True, tag="job.started"):
    """The agent started a member of an attempt.

    `isolation` is how the member's fractions of devices are isolated: mps, cu_mask (AMD), or
    simulated (no isolation, although `mps` was requested). Empty: the job did not request any, or
    the fact is older than this field. `image` is the digest under which a registry has the
    member's image (`image_in_registry`), or the engine's id of an image that no registry has.
    `image_in_registry` is false in facts that are older than the field.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    pid: int = 0
    isolation: str = ""
    image: str = ""
    image_in_registry: bool = False


class JobFinished(Fact, frozen=True, tag="job.finished"):
    """The main process of a member ended.

    `exit_code` None with `signal` 0: the agent did not observe the end; `reason` gives the cause.
    `run_ms` is the run time by the node's boot clock, at least 1 if the process ran; 0: not
    measured. `use` is that of the member's devices; None: no sample of them was taken.
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
    use: DeviceUse | None = None


class JobRefused(Fact, frozen=True, tag="job.refused"):
    """The agent refused to start a member. It will never start it for this attempt."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    reason: str


class JobReleased(Fact, frozen=True, tag="job.released"):
    """The agent released a member's devices.

    `checks` names the release checks that the devices passed. GpuFaulted records a device that was
    not clean.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    checks: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
