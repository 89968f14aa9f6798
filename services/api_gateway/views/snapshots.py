"""Snapshots of the gateway's state: stored every so many commits, loaded at start, so that start = snapshot + the log's tail.

Two objects: `cluster` is `libs.common.snapshot` (any service may start from it), `history.<seq>` is the list of commits per job of the same
sequence, stored first, so that a crash in between leaves the older pair whole.
Encoding holds the interpreter: about 5 ms per 10,000 jobs. It happens on the loop's thread, between two commits, because no other thread
could read a consistent state without copying it, which costs more; the price is one such pause in SNAPSHOT_EVERY commits.
"""

import logging
from typing import Final, Protocol

import msgspec

from libs.common import snapshot
from libs.common.cluster import Cluster
from libs.common.errors import Corrupt, Unavailable
from services.api_gateway.views.history import History

SNAPSHOT_EVERY: Final = 50_000
CLUSTER_OBJECT: Final = "cluster"

logger = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(History)


class SnapshotStore(Protocol):
    """Named objects that outlive the process. All raise Unavailable."""

    async def put(self, name: str, data: bytes) -> None:
        """Store an object whole, replacing one of that name."""
        ...

    async def get(self, name: str) -> bytes | None:
        """The object; None when there is none."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object, if it is there."""
        ...


class MemorySnapshots:
    """The in-memory twin."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    async def get(self, name: str) -> bytes | None:
        return self.objects.get(name)

    async def delete(self, name: str) -> None:
        self.objects.pop(name, None)


class Pair(msgspec.Struct, frozen=True):
    """Both encodings of one moment."""

    seq: int
    cluster: bytes
    history: bytes


def encode(cluster: Cluster, history: History) -> Pair:
    """The state now; call it between two commits."""
    return Pair(cluster.seq, snapshot.encode(cluster), _encoder.encode(history))


async def load(store: SnapshotStore) -> tuple[Cluster, History]:
    """The stored state; the empty one when there is none, another version wrote it, or its other half is missing.

    Raises Corrupt when it is damaged, Unavailable when the store does not answer.
    """
    data = await store.get(CLUSTER_OBJECT)
    cluster = snapshot.decode(data) if data is not None else None
    if cluster is None:
        return Cluster(), History()
    history = await store.get(_history_object(cluster.seq))
    if history is None:
        logger.warning("the snapshot at %d has no history beside it: the log is folded from its beginning", cluster.seq)
        return Cluster(), History()
    try:
        return cluster, _decoder.decode(history)
    except msgspec.DecodeError as error:
        raise Corrupt(f"the history beside the snapshot at {cluster.seq} cannot be read ({error}): delete both objects") from error


class Snapshots:
    """Stores the state when it is due. A store that does not answer is only a warning: the log has everything."""

    def __init__(self, store: SnapshotStore, stored_seq: int) -> None:
        self.store = store
        self.stored_seq = stored_seq

    def due(self, seq: int) -> bool:
        return seq >= self.stored_seq + SNAPSHOT_EVERY

    async def save(self, pair: Pair) -> None:
        older = self.stored_seq
        self.stored_seq = pair.seq
        try:
            await self.store.put(_history_object(pair.seq), pair.history)
            await self.store.put(CLUSTER_OBJECT, pair.cluster)
            if older and older != pair.seq:
                await self.store.delete(_history_object(older))
        except Unavailable as error:
            logger.warning("the snapshot at %d was not stored (%s); the next one is due at %d", pair.seq, error, pair.seq + SNAPSHOT_EVERY)


def _history_object(seq: int) -> str:
    return f"history.{seq}"
