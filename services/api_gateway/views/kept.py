"""Resident data of models as the API shows it. Pure; the field names are the API's contract."""

import msgspec

from libs.common.state.cluster import Cluster
from libs.common.state.kept import Kept, KeptEntry
from services.api_gateway.times import rfc3339


class KeptEntryShown(msgspec.Struct):
    """One tier of a model on one node.

    `state` is requested, measured, filling, ready, failed or evicted. `host_bytes` and `gpu_bytes`
    are what it has of the ledger. `restore_ms` is what a start, or a refill, costs without it.
    `placed_at` is the time of the last placement or eviction.
    """

    node_id: str
    state: str
    size_bytes: int
    host_bytes: int
    gpu_bytes: dict[str, int]
    content: str
    restore_ms: int
    detail: str
    placed_at: str | None


class KeptShown(msgspec.Struct):
    """A request to keep one tier of a model, with its entries by node."""

    model: str
    tier: str
    tenant: str
    user: str
    nodes: int
    node_list: tuple[str, ...]
    weights: str
    files: dict[str, str]
    size_bytes: int
    companion: tuple[str, ...]
    requested_at: str | None
    entries: list[KeptEntryShown]


class KeptList(msgspec.Struct):
    kept: list[KeptShown]
    next: str | None
    seq: int


def kept_shown(cluster: Cluster, kept: Kept) -> KeptShown:
    return KeptShown(
        model=kept.model,
        tier=kept.tier,
        tenant=kept.tenant,
        user=kept.user,
        nodes=kept.nodes,
        node_list=kept.node_list,
        weights=kept.weights,
        files=kept.files,
        size_bytes=kept.size_bytes,
        companion=kept.companion,
        requested_at=rfc3339(kept.at_ns),
        entries=[_entry_shown(each) for each in kept.entries.values()],
    )


def _entry_shown(entry: KeptEntry) -> KeptEntryShown:
    return KeptEntryShown(
        node_id=entry.node_id,
        state=entry.state,
        size_bytes=entry.size_bytes,
        host_bytes=entry.host_bytes,
        gpu_bytes={str(uuid): size for uuid, size in entry.gpu_bytes.items()},
        content=entry.content,
        restore_ms=entry.restore_ms,
        detail=entry.detail,
        placed_at=rfc3339(entry.at_ns),
    )
