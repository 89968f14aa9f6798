"""Facts about resident data: what a model keeps on nodes between its replicas.

Pure; part of the union in `facts/__init__.py`. The tiers are in `life/kept_life.py`. `request` is
the sequence of the ModelKeepRequested that a fact follows; facts about an earlier request are void.
"""

from libs.common.facts.fact import Fact
from libs.common.model import GpuId, JobId, NodeId, TenantId


class ModelKeepRequested(Fact, frozen=True, tag="model.keep_requested"):
    """A user asked to keep one tier of a model on nodes. A later request replaces it.

    `node_list` names the nodes. Otherwise the scheduler chooses `nodes` of them; 0: those that run
    its replicas. `weights` is the folder with the model's weight files on each node, and `files`
    maps their paths below it to their SHA-256; empty: the first node that reads them decides. The
    tiers gpu and standby use `size_bytes` of each device. `companion` is the command of the weight
    daemon; empty: it is derived from the replica's command.
    """

    model: str
    tier: str
    nodes: int = 0
    node_list: tuple[NodeId, ...] = ()
    weights: str = ""
    files: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
    size_bytes: int = 0
    companion: tuple[str, ...] = ()
    tenant: TenantId = TenantId("default")
    user: str = ""


class ModelKeepDropped(Fact, frozen=True, tag="model.keep_dropped"):
    """A user asked to keep a tier of a model no longer, on any node."""

    model: str
    tier: str
    user: str = ""


class KeptPlaced(Fact, frozen=True, tag="kept.placed"):
    """The scheduler chose a node to keep a tier of a model. The node measures the bytes first.

    `number` counts the placements of this tier on this node for one request, from 1.
    """

    model: str
    tier: str
    node_id: NodeId
    request: int
    number: int


class KeptGranted(Fact, frozen=True, tag="kept.granted"):
    """The scheduler gave a tier of a model bytes on a node.

    `host_bytes` are of the node's memory, `gpu_bytes` of its devices.
    """

    model: str
    tier: str
    node_id: NodeId
    request: int
    host_bytes: int = 0
    gpu_bytes: dict[GpuId, int] = {}  # noqa: RUF012


class KeptEvicted(Fact, frozen=True, tag="kept.evicted"):
    """The scheduler took the bytes of a tier back. The node removes the data."""

    model: str
    tier: str
    node_id: NodeId
    request: int
    reason: str = ""


class KeptObserved(Fact, frozen=True, tag="kept.observed"):
    """A node reports the state of what it keeps: measured, filling, ready or failed.

    `number` is the one of the KeptPlaced that it follows.
    `content` is the SHA-256 over the list of files with their hashes, `files` that list if the
    request had none. `restore_ms` is how long a replica's start, or a refill, takes without it.
    """

    node_id: NodeId
    model: str
    tier: str
    request: int
    number: int
    state: str
    size_bytes: int = 0
    content: str = ""
    files: dict[str, str] = {}  # noqa: RUF012
    restore_ms: int = 0
    detail: str = ""


class StandbyPromoted(Fact, frozen=True, tag="standby.promoted"):
    """The standby engine of a replica took over after the active one died.

    From now on the replica serves on `port`. `number` counts the promotions of this attempt from 1.
    `took_ms` is the time from the death of the engine to the first answer of the standby.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    number: int
    port: int
    took_ms: int = 0
    reason: str = ""


KeptDecision = KeptPlaced | KeptGranted | KeptEvicted
