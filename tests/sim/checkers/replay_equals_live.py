"""Every living service's state, once it has read all and nothing of its own is in flight, is the fold of the whole log, byte for byte."""

import msgspec

from libs.common import facts as f
from libs.common import fold
from libs.common.cluster import Cluster
from tests.sim.checkers.checker import Checker

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class ReplayEqualsLive(Checker):
    def finished(self) -> None:
        replayed = Cluster()
        for entry in self.world.stream.entries:
            fold.apply_entry(replayed, entry.seq, entry.subject, f.decode(entry.data))
        for name, cluster in self.world.live_states():
            if cluster.seq != replayed.seq:
                self.fail(f"{name} has read up to {cluster.seq}, the log ends at {replayed.seq}")
            elif _encode(cluster) != _encode(replayed):
                self.fail(f"{name} holds another state than the log: {difference(replayed, cluster)}")


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
