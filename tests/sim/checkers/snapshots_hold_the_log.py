"""A stored snapshot is the fold of the log up to its sequence, and holds nothing else.

A fact that the log has not acknowledged may be lost with its writer. A snapshot with such a fact
would give every process that starts from it a state that no other has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from libs.common import fold
from libs.common.reading import read
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from libs.common.transport.snapshot_store import BASE_OBJECT, CLUSTER_OBJECT
from tests.sim.checkers.checker import Checker
from tests.sim.checkers.replay_equals_live import difference

if TYPE_CHECKING:
    from tests.sim.world import World

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class SnapshotsHoldTheLog(Checker):
    """`folded` is the log up to the last snapshot."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.folded = Cluster()
        world.snapshots.watchers.append(self._stored)

    def _stored(self, name: str, data: bytes) -> None:
        if name not in (CLUSTER_OBJECT, BASE_OBJECT):
            return
        found = snapshot.decode(data)
        assert found is not None
        if found.seq < self.folded.seq:
            self.folded = Cluster()
        for entry in self.world.stream.entries[self.folded.seq : found.seq]:
            commit = read(self.folded.writers, entry.subject, entry.data)
            fold.apply_entry(self.folded, entry.seq, entry.subject, commit)
        if _encode(found) != _encode(self.folded):
            self.fail(
                f"the snapshot {name} at {found.seq} holds another state than the log: "
                f"{difference(self.folded, found)}"
            )
