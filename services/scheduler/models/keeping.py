"""The rule `keep`: which nodes keep which tier of a model, and what gives way when room is needed.

Pure. A node measures a tier before it gets bytes. The tiers gpu and standby live beside the
replicas, inside the devices that those hold (`on_devices.py`). Placement ignores resident data: a
job always wins. The same decision then evicts what is cheapest to restore per byte, so that holds
and resident data never exceed the node's memory. Tests: tests/unit/test_scheduler_keeping.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.devices.means import ENFORCED
from libs.common.facts import AnyFact, JobPlaced, KeptEvicted, KeptGranted, KeptPlaced
from libs.common.life import kept_life
from libs.common.model import WEIGHTS, NodeId
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, is_leaving
from libs.common.state.kept import Kept, KeptEntry
from libs.common.state.ordering import SECOND_NS
from services.scheduler.models.on_devices import (
    BESIDE_REPLICAS,
    Bytes,
    device_evictions,
    eviction,
    grant_on_devices,
    lingering,
    replicas_on,
)
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
# An evicted entry is placed again after this time.
AGAIN_NS: Final = 30 * SECOND_NS
LOOK_NS: Final = SECOND_NS
# Reasons of evictions.
ROOM: Final = "a job needs the memory"
SHRUNK: Final = "the node reports less memory"
NO_REPLICA: Final = "no replica of the model runs here"
NODE_GONE: Final = "the node leaves the cluster"
TAKEN: Final = "another tenant deployed a model of this name"
# Integer scale of milliseconds per byte.
SCALE: Final = 1 << 40


def keep(state: State, wall_ns: int) -> Sequence[AnyFact]:
    """Return the next change of what is kept."""
    cluster, restless = state.cluster, state.restless
    if not cluster.kept or not (restless.kept_stale or wall_ns >= restless.kept_look_ns):
        return NONE
    for node_id in dict.fromkeys(
        node_id for key in sorted(cluster.kept) for node_id in cluster.kept[key].entries
    ):
        excess = -ledger.free_host_bytes(cluster, node_id)
        if excess > 0 and (evicted := evictions(cluster, node_id, excess, SHRUNK)):
            return evicted
    for key in sorted(cluster.kept):
        kept = cluster.kept[key]
        stays = lingering(state, kept, wall_ns)
        if (
            facts := _surplus(cluster, kept, stays)
            or _missing(cluster, kept, wall_ns)
            or _grant(cluster, kept, stays)
        ):
            return facts
    restless.kept_stale, restless.kept_look_ns = False, wall_ns + LOOK_NS
    return NONE


def with_evictions(cluster: Cluster, facts: Sequence[AnyFact]) -> Sequence[AnyFact]:
    """Return the facts of a placement, preceded by the evictions that it needs."""
    if not cluster.kept:
        return facts
    first: list[AnyFact] = []
    for fact in facts:
        if isinstance(fact, JobPlaced):
            first += device_evictions(cluster, fact)
            need = cluster.jobs[fact.job_id].spec.host_bytes
            for member in fact.members:
                missing = need - ledger.free_host_bytes(cluster, member.node_id)
                if need and missing > 0:
                    first += evictions(cluster, member.node_id, missing, ROOM)
    return (*first, *facts) if first else facts


def evictions(
    cluster: Cluster, node_id: NodeId, missing: int, reason: str
) -> tuple[KeptEvicted, ...]:
    """Return the evictions that free so many bytes of the node's memory, the cheapest to restore
    per byte first; all of them if that is not enough.
    """
    found = [
        (kept, entry)
        for kept in cluster.kept.values()
        if (entry := kept.entries.get(node_id)) is not None and entry.host_bytes
    ]
    chosen: list[KeptEvicted] = []
    for kept, entry in sorted(found, key=lambda pair: (cost(pair[1]), pair[0].key)):
        if missing <= 0:
            break
        missing -= entry.host_bytes
        chosen.append(eviction(kept, entry, reason))
    return tuple(chosen)


def cost(entry: KeptEntry) -> int:
    """Return what restoring the entry costs per byte, in milliseconds times SCALE."""
    return entry.restore_ms * SCALE // max(1, entry.host_bytes)


def _surplus(cluster: Cluster, kept: Kept, stays: Bytes) -> Sequence[AnyFact]:
    """Return the eviction of one entry that must not stay.

    `stays` are the devices that keep their bytes without a replica.
    """
    model = cluster.models.get(kept.model)
    taken = model is not None and model.deployed and model.tenant != kept.tenant
    replicas = replicas_on(cluster, kept.model) if kept.tier in BESIDE_REPLICAS else {}
    for node_id, entry in kept.entries.items():
        reason = (
            TAKEN
            if taken
            else NODE_GONE
            if is_leaving(cluster, node_id)
            else NO_REPLICA
            if kept.tier in BESIDE_REPLICAS and node_id not in (*replicas, *stays)
            else ""
        )
        if reason and entry.state != kept_life.EVICTED:
            return (eviction(kept, entry, reason),)
    return NONE


def _missing(cluster: Cluster, kept: Kept, wall_ns: int) -> Sequence[AnyFact]:
    """Return the placement of one entry that is missing."""
    model = cluster.models.get(kept.model)
    if model is None or (model.deployed and model.tenant != kept.tenant):
        return NONE
    for node_id in _wanted(cluster, kept):
        entry = kept.entries.get(node_id)
        if entry is None or (
            entry.state == kept_life.EVICTED
            and (kept.tier in BESIDE_REPLICAS or wall_ns >= entry.at_ns + AGAIN_NS)
        ):
            return (
                KeptPlaced(
                    model=kept.model,
                    tier=kept.tier,
                    node_id=node_id,
                    request=kept.request,
                    number=entry.number + 1 if entry is not None else 1,
                ),
            )
    return NONE


def _wanted(cluster: Cluster, kept: Kept) -> list[NodeId]:
    """Return the nodes that should have an entry, in order of preference."""
    replicas = replicas_on(cluster, kept.model)
    able = [node_id for node_id in cluster.nodes if _is_able(cluster, node_id, kept.tier)]
    if kept.node_list and kept.tier not in BESIDE_REPLICAS:
        return [node_id for node_id in kept.node_list if node_id in able]
    if kept.tier in BESIDE_REPLICAS or not kept.nodes:
        return [node_id for node_id in replicas if node_id in able]
    able.sort(
        key=lambda node_id: (
            node_id not in kept.entries,
            node_id not in replicas,
            -ledger.free_host_bytes(cluster, node_id),
            node_id,
        )
    )
    return able[: kept.nodes]


def _is_able(cluster: Cluster, node_id: NodeId, tier: str) -> bool:
    node = cluster.nodes[node_id]
    if tier == kept_life.GPU and node.isolation.get(WEIGHTS) != ENFORCED:
        return False
    return node.keeps and node.takes_work and not is_leaving(cluster, node_id)


def _grant(cluster: Cluster, kept: Kept, stays: Bytes) -> Sequence[AnyFact]:
    """Return the grant of one entry that waits for its bytes and for which there is room."""
    if kept.tier in BESIDE_REPLICAS:
        return grant_on_devices(cluster, kept, stays)
    for node_id, entry in kept.entries.items():
        free = ledger.free_host_bytes(cluster, node_id)
        if entry.state == kept_life.MEASURED and entry.size_bytes <= free:
            return (
                KeptGranted(
                    model=kept.model,
                    tier=kept.tier,
                    node_id=node_id,
                    request=kept.request,
                    host_bytes=entry.size_bytes,
                ),
            )
    return NONE
