"""Every service's state equals the fold of the whole log, and so does a state built from a
snapshot.

A service is compared once it has read everything and none of its appends is under way. The fold
includes trimmed commits; the other state comes from a snapshot and the rest of the log.

The acknowledged fold is compared byte for byte. A working state does not know the sequences of its
own facts, stamps them when it decides rather than when it commits, and may ignore facts that came
before them in the log. Those fields are left out, except the times at which jobs were placed and
had their turn, which it reads from the log. Its indexes must equal those of a fresh state over the
same fold.
"""

from typing import Any

import msgspec

from libs.common import fold
from libs.common.errors import Trimmed
from libs.common.life.job_life import ENDED
from libs.common.reading import read
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from libs.common.transport.snapshot_store import BASE_OBJECT, CLUSTER_OBJECT
from services.scheduler.state.state import State as SchedulerState
from tests.sim.checkers.checker import Checker

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class ReplayEqualsLive(Checker):
    def finished(self) -> None:
        replayed = Cluster()
        for entry in self.world.stream.entries:
            fold.apply_entry(
                replayed,
                entry.seq,
                entry.subject,
                read(replayed.writers, entry.subject, entry.data),
            )
        self._compare("a reader that starts now", _encode(replayed), _encode(self._started()))
        for name, cluster in self.world.acknowledged():
            if _encode(cluster) != _encode(replayed):
                self.fail(
                    f"{name} holds another state than the log: {difference(replayed, cluster)}"
                )
        for name, state in self.world.ahead():
            self._compare(name, comparable(replayed), comparable(state.cluster))
            if isinstance(state, SchedulerState):
                self._compare(
                    f"{name}: indexes", indexes(SchedulerState(state.cluster)), indexes(state)
                )

    def _started(self) -> Cluster:
        objects = self.world.snapshots.objects
        stored = [objects[name] for name in (BASE_OBJECT, CLUSTER_OBJECT) if name in objects]
        newest = max(stored, key=snapshot.seq_of, default=None)
        cluster = (snapshot.decode(newest) if newest is not None else None) or Cluster()
        stream = self.world.stream
        try:
            tail = stream.following(cluster.seq, len(stream.entries))
        except Trimmed as error:
            self.fail(f"no service can start any more: {error}")
            return cluster
        for entry in tail:
            fold.apply_entry(
                cluster, entry.seq, entry.subject, read(cluster.writers, entry.subject, entry.data)
            )
        return cluster

    def _compare(self, name: str, wanted: object, found: object) -> None:
        if wanted != found:
            self.fail(f"{name} holds another state than the log: {difference(wanted, found)}")


def comparable(cluster: Cluster) -> dict[str, Any]:
    """Return the part of a state on which a working state must agree with the log."""
    told: dict[str, Any] = msgspec.to_builtins(cluster)
    told["ended"] = sorted(told["ended"])
    del told["ignored"]
    for model in told["models"].values():
        model["last_crash_ns"] = 0
    for kept in told["kept"].values():
        for entry in kept["entries"].values():
            entry["at_ns"] = 0
    for job in told["jobs"].values():
        job |= {name: 0 for name in job if name.endswith("_ns") and name != "placed_ns"}
        if job["state"] in ENDED:
            job["cancel"] = None
    return told


def indexes(state: SchedulerState) -> dict[str, Any]:
    """Return the scheduler's derived indexes, independent of the order in which they were built."""
    capacity = state.capacity
    return {
        "buckets": state.buckets.of,
        "waiting": {job_id: waiting.shape for job_id, waiting in state.queue.waiting.items()},
        "free": {
            p.node_id: (p.whole, p.parts, p.lefts, p.cpus_free, p.memory_free)
            for p in capacity.places
            if p is not None
        },
        "sizes": capacity.sizes,
        "queues": {name: held for name, held in state.queue_held.items() if held},
        "returning": state.nodes.returning,
        "dead": state.nodes.dead,
        "ports": {address: ports for address, ports in state.ports.used.items() if ports},
    }


def difference(replayed: object, live: object) -> str:
    """The first place where two states differ, for a person."""
    return _differ("", msgspec.to_builtins(replayed), msgspec.to_builtins(live))


def _differ(path: str, left: object, right: object) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            if left.get(key) != right.get(key):
                return _differ(f"{path}.{key}", left.get(key), right.get(key))
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            if one != other:
                return _differ(f"{path}[{index}]", one, other)
    return f"{path}: the log says {left!r}, the service {right!r}"
