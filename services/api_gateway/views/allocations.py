"""Who holds which device now, as the API shows it: one row for each part of a device that an attempt holds, from the ledger.

Pure. A row begins with the placement and ends with the proof that nothing of the attempt is left on the device, whatever its job's state.
"""

from collections.abc import Iterator

import msgspec

from libs.common.cluster import Cluster, GpuView, Job
from libs.common.model import JobId
from services.api_gateway.times import rfc3339


class AllocationShown(msgspec.Struct):
    """`share` in hundredths of the device. Of an attempt that is not its job's present one (its node has not released it yet) only what
    the ledger holds is known: `rank` and `placed_at` are null.
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


def allocations(cluster: Cluster) -> Iterator[tuple[GpuView, str]]:
    """Every hold: the device and the attempt's key, by the devices' first registration."""
    return ((view, key) for view in cluster.gpus.values() for key in view.holds)


def id_of(hold: tuple[GpuView, str]) -> str:
    view, key = hold
    return f"{view.gpu.uuid}/{key}"


def holder_of(cluster: Cluster, hold: tuple[GpuView, str]) -> Job | None:
    """The job that holds it; None when it left the live state."""
    return cluster.jobs.get(JobId(hold[1].rpartition(".")[0]))


def allocation_shown(cluster: Cluster, hold: tuple[GpuView, str]) -> AllocationShown:
    view, key = hold
    job_id, _, attempt = key.rpartition(".")
    job = holder_of(cluster, hold)
    current = job if job is not None and job.attempt == int(attempt) else None
    member = current.members.get(view.node_id) if current is not None else None
    return AllocationShown(
        id=id_of(hold),
        gpu_uuid=view.gpu.uuid,
        gpu_index=view.gpu.index,
        node_id=view.node_id,
        job_id=job_id,
        attempt=int(attempt),
        share=view.holds[key],
        tenant=job.tenant if job is not None else "",
        user=job.user if job is not None else "",
        user_id=job.user if job is not None else "",
        job_state=job.state if job is not None else "",
        rank=member.rank if member is not None else None,
        placed_at=rfc3339(current.placed_ns) if current is not None else None,
    )
