"""The one ledger of promises: who holds what share of which device.

Pure. Invariant 2 lives here: `can_hold` refuses any promise that would pass a whole device, `hold`
and `release` are the only places that change `GpuView.holds`, `GpuView.parts`, `Node.held` and a
tenant's `held_share`. A release frees only the hold of the same (job, attempt, GPU); a second one
frees nothing.
"""

from collections.abc import Sequence

from libs.common.model import WHOLE_GPU, GpuHold, attempt_key
from libs.common.state.cluster import Cluster, GpuView, Job, MemberView, tenant_of


def can_hold(cluster: Cluster, gpus: Sequence[GpuHold]) -> bool:
    """Whether every device is known and has the asked share free, and none is named twice.

    Not which node has it: a device that another node reports since the placement was decided is
    still promised, and given back with the member. Nor what a node has of the host, nor what its
    card can be cut into: both are the node's own to say, and may cross a placement. Parts that are
    kept apart in different ways are never on one device, nor MIG instances on one slice.
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
    """Whether all that is on a device in use is kept apart as the wish is, and no MIG instance has
    a slice of it.
    """
    if not view.parts:
        return not hold.isolation
    return all(
        part.isolation == hold.isolation and not part.mig_slices & hold.mig_slices
        for part in view.parts.values()
    )


def hold(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Promise the member's devices, and its part of the host, to the job's current attempt."""
    key, views = attempt_key(job.job_id, job.attempt), cluster.gpus
    tenant = tenant_of(cluster, job.tenant)
    tenant.held_share += sum([hold.share for hold in member.gpus])
    for hold in member.gpus:
        view = views[hold.uuid]
        view.holds[key] = hold.share
        if hold.isolation:
            view.parts[key] = hold
    if job.spec.cpus_milli or job.spec.memory_bytes:
        cluster.nodes[member.node_id].held[key] = (job.spec.cpus_milli, job.spec.memory_bytes)
        tenant.use.held_cpus_milli += job.spec.cpus_milli
        tenant.use.held_memory_bytes += job.spec.memory_bytes


def release(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Take back what the member still holds."""
    key = attempt_key(job.job_id, job.attempt)
    tenant = tenant_of(cluster, job.tenant)
    for hold in member.gpus:
        view = cluster.gpus[hold.uuid]
        tenant.held_share -= view.holds.pop(key, 0)
        view.parts.pop(key, None)
    cpus_milli, memory_bytes = cluster.nodes[member.node_id].held.pop(key, (0, 0))
    tenant.use.held_cpus_milli -= cpus_milli
    tenant.use.held_memory_bytes -= memory_bytes
