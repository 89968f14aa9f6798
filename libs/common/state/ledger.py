"""The ledger of holds: which attempt holds what share of which device.

Pure. It ensures that the holds of a device never exceed the whole device: `can_hold` refuses such a
hold, and only `hold` and `release` change `GpuView.holds`, `GpuView.parts`, `Node.held`,
`Node.pools` and the sums of a tenant. A release frees only the hold of the same (job, attempt,
GPU); a second release frees nothing.
"""

from collections.abc import Sequence

from libs.common.model import WHOLE_GPU, GpuHold, attempt_key
from libs.common.state.cluster import Cluster, GpuView, Job, MemberView, tenant_of


def can_hold(cluster: Cluster, gpus: Sequence[GpuHold]) -> bool:
    """Return whether every device is known, is named once, and has the requested share free.

    The node is not checked: a device that another node reports since the placement was decided is
    still held, and released with the member. The host's resources and the possible MIG profiles are
    not checked either: the node reports them, and its report may cross a placement. One device
    never has fractions of different isolation, nor two MIG instances on one slice.
    """
    uuids, views = {hold.uuid for hold in gpus}, cluster.gpus
    if len(uuids) != len(gpus) or not uuids <= views.keys():
        return False
    for hold in gpus:
        view = views[hold.uuid]
        if (view.holds or hold.share != WHOLE_GPU) and not _can_share(view, hold):
            return False
    return True


def _can_share(view: GpuView, hold: GpuHold) -> bool:
    return 0 < hold.share <= WHOLE_GPU - view.held and (
        not view.holds or can_stand_beside(view, hold)
    )


def can_stand_beside(view: GpuView, hold: GpuHold) -> bool:
    """Return whether the hold may join the holds of a device in use.

    All must have the same isolation, and no two MIG instances may have the same slice.
    """
    if not view.parts:
        return not hold.isolation
    return all(
        part.isolation == hold.isolation and not part.mig_slices & hold.mig_slices
        for part in view.parts.values()
    )


def hold(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Give the member's devices, and its part of the host, to the job's current attempt."""
    key, views = attempt_key(job.job_id, job.attempt), cluster.gpus
    tenant = tenant_of(cluster, job.tenant)
    tenant.held_share += sum([hold.share for hold in member.gpus])
    for hold in member.gpus:
        view = views[hold.uuid]
        view.holds[key] = hold.share
        if hold.isolation:
            view.parts[key] = hold
    node = cluster.nodes[member.node_id]
    if job.spec.pools_on_node_bytes:
        node.pools[key] = job.spec.pools_on_node_bytes
        tenant.use.held_pool_bytes += job.spec.pools_on_node_bytes
    if job.spec.cpus_milli or job.spec.host_bytes:
        node.held[key] = (job.spec.cpus_milli, job.spec.host_bytes)
        tenant.use.held_cpus_milli += job.spec.cpus_milli
        tenant.use.held_memory_bytes += job.spec.host_bytes


def release(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Release what the member still holds."""
    key = attempt_key(job.job_id, job.attempt)
    tenant = tenant_of(cluster, job.tenant)
    for hold in member.gpus:
        view = cluster.gpus[hold.uuid]
        tenant.held_share -= view.holds.pop(key, 0)
        view.parts.pop(key, None)
    node = cluster.nodes[member.node_id]
    tenant.use.held_pool_bytes -= node.pools.pop(key, 0)
    cpus_milli, memory_bytes = node.held.pop(key, (0, 0))
    tenant.use.held_cpus_milli -= cpus_milli
    tenant.use.held_memory_bytes -= memory_bytes
