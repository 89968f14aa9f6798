"""Resident data on devices: beside the replicas of a model, and weights for a while after them.

Pure. A tier on devices has its bytes inside what the replicas of its model hold. Weights (gpu) stay
when the last replica has left a device, so that the next one maps them: for LINGER_NS, or until
another job is placed there. Tests: tests/unit/test_scheduler_device_weights.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from libs.common.facts import AnyFact, JobPlaced, KeptEvicted, KeptGranted
from libs.common.life import job_life, kept_life
from libs.common.model import WHOLE_GPU, GpuId, Member, NodeId, Serve
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, Job
from libs.common.state.kept import Kept, KeptEntry, kept_key
from libs.common.state.ordering import SECOND_NS
from services.scheduler.placement.choose import NO_PLACEMENT, Choice
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.queueing.backfill import BackfillPass
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
# Weights stay on a device for so long after the last replica of their model has left it.
LINGER_NS: Final = 60 * SECOND_NS
TAKEN_BY_JOB: Final = "a job needs the device"
BESIDE_REPLICAS: Final = (kept_life.GPU, kept_life.STANDBY)

# Bytes by node and device.
Bytes = dict[NodeId, dict[GpuId, int]]


def replicas_on(cluster: Cluster, model: str) -> dict[NodeId, list[Job]]:
    """Return the placed and running replicas of a model by node."""
    found: dict[NodeId, list[Job]] = {}
    known = cluster.models.get(model)
    for job_id in known.jobs if known is not None else ():
        job = cluster.jobs[job_id]
        for node_id in job.members if job.state in job_life.ON_NODES else ():
            found.setdefault(node_id, []).append(job)
    return found


def eviction(kept: Kept, entry: KeptEntry, reason: str) -> KeptEvicted:
    return KeptEvicted(
        model=kept.model,
        tier=kept.tier,
        node_id=entry.node_id,
        request=kept.request,
        reason=reason,
    )


def _grant(kept: Kept, node_id: NodeId, size: dict[GpuId, int]) -> KeptGranted:
    return KeptGranted(
        model=kept.model, tier=kept.tier, node_id=node_id, request=kept.request, gpu_bytes=size
    )


def lingering(state: State, kept: Kept, wall_ns: int) -> Bytes:
    """Return the devices whose weights stay although no replica of the model holds them.

    The time since when is a note of this scheduler: the next one begins to count again.
    """
    alone = state.restless.kept_alone
    before, now = alone.pop(kept.key, {}), dict[GpuId, int]()
    found: Bytes = {}
    for node_id, uuid, size in _unheld(state.cluster, kept):
        now[uuid] = before.get(uuid, wall_ns)
        if wall_ns < now[uuid] + LINGER_NS:
            found.setdefault(node_id, {})[uuid] = size
    if now:
        alone[kept.key] = now
    return found


def _unheld(cluster: Cluster, kept: Kept) -> Iterator[tuple[NodeId, GpuId, int]]:
    """Yield the devices with weights of the model that no replica of it holds."""
    if kept.tier != kept_life.GPU:
        return
    replicas = replicas_on(cluster, kept.model)
    for node_id, entry in kept.entries.items():
        held = _shares(replicas.get(node_id, ()), node_id)
        for uuid, size in entry.gpu_bytes.items():
            if uuid not in held:
                yield node_id, uuid, size


def grant_on_devices(cluster: Cluster, kept: Kept, stays: Bytes) -> Sequence[AnyFact]:
    """Return the grant of bytes on the devices of a node's replicas, for one node.

    `stays` are the devices that keep their bytes without a replica.
    """
    replicas = replicas_on(cluster, kept.model)
    for node_id, entry in kept.entries.items():
        if entry.state not in (kept_life.REQUESTED, *kept_life.HOLDS_BYTES):
            continue
        shares = _shares(replicas.get(node_id, ()), node_id)
        wanted = dict.fromkeys(shares, kept.size_bytes) | stays.get(node_id, {})
        if not wanted or wanted == entry.gpu_bytes:
            continue
        fact = _grant(kept, node_id, wanted)
        if _fits(cluster, kept, shares) and ledger.can_keep(cluster, fact):
            return (fact,)
    return NONE


def _shares(jobs: Sequence[Job], node_id: NodeId) -> dict[GpuId, int]:
    """Return what these jobs hold of the node's devices; the last one counts."""
    return {hold.uuid: hold.share for job in jobs for hold in job.members[node_id].gpus}


def _fits(cluster: Cluster, kept: Kept, shares: Mapping[GpuId, int]) -> bool:
    """Return whether all that the model keeps on each device fits into its replicas' holds."""
    for uuid, share in shares.items():
        view = cluster.gpus[uuid]
        others = sum(each for key, each in view.kept.items() if key != kept.key)
        if kept.size_bytes + others > view.gpu.memory_bytes * share // WHOLE_GPU:
            return False
    return True


def device_evictions(cluster: Cluster, placed: JobPlaced) -> list[AnyFact]:
    """Return the facts that free the devices of a placement from weights that only linger there.

    A replica of the same model takes them over, if they fit into what it holds.
    """
    serve = cluster.jobs[placed.job_id].spec.serve
    own = kept_key(serve.model, kept_life.GPU) if serve is not None else ""
    return [
        fact
        for member in placed.members
        for key in _kept_on(cluster, member)
        if key != own or not _fits(cluster, cluster.kept[key], _held_by(member))
        for fact in _without(cluster, cluster.kept[key], member)
    ]


def _kept_on(cluster: Cluster, member: Member) -> list[str]:
    """Return what models keep on the devices of a member."""
    return sorted({key for hold in member.gpus for key in cluster.gpus[hold.uuid].kept})


def _held_by(member: Member) -> dict[GpuId, int]:
    return {hold.uuid: hold.share for hold in member.gpus}


def _without(cluster: Cluster, kept: Kept, member: Member) -> Iterator[AnyFact]:
    taken = _held_by(member)
    lost = [uuid for _, uuid, _ in _unheld(cluster, kept) if uuid in taken]
    if not lost:
        return
    entry = kept.entries[member.node_id]
    rest = {uuid: size for uuid, size in entry.gpu_bytes.items() if uuid not in lost}
    yield (_grant(kept, member.node_id, rest) if rest else eviction(kept, entry, TAKEN_BY_JOB))


def choose_with_weights(
    state: State,
    backfill_pass: BackfillPass,
    job: Job,
    serve: Serve,
    request: ResourceRequest,
    avoided: int,
) -> Choice:
    """Choose free devices on which the weights of a replica's model still are, if there are any.

    The nodes `avoided` (bits) do not count.
    """
    kept = state.cluster.kept.get(kept_key(serve.model, kept_life.GPU))
    if kept is None or request.nodes > 1 or request.uuids:
        return NO_PLACEMENT
    warm: dict[NodeId, list[GpuId]] = {}
    for node_id, uuid, _ in _unheld(state.cluster, kept):
        warm.setdefault(node_id, []).append(uuid)
    for uuids in warm.values():
        if len(uuids) >= request.gpus:
            own = replace(request, uuids=tuple(uuids))
            choice = backfill_pass.choose(state, job, own, avoided)
            if choice is not NO_PLACEMENT:
                return choice
    return NO_PLACEMENT
