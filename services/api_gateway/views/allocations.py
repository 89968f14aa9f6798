"""Allocations and holds as the API shows them: one row for each part of a device that an attempt
holds, from the ledger.

Pure. A row exists from the placement until the node has proved that nothing of the attempt is left
on the device, whatever the job's state. A job is one kind of allocation: it holds its devices until
its command ends. An allocation without a command holds them until its time is over.
"""

from collections.abc import Iterator

import msgspec

from libs.common.devices.visibility import visibility
from libs.common.life import job_life
from libs.common.model import GPU_HOUR_SHARE_MS, attempt_of, job_of
from libs.common.state.cluster import Cluster, GpuView, Job, MemberView, node_gpus
from libs.common.state.ordering import DEFAULT_QUEUE
from services.api_gateway.times import rfc3339


class HoldShown(msgspec.Struct):
    """A part of a device that an attempt holds. `share` is in hundredths of the device.

    If the attempt is not its job's current one, because its node has not released it yet, `rank`
    and `placed_at` are null. `kind` is job, replica or allocation. `expires_at` is set for
    allocations.
    """

    id: str
    gpu_uuid: str
    gpu_index: int
    node_id: str
    job_id: str
    attempt: int
    share: int
    tenant: str
    user: str
    user_id: str
    job_state: str
    rank: int | None
    placed_at: str | None
    kind: str
    expires_at: str | None


class HeldGpu(msgspec.Struct):
    uuid: str
    index: int
    model: str
    share: int


class HeldNode(msgspec.Struct):
    """The held devices of one node. A process with the variables `env` sees only these devices."""

    node_id: str
    address: str
    gpus: list[HeldGpu]
    env: dict[str, str]


class HoldingPolicy(msgspec.Struct):
    """The rules by which devices were placed, and by which the holding ends.

    `expires_s` is as requested; null for a job, which ends with its command.
    """

    queue: str
    priority: int
    placement: str
    scheduling_policy: str
    isolation: str
    on_control_loss: str
    expires_s: int | None
    warn_s: int | None
    grace_s: int


class HoldingStatistics(msgspec.Struct):
    """The use of an allocation.

    `held_s` counts the current attempt from its placement; `gpu_hours` counts all attempts.
    """

    held_s: float
    gpu_hours: float


class AllocationShown(msgspec.Struct):
    """Held devices; `nodes` are set from the placement on.

    `kind` is job, replica or allocation. `warned`: the warning before `expires_at` was recorded. An
    allocation that ended well is completed, with the `reason` released or expired.
    """

    id: str
    kind: str
    name: str
    state: str
    reason: str
    tenant: str
    user: str
    user_id: str
    labels: dict[str, str]
    policy: HoldingPolicy
    nodes: list[HeldNode]
    submitted_at: str | None
    placed_at: str | None
    expires_at: str | None
    ended_at: str | None
    warned: bool
    statistics: HoldingStatistics


def holds(cluster: Cluster) -> Iterator[tuple[GpuView, str]]:
    """Yield every hold, as device and attempt key, by the devices' first registration."""
    return ((view, key) for view in cluster.gpus.values() for key in view.holds)


def id_of(hold: tuple[GpuView, str]) -> str:
    view, key = hold
    return f"{view.gpu.uuid}/{key}"


def holder_of(cluster: Cluster, hold: tuple[GpuView, str]) -> Job | None:
    """Return the job that holds the part; None if it left the live state."""
    return cluster.jobs.get(job_of(hold[1]))


def hold_shown(cluster: Cluster, hold: tuple[GpuView, str]) -> HoldShown:
    view, key = hold
    held_by = attempt_of(key)
    job = holder_of(cluster, hold)
    current = job if job is not None and job.attempt == held_by.attempt else None
    member = current.members.get(view.node_id) if current is not None else None
    return HoldShown(
        id=id_of(hold),
        gpu_uuid=view.gpu.uuid,
        gpu_index=view.gpu.index,
        node_id=view.node_id,
        job_id=held_by.job_id,
        attempt=held_by.attempt,
        share=view.holds[key],
        tenant=job.tenant if job is not None else "",
        user=job.user if job is not None else "",
        user_id=job.user if job is not None else "",
        job_state=job.state if job is not None else "",
        rank=member.rank if member is not None else None,
        placed_at=rfc3339(current.placed_ns) if current is not None else None,
        kind=job.spec.kind if job is not None else "",
        expires_at=rfc3339(current.expires_ns) if current is not None else None,
    )


def allocation_shown(cluster: Cluster, job: Job, now_ns: int) -> AllocationShown:
    """Return the allocation at a time of the wall clock."""
    return AllocationShown(
        id=job.job_id,
        kind=job.spec.kind,
        name=job.spec.name,
        state=job.state,
        reason=job.reason,
        tenant=job.tenant,
        user=job.user,
        user_id=job.user,
        labels=job.spec.labels,
        policy=_policy(job),
        nodes=[
            _node(cluster, member)
            for member in sorted(job.members.values(), key=lambda member: member.rank)
        ],
        submitted_at=rfc3339(job.submitted_ns),
        placed_at=rfc3339(job.placed_ns),
        expires_at=rfc3339(job.expires_ns),
        ended_at=rfc3339(job.ended_ns),
        warned=0 < job.expires_ns <= job.warned_ns,
        statistics=_statistics(job, now_ns),
    )


def _policy(job: Job) -> HoldingPolicy:
    spec, time = job.spec, job.spec.allocation
    return HoldingPolicy(
        queue=spec.queue or DEFAULT_QUEUE,
        priority=spec.priority,
        placement=spec.placement,
        scheduling_policy=spec.scheduling_policy,
        isolation=spec.isolation,
        on_control_loss=spec.on_control_loss,
        expires_s=time.expires_s if time is not None else None,
        warn_s=time.warn_s if time is not None else None,
        grace_s=spec.grace_s,
    )


def _node(cluster: Cluster, member: MemberView) -> HeldNode:
    node = cluster.nodes[member.node_id]
    held = [(cluster.gpus[hold.uuid].gpu, hold.share) for hold in member.gpus]
    return HeldNode(
        node_id=member.node_id,
        address=node.address,
        gpus=[HeldGpu(gpu.uuid, gpu.index, gpu.model, share) for gpu, share in held],
        env=visibility([gpu for gpu, _ in held], [view.gpu for view in node_gpus(cluster, node)]),
    )


def _statistics(job: Job, now_ns: int) -> HoldingStatistics:
    """Return how long and how much the job held.

    Until quota has charged an attempt with the time that its node measured, the time follows from
    the wall clocks of the processes that recorded its facts.
    """
    until_ns = job.ended_ns if job.state in job_life.ENDED else now_ns
    held_ms = max(0, until_ns - job.placed_ns) // 1_000_000 if job.placed_ns else 0
    share = sum(hold.share for member in job.members.values() for hold in member.gpus)
    uncharged = share * held_ms if job.charged < job.attempt else 0
    return HoldingStatistics(held_ms / 1_000, (job.order.attained + uncharged) / GPU_HOUR_SHARE_MS)
