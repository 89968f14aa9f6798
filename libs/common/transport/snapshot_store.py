"""The store of snapshots, and the start of a reader from the newest usable one.

Two objects hold a state. `cluster` is a gateway's and is written often. `base` is the trimmer's,
folded from commits that were verified against the archive; commits up to it may be trimmed.
`base-head` is its head, for readers of only its sequence; it may be older than `base`. The real
store is `objects_nats.NatsObjects`, `MemorySnapshots` its twin.
"""

import logging
from typing import Final, Protocol

from libs.common.errors import Corrupt, Unavailable
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from libs.common.transport.log import Log, settled_bounds

CLUSTER_OBJECT: Final = "cluster"
BASE_OBJECT: Final = "base"
BASE_HEAD_OBJECT: Final = "base-head"

logger = logging.getLogger(__name__)


class SnapshotStore(Protocol):
    """Named objects that outlive the process. All methods raise Unavailable."""

    async def put(self, name: str, data: bytes) -> None:
        """Store an object completely, and replace one of the same name."""
        ...

    async def get(self, name: str) -> bytes | None:
        """Return the object; None if there is none."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object if it exists."""
        ...


class MemorySnapshots:
    """A store in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    async def get(self, name: str) -> bytes | None:
        return self.objects.get(name)

    async def delete(self, name: str) -> None:
        self.objects.pop(name, None)


async def load(store: SnapshotStore, name: str) -> Cluster | None:
    """Return the state of an object; None if it is missing, damaged or of another version.

    Raises Unavailable.
    """
    return _decoded(name, await store.get(name) or b"")


async def newest(store: SnapshotStore, upto: int | None = None) -> Cluster:
    """Return the newest usable state up to the sequence `upto`.

    It is empty if no snapshot is usable or the store does not answer.
    """
    found = [
        (snapshot.seq_of(data), name, data)
        for name in (CLUSTER_OBJECT, BASE_OBJECT)
        if (data := await _fetched(store, name))
    ]
    for seq, name, data in sorted(found, reverse=True):
        cluster = _decoded(name, data) if upto is None or seq <= upto else None
        if cluster is not None:
            return cluster
    return Cluster()


async def begin(log: Log, store: SnapshotStore) -> Cluster:
    """Return `newest`. Raises Corrupt if the log ends before it."""
    cluster = await newest(store)
    check_end(cluster, (await settled_bounds(log))[1])
    return cluster


def check_end(cluster: Cluster, last: int) -> None:
    """Raise Corrupt if the log ends before the state that was folded from it."""
    if cluster.seq > last:
        raise Corrupt(
            f"the log ends at {last}, before the snapshot at {cluster.seq}: it was lost or "
            "restored; see docs/howto/restore.md"
        )


async def _fetched(store: SnapshotStore, name: str) -> bytes:
    try:
        return await store.get(name) or b""
    except Unavailable as error:
        logger.warning("the snapshot %s cannot be read: %s", name, error)
        return b""


def _decoded(name: str, data: bytes) -> Cluster | None:
    try:
        return snapshot.decode(data) if data else None
    except Corrupt as error:
        logger.error("the snapshot %s is not used: %s", name, error)
        return None
