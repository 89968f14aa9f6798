"""Snapshots of the gateway's state: stored after every SNAPSHOT_EVERY commits and loaded at the
start, so that a start replays only the rest of the log.

A snapshot is two objects. `cluster` is `libs.common.transport.snapshot`, from which any service may
start. `history.<seq>` lists the commits of each job up to the same sequence. It is stored first, so
a crash in between leaves the older pair complete.

Encoding blocks the interpreter for about 5 ms per 10,000 jobs. It runs on the loop's thread between
two commits. Another thread would need a copy of the state, which costs more.
"""

import logging
from collections.abc import Awaitable
from typing import Final

import msgspec

from libs.common.errors import Corrupt, Diverged, Unavailable
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot, snapshot_store
from libs.common.transport.snapshot_store import BASE_OBJECT, CLUSTER_OBJECT, SnapshotStore
from services.api_gateway.views.history import History

SNAPSHOT_EVERY: Final = 50_000

logger = logging.getLogger(__name__)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(History)


class Pair(msgspec.Struct, frozen=True):
    """The encoded cluster and history of one sequence."""

    seq: int
    cluster: bytes
    history: bytes


def encode(cluster: Cluster, history: History) -> Pair:
    """Return the encoded present state. Call it between two commits."""
    return Pair(cluster.seq, snapshot.encode(cluster), _encoder.encode(history))


async def load(store: SnapshotStore) -> tuple[Cluster, History]:
    """Return the newest stored state.

    It is empty if no usable snapshot is stored, or if its history is missing and the log is
    complete. Raises Corrupt if the history is damaged, Unavailable if the store does not answer.
    """
    cluster = await snapshot_store.newest(store)
    history = await store.get(_history_object(cluster.seq)) if cluster.seq else None
    if history is None and await store.get(BASE_OBJECT) is not None:
        logger.warning("histories begin at %d: the log before it was trimmed", cluster.seq + 1)
        return cluster, History()
    if history is None:
        return Cluster(), History()
    try:
        return cluster, _decoder.decode(history)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the history beside the snapshot at {cluster.seq} cannot be read ({error}): "
            "delete both objects"
        ) from error


class Snapshots:
    """Stores the state when a snapshot is due.

    If the store does not answer, a warning is logged: the log still has every commit.
    """

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
            logger.warning(
                "the snapshot at %d was not stored (%s); the next one is due at %d",
                pair.seq,
                error,
                pair.seq + SNAPSHOT_EVERY,
            )

    async def distrusted_after(self, running: Awaitable[None]) -> None:
        """Run the gateway, and delete the stored state if the gateway's own state was wrong.

        Only a stored state that this gateway had loaded or stored is deleted, because it may be
        wrong too. The next start then folds more of the log.
        """
        try:
            await running
        except Diverged:
            await self._distrust()
            raise

    async def _distrust(self) -> None:
        try:
            stored = snapshot.seq_of(await self.store.get(CLUSTER_OBJECT) or b"")
            if not stored or stored != self.stored_seq:
                return  # another gateway stored it
            await self.store.delete(CLUSTER_OBJECT)
        except Unavailable as error:
            logger.warning("the snapshot was not deleted, and may be wrong: %s", error)
            return
        logger.error("the snapshot at %d may be wrong and was deleted", stored)


def _history_object(seq: int) -> str:
    return f"history.{seq}"
