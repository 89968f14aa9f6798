"""The data that models keep on nodes between replicas: the requests, and one entry per node.

Pure. `folds/kept_fold.py` changes it; the bytes are in the ledger (`ledger.keep`).
"""

import msgspec

from libs.common.life import kept_life
from libs.common.model import GpuId, NodeId, TenantId


class KeptEntry(msgspec.Struct):
    """One tier of a model on one node.

    `number` counts the placements here. `size_bytes` is what the node measured, `host_bytes` and
    `gpu_bytes` are what the ledger gave. `content` is the SHA-256 over all files and their hashes.
    `restore_ms` is what a start, or a refill, costs without the entry. `at_ns` is the time of the
    last placement or eviction.
    """

    node_id: NodeId
    number: int
    state: str = kept_life.REQUESTED
    size_bytes: int = 0
    host_bytes: int = 0
    gpu_bytes: dict[GpuId, int] = {}
    content: str = ""
    restore_ms: int = 0
    detail: str = ""
    at_ns: int = 0


class Kept(msgspec.Struct):
    """A request to keep one tier of a model, with its entries by node.

    The fields are those of ModelKeepRequested. `request` is its sequence. `files_given`: the
    request has `files`, otherwise the first node that read them recorded them.
    """

    model: str
    tier: str
    tenant: TenantId
    user: str
    request: int
    nodes: int = 0
    node_list: tuple[NodeId, ...] = ()
    weights: str = ""
    files: dict[str, str] = {}
    files_given: bool = False
    size_bytes: int = 0
    companion: tuple[str, ...] = ()
    at_ns: int = 0
    entries: dict[NodeId, KeptEntry] = {}

    @property
    def key(self) -> str:
        return kept_key(self.model, self.tier)


def kept_key(model: str, tier: str) -> str:
    """Return the name of a tier of a model in the state and in the ledger.

    No attempt has it: names of models and jobs have no slash.
    """
    return f"{model}/{tier}"
