"""A job of the fold, its current attempt, and that attempt's members."""

import msgspec

from libs.common import arrays
from libs.common.life import job_life
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, JobSpec, NodeId, TenantId
from libs.common.state.ordering import Ordering
from libs.common.state.preemption import Preemption
from libs.common.state.refusals import Refusals


class MemberView(msgspec.Struct):
    """One node's part of the current attempt.

    `accounted` is the last incarnation that accounted for it, at first the one that it was placed
    on; 0 of an ended job.
    """

    node_id: NodeId
    incarnation: int
    rank: int
    gpus: tuple[GpuHold, ...]
    accounted: int
    state: str = job_life.PLACED
    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    detail: str = ""
    run_ms: int = 0
    # Of a replica: whether it answers its health path, since when, and when it ended (the node's
    # wall clock; 0 = never).
    ready: bool = False
    ready_ns: int = 0
    ended_ns: int = 0


class Cancel(msgspec.Struct, frozen=True, order=True):
    """What a user asked for; of several, the shortest grace counts."""

    grace_s: int
    signal: int
    user: str = ""


class Elements(msgspec.Struct):
    """Of an array: how many of its elements have begun, the numbers of those that have not ended,
    how many ended how, the exit code of the first that failed, and which are cancelled before they
    have begun.
    """

    begun: int = 0
    alive: dict[JobId, int] = {}
    ended: dict[str, int] = {}
    exit_code: int | None = None
    early: dict[JobId, Cancel] = {}


class Job(msgspec.Struct):
    """A job and its current attempt.

    Times are nanoseconds of the writers' wall clocks, for people; nothing is decided by them alone.
    """

    job_id: JobId
    spec: JobSpec
    tenant: TenantId
    user: str
    seq: int
    state: str = job_life.PENDING
    admitted: bool = False
    attempt: int = 1
    retries_used: int = 0
    reason: str = ""
    exit_code: int | None = None
    request: str = ""
    submitted_ns: int = 0
    queued_ns: int = 0
    placed_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    cancel: Cancel | None = None
    stop_reason: str = ""
    stop_signal: int = 0
    stop_grace_ms: int = 0
    port: int = 0
    placed_seq: int = 0
    # Of a placed allocation: when it is over, and of which such moment was warned (the wall clock).
    expires_ns: int = 0
    warned_ns: int = 0
    charged: int = 0  # the last attempt that quota charged
    members: dict[NodeId, MemberView] = {}
    order: Ordering = msgspec.field(default_factory=Ordering)
    preemption: Preemption = msgspec.field(default_factory=Preemption)
    # Of an array; of one of its elements, the array.
    elements: Elements | None = None
    array: JobId = JobId("")
    # Errors of devices that it had: which device, which error.
    gpu_errors: list[tuple[GpuId, str]] = []
    # End of the drain of a retired replica (the wall clock). 0: the replica is stopped at once.
    drain_until_ns: int = 0
    refusals: Refusals = Refusals()
    # The nodes of its earlier attempts.
    been: dict[NodeId, None] = {}

    @property
    def ref(self) -> AttemptRef:
        return AttemptRef(self.job_id, self.attempt)

    @property
    def waiting(self) -> int:
        """As how many jobs it counts while it waits: an array as those of its elements that have
        not begun.
        """
        if self.elements is None or self.spec.array is None:
            return 1
        return arrays.count(self.spec.array) - self.elements.begun

    @property
    def has_room(self) -> bool:
        """Of an array: whether one more of its elements may be alive."""
        if self.elements is None or self.spec.array is None or not self.spec.array.at_once:
            return True
        return len(self.elements.alive) < self.spec.array.at_once


def was_on(job: Job, node_id: NodeId) -> bool:
    """Whether an attempt of the job was ever placed there: about other jobs the node can know
    nothing.
    """
    return node_id in job.members or node_id in job.been


def waits_for(job: Job) -> str:
    """What a job that has not ended waits for, and on whom; empty for one that has."""
    held = job.spec.allocation is not None and job.state == job_life.RUNNING
    return job_life.HELD if held else job_life.WAITS_FOR.get(job.state, "")


def all_over(job: Job) -> bool:
    """Every member of the attempt has released, refused or was lost, every element has ended:
    nothing of it can be alive.
    """
    return not (job.elements is not None and job.elements.alive) and all(
        member.state in job_life.MEMBER_OVER for member in job.members.values()
    )


def is_ready(job: Job) -> bool:
    """Whether requests may go to this replica: it answers, and nobody has asked it to end."""
    member = next(iter(job.members.values()), None)
    return (
        member is not None
        and member.ready
        and member.state == job_life.STARTED
        and job.cancel is None
        and not job.stop_reason
    )


def is_draining(job: Job, wall_ns: int) -> bool:
    """Whether this replica is to end and may still finish answers: it gets no new request and is
    not stopped yet.
    """
    return (
        job.drain_until_ns > wall_ns
        and not job.stop_reason
        and any(
            member.ready_ns and member.state == job_life.STARTED for member in job.members.values()
        )
    )
