"""A job of the fold, its current attempt, and that attempt's members."""

from collections.abc import Callable
from operator import attrgetter
from typing import Final

import msgspec

from libs.common import arrays, element_runs
from libs.common.facts.efficiency_facts import DeviceUse
from libs.common.life import job_life
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, JobSpec, NodeId, TenantId
from libs.common.state.diagnosis import Diagnosis
from libs.common.state.fabric import Preflight
from libs.common.state.ordering import Ordering
from libs.common.state.preemption import Preemption
from libs.common.state.refusals import Refusals


class MemberView(msgspec.Struct):
    """One node's part of the current attempt.

    `accounted` is the last incarnation of the agent that accounted for the member, at first the one
    of its placement; 0 for an ended job.
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
    # For a replica: whether it answers its health path, since when, and when it ended. Times are of
    # the node's wall clock; 0: never.
    ready: bool = False
    ready_ns: int = 0
    ended_ns: int = 0
    # For a replica with a standby: how often one was promoted, and the port on which it serves.
    promotions: int = 0
    port: int = 0
    # The digest of its image, if a registry has it.
    image: str = ""
    # The use of its devices, once it has ended, and since when they are all idle (0: they are not).
    use: DeviceUse | None = None
    idle_ns: int = 0


class Pin(msgspec.Struct, frozen=True):
    """The digest of a job's image, with which the member of this attempt and rank began.

    Later attempts use the same. Of the members of the attempt the lowest rank counts, so the order
    of their facts does not matter.
    """

    digest: str
    attempt: int
    rank: int


class Cancel(msgspec.Struct, frozen=True, order=True):
    """A user's request to cancel. Of several, the one with the shortest grace counts."""

    grace_s: int
    signal: int
    user: str = ""


class IdleWarning(msgspec.Struct, frozen=True):
    """The warning that all devices of an attempt have been idle for `idle_s`, since `since_ns`.

    `action` follows at `ends_ns` if they stay idle (0: nothing follows). `policy_ns` is the time of
    the policy that it follows; 0: an earlier version did not record it.
    """

    idle_s: int
    action: str
    since_ns: int
    ends_ns: int
    policy_ns: int = 0


class Elements(msgspec.Struct):
    """The elements of an array.

    `begun` counts those that have begun. `alive` maps those that have not ended to their numbers.
    `ended` counts the others by outcome. `exit_code` is the one of the first that failed. `early`
    are cancellations of elements that have not begun. `batches` are those of a short array, with
    the place of their first element; `begun` then counts elements, and `alive` holds batches.
    """

    begun: int = 0
    alive: dict[JobId, int] = {}
    ended: dict[str, int] = {}
    exit_code: int | None = None
    early: dict[JobId, Cancel] = {}
    batches: dict[JobId, int] = {}


class Batch(msgspec.Struct):
    """Elements of a short array that one job runs, one after the other.

    `place` is the place of the first in the array, `count` their number. `runs` are the results of
    those that have ended (`element_runs.py`). `begun` counts those that the node began.
    """

    place: int
    count: int
    runs: tuple[tuple[int, int], ...] = ()
    begun: int = 0

    def __post_init__(self) -> None:
        self.runs = element_runs.joined(self.runs)

    @property
    def done(self) -> int:
        """The number of elements that have a result."""
        return element_runs.count(self.runs)


class Job(msgspec.Struct):
    """A job and its current attempt.

    Times are nanoseconds of the writers' wall clocks, for people; no decision depends on them
    alone. `charged` is the last attempt that quota charged. `expires_ns` and `warned_ns` are the
    end of a placed allocation and the end of which its user was warned. `elements` is set on arrays
    only; `array` is set on an element, the id of its array. `gpu_errors` lists errors of devices
    that the job held. `drain_until_ns` ends the drain of a retired replica; 0: the replica is
    stopped at once. `been` are the nodes of its earlier attempts.
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
    expires_ns: int = 0
    warned_ns: int = 0
    charged: int = 0
    members: dict[NodeId, MemberView] = {}
    order: Ordering = msgspec.field(default_factory=Ordering)
    preemption: Preemption = msgspec.field(default_factory=Preemption)
    elements: Elements | None = None
    array: JobId = JobId("")
    gpu_errors: list[tuple[GpuId, str]] = []
    drain_until_ns: int = 0
    refusals: Refusals = Refusals()
    been: dict[NodeId, None] = {}
    preflight: Preflight | None = None
    # For a replica: what each "tenant user key" used of its attempts, in hundredths of a GPU times
    # milliseconds, until they are charged.
    used: dict[int, dict[str, int]] = {}
    pin: Pin | None = None
    # The `traceparent` of the request that submitted it; empty: its spans are not recorded.
    trace: str = ""
    # The use of devices in all attempts that have ended.
    use: DeviceUse | None = None
    # The warning that the devices of this attempt are idle.
    idle: IdleWarning | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    # For a job of a short array: its elements.
    batch: Batch | None = None

    @property
    def ref(self) -> AttemptRef:
        return AttemptRef(self.job_id, self.attempt)

    @property
    def waiting(self) -> int:
        """The number of jobs that it counts for while it waits.

        An array counts for its elements that have not begun.
        """
        if self.elements is None or self.spec.array is None:
            return 1
        return arrays.count(self.spec.array) - self.elements.begun

    @property
    def has_room(self) -> bool:
        """For an array: True if one more of its elements may be alive."""
        if self.elements is None or self.spec.array is None or not self.spec.array.at_once:
            return True
        return len(self.elements.alive) < self.spec.array.at_once


_state_of: Final[Callable[[MemberView], str]] = attrgetter("state")
_OVER: Final = frozenset(job_life.MEMBER_OVER)
_ENDED: Final = frozenset(job_life.MEMBER_ENDED)


def idle_since_ns(job: Job) -> int:
    """Return since when all devices of the attempt are idle; 0 if one of its members works.

    Members that have ended do not count.
    """
    times = [member.idle_ns for member in job.members.values() if member.state not in _ENDED]
    return max(times) if times and all(times) else 0


def ended_members(job: Job) -> int:
    """Return the number of members whose process has ended, or never began."""
    return sum(member.state in _ENDED for member in job.members.values())


def has_mixed_images(job: Job) -> bool:
    """Return whether members began with other digests of the image than the one that counts.

    That can happen only in the attempt in which the tag is resolved. Later ones are told the
    digest.
    """
    return (
        job.pin is not None
        and job.pin.attempt == job.attempt
        and any(member.image not in ("", job.pin.digest) for member in job.members.values())
    )


def has_ended_member(job: Job) -> bool:
    """Return whether the process of a member has ended, or never began."""
    return not _ENDED.isdisjoint(map(_state_of, job.members.values()))


def was_on(job: Job, node_id: NodeId) -> bool:
    """Return whether an attempt of the job was ever placed on the node.

    A node can know nothing about other jobs.
    """
    return node_id in job.members or node_id in job.been


def waits_for(job: Job) -> str:
    """Return what a live job waits for; empty for an ended one."""
    held = job.spec.allocation is not None and job.state == job_life.RUNNING
    return job_life.HELD if held else job_life.WAITS_FOR.get(job.state, "")


def all_over(job: Job) -> bool:
    """Return whether no part of the attempt can be alive.

    Every member has released, refused or was lost, and every element has ended.
    """
    return (job.elements is None or not job.elements.alive) and _OVER.issuperset(
        map(_state_of, job.members.values())
    )


def is_ready(job: Job) -> bool:
    """Return whether this replica may get requests: it is ready and no end was requested."""
    member = next(iter(job.members.values()), None)
    return (
        member is not None
        and member.ready
        and member.state == job_life.STARTED
        and job.cancel is None
        and not job.stop_reason
    )


def is_draining(job: Job, wall_ns: int) -> bool:
    """Return whether this replica drains: it gets no new request, but may finish its answers."""
    return (
        job.drain_until_ns > wall_ns
        and not job.stop_reason
        and any(
            member.ready_ns and member.state == job_life.STARTED for member in job.members.values()
        )
    )
