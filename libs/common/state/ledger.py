"""The ledger of holds: which attempt holds what share of which device.

Pure. It ensures that the holds of a device never exceed the whole device: `can_hold` refuses such a
hold, and only `hold` and `release` change `GpuView.holds`, `GpuView.parts`, `Node.held`,
`Node.pools` and the sums of a tenant. A release frees only the hold of the same (job, attempt,
GPU); a second release frees nothing. Resident data of models has bytes beside the holds: of
the node's memory and of its devices (`keep`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

from libs.common.facts import KeptGranted
from libs.common.model import WHOLE_GPU, GpuHold, GpuId, JobSpec, Member, NodeId, attempt_key
from libs.common.state.cluster import Cluster, GpuView, Job, MemberView, Node, Tenant, tenant_of
from libs.common.state.kept import KeptEntry, kept_key

# A gang has hundreds of devices: these read a field of all of them without a loop in Python.
uuid_of: Final[Callable[[GpuHold], GpuId]] = attrgetter("uuid")
_share_of: Final[Callable[[GpuHold], int]] = attrgetter("share")
_gpus_of: Final[Callable[[Member | MemberView], tuple[GpuHold, ...]]] = attrgetter("gpus")
_holds_of: Final[Callable[[GpuView], dict[str, int]]] = attrgetter("holds")
_WHOLE: Final = frozenset({WHOLE_GPU})


def holds_of(members: Iterable[Member | MemberView]) -> Iterator[GpuHold]:
    """Return the holds of all these members."""
    return chain.from_iterable(map(_gpus_of, members))


def share_of(members: Iterable[MemberView]) -> int:
    """Return what these members hold, in hundredths of a GPU."""
    return sum(map(_share_of, chain.from_iterable(map(_gpus_of, members))))


def devices_of(cluster: Cluster, holds: Iterable[GpuHold]) -> Iterator[GpuView]:
    """Return the devices of these holds, which must be known."""
    return map(cluster.gpus.__getitem__, map(uuid_of, holds))


def can_hold(cluster: Cluster, holds: Sequence[GpuHold]) -> bool:
    """Return whether all these holds are possible now (`free_devices`)."""
    return free_devices(cluster, holds) is not None


def free_devices(cluster: Cluster, holds: Sequence[GpuHold]) -> list[GpuView] | None:
    """Return the devices of these holds; None unless every device is known, is named once, and has
    the requested share free.

    The node is not checked: a device that another node reports since the placement was decided is
    still held, and released with the member. The host's resources and the possible MIG profiles are
    not checked either: the node reports them, and its report may cross a placement. One device
    never has fractions of different isolation, nor two MIG instances on one slice.
    """
    uuids = list(map(uuid_of, holds))
    try:
        views = list(map(cluster.gpus.__getitem__, uuids))
    except KeyError:
        return None
    if len(set(uuids)) != len(uuids):
        return None
    free_and_whole = not any(map(_holds_of, views)) and _WHOLE.issuperset(map(_share_of, holds))
    return views if free_and_whole or all(map(_can_share, views, holds)) else None


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


def hold(
    cluster: Cluster, job: Job, tenant: Tenant, views: list[GpuView], holds: Sequence[GpuHold]
) -> None:
    """Give these devices, and parts of the hosts of its members, to the job's current attempt."""
    key, spec = attempt_key(job.job_id, job.attempt), job.spec
    for view, hold in zip(views, holds, strict=True):
        view.holds[key] = hold.share
        if hold.isolation:
            view.parts[key] = hold
    tenant.held_share += sum(map(_share_of, holds))
    if spec.uses_host:
        for node_id in job.members:
            _hold_host(cluster.nodes[node_id], key, tenant, spec)


def _hold_host(node: Node, key: str, tenant: Tenant, spec: JobSpec) -> None:
    if pools := spec.pools_on_node_bytes:
        node.pools[key] = pools
        tenant.use.held_pool_bytes += pools
    if spec.cpus_milli or spec.host_bytes:
        node.held[key] = (spec.cpus_milli, spec.host_bytes)
        tenant.use.held_cpus_milli += spec.cpus_milli
        tenant.use.held_memory_bytes += spec.host_bytes


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


def can_keep(cluster: Cluster, fact: KeptGranted) -> bool:
    """Return whether the node and its devices have the bytes, beside all that is held and kept.

    A node that does not report its memory has none to keep data in.
    """
    key = kept_key(fact.model, fact.tier)
    own = cluster.nodes[fact.node_id].kept.get(key, 0)
    if fact.host_bytes and fact.host_bytes > free_host_bytes(cluster, fact.node_id) + own:
        return False
    return all(
        (view := cluster.gpus.get(uuid)) is not None
        and size + sum(each for other, each in view.kept.items() if other != key)
        <= view.gpu.memory_bytes
        for uuid, size in fact.gpu_bytes.items()
    )


def free_host_bytes(cluster: Cluster, node_id: NodeId) -> int:
    """Return the memory of the node that neither attempts nor resident data have; below 0 if they
    have more than the node reports.
    """
    node = cluster.nodes[node_id]
    held = sum([memory for _, memory in node.held.values()])
    return node.memory_bytes - held - sum(node.kept.values())


def keep(cluster: Cluster, key: str, entry: KeptEntry, fact: KeptGranted) -> None:
    """Give resident data its bytes of the node and of its devices, instead of those it had."""
    let_go_of_kept(cluster, key, entry)
    entry.host_bytes, entry.gpu_bytes = fact.host_bytes, dict(fact.gpu_bytes)
    if entry.host_bytes:
        cluster.nodes[entry.node_id].kept[key] = entry.host_bytes
    for uuid, size in entry.gpu_bytes.items():
        if (view := cluster.gpus.get(uuid)) is not None:
            view.kept[key] = size


def let_go_of_kept(cluster: Cluster, key: str, entry: KeptEntry) -> None:
    """Release what the entry has. Harmless when repeated."""
    cluster.nodes[entry.node_id].kept.pop(key, None)
    for uuid in entry.gpu_bytes:
        if (view := cluster.gpus.get(uuid)) is not None:
            view.kept.pop(key, None)
    entry.host_bytes, entry.gpu_bytes = 0, {}
