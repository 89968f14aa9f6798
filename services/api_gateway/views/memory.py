"""Memory pools as the API shows them: what the ledger gives each job, and what its node's broker
has granted.

Pure. A node is not trusted: only attempts that the ledger has there are shown. Of other tenants'
jobs a principal sees sums. Tests: tests/unit/test_memory_view.py.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from libs.common.messages.memory_messages import HOST_MEMORY, MemoryReport
from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.cluster import Cluster, Job, Node, node_gpus
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal

# In place of a job's id: all jobs.
ALL: Final = JobId("")


class PoolShown(msgspec.Struct):
    """A job's pool on one device of a node (`host`: host memory).

    `granted_bytes` is what its processes hold, None if the node did not answer; `purposes` divides
    it by the job's own words.
    """

    job_id: JobId
    name: str
    attempt: int
    tenant: TenantId
    user: str
    device: str
    pool_bytes: int
    granted_bytes: int | None
    purposes: dict[str, int]


class DevicePools(msgspec.Struct):
    """A device's pools, of all tenants. `unusable` is why its driver gives no memory."""

    device: str
    capacity_bytes: int
    pool_bytes: int
    granted_bytes: int | None
    unusable: str


class OtherPools(msgspec.Struct):
    """The pools of other tenants' jobs on a node."""

    jobs: int
    pool_bytes: int
    granted_bytes: int | None


class NodeMemoryShown(msgspec.Struct):
    """The memory pools of one node. `error` is empty if the node answered."""

    node_id: NodeId
    error: str
    devices: list[DevicePools]
    pools: list[PoolShown]
    other_tenants: OtherPools


Granted = dict[tuple[JobId, int, str], dict[str, int]]


def with_pools(cluster: Cluster, node: Node) -> list[Job]:
    """Return the jobs on the node that have a pool."""
    jobs = (cluster.jobs[job_id] for job_id in node.members)
    return [job for job in jobs if job.spec.pools_on_node_bytes]


def node_memory(
    principal: Principal,
    cluster: Cluster,
    node: Node,
    *,
    report: MemoryReport | None,
    error: str = "",
    only: JobId = ALL,
) -> NodeMemoryShown:
    """Return the node's pools. `only` limits the jobs to one."""
    jobs = with_pools(cluster, node)
    granted = _granted(report) if report is not None else None
    rows = [(job, _pools(job, node, granted)) for job in jobs]
    seen = [
        row
        for job, pools in rows
        if roles.sees(principal, job.tenant) and only in (ALL, job.job_id)
        for row in pools
    ]
    hidden = [pools for job, pools in rows if not roles.sees(principal, job.tenant)]
    return NodeMemoryShown(
        node_id=node.node_id,
        error=error,
        devices=_devices(cluster, node, [row for _, pools in rows for row in pools], report),
        pools=seen,
        other_tenants=_others(hidden),
    )


def _granted(report: MemoryReport) -> Granted:
    found: Granted = {}
    for used in report.used:
        purposes = found.setdefault((used.job_id, used.attempt, used.device), {})
        purposes[used.purpose] = purposes.get(used.purpose, 0) + used.granted_bytes
    return found


def _pools(job: Job, node: Node, granted: Granted | None) -> list[PoolShown]:
    sizes = [(str(hold.uuid), job.spec.pool_bytes) for hold in job.members[node.node_id].gpus]
    sizes.append((HOST_MEMORY, job.spec.host_pool_bytes))
    return [_pool(job, device, size, granted) for device, size in sizes if size]


def _pool(job: Job, device: str, size: int, granted: Granted | None) -> PoolShown:
    purposes = granted.get((job.job_id, job.attempt, device), {}) if granted is not None else {}
    return PoolShown(
        job_id=job.job_id,
        name=job.spec.name,
        attempt=job.attempt,
        tenant=job.tenant,
        user=job.user,
        device=device,
        pool_bytes=size,
        granted_bytes=None if granted is None else sum(purposes.values()),
        purposes=purposes,
    )


def _devices(
    cluster: Cluster, node: Node, rows: Sequence[PoolShown], report: MemoryReport | None
) -> list[DevicePools]:
    told = {each.device: each for each in report.devices} if report is not None else {}
    of = {device: [row for row in rows if row.device == device] for device in _names(rows)}
    sizes = {str(view.gpu.uuid): view.gpu.memory_bytes for view in node_gpus(cluster, node)}
    sizes[HOST_MEMORY] = node.memory_bytes
    return [
        DevicePools(
            device=device,
            capacity_bytes=size,
            pool_bytes=sum(row.pool_bytes for row in of.get(device, ())),
            granted_bytes=None if report is None else _sum(of.get(device, ())),
            unusable=told[device].unusable if device in told else "",
        )
        for device, size in sizes.items()
    ]


def _names(rows: Sequence[PoolShown]) -> list[str]:
    return list(dict.fromkeys(row.device for row in rows))


def _sum(rows: Iterable[PoolShown]) -> int:
    return sum(row.granted_bytes or 0 for row in rows)


def _others(hidden: Sequence[Sequence[PoolShown]]) -> OtherPools:
    rows = [row for pools in hidden for row in pools]
    known = all(row.granted_bytes is not None for row in rows)
    return OtherPools(
        jobs=len(hidden),
        pool_bytes=sum(row.pool_bytes for row in rows),
        granted_bytes=_sum(rows) if known else None,
    )
