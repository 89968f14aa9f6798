"""The measured fabric as the API shows it. Pure."""

from typing import Final

import msgspec

from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, is_removed
from libs.common.state.fabric import EndedTest, FabricTest, pair_of
from services.api_gateway.times import rfc3339

# Pairs of one answer; the ones measured last are shown.
PAIRS_MAX: Final = 4_096


class PairShown(msgspec.Struct):
    """A measured pair. Bandwidths are bytes per second.

    `forward` is from `a` to `b`. `usual` and `spread` are the pair's own baseline. `error` is the
    failure of the last probe; the other values are then older.
    """

    a: str
    b: str
    forward: int
    backward: int
    small: int
    rtt_us: float
    usual: int
    spread: int
    measured: str | None
    error: str


class NodeFabricShown(msgspec.Struct):
    """The rate of a node in bytes per second, its baseline, and why it is a suspect (or "")."""

    node: str
    capacity: int
    usual: int
    spread: int
    values: int
    part: float
    suspect: str
    rack: str
    drained: str
    measured: str | None


class LinkShown(msgspec.Struct):
    """A suspect link, and its part of the usual value."""

    a: str
    b: str
    bandwidth: int
    part: float
    measured: str | None


class TestShown(msgspec.Struct):
    """A test: waiting, running, done or failed.

    `left_out` names the nodes that were not measured, and why.
    """

    __test__ = False

    id: str
    purpose: str
    state: str
    detail: str
    nodes: tuple[str, ...]
    left_out: tuple[str, ...]
    rounds: int
    pairs: int
    ended: str | None


class FabricShown(msgspec.Struct):
    """The measured fabric. `racks` are measured ones, by name."""

    nodes: list[NodeFabricShown]
    links: list[LinkShown]
    racks: dict[str, list[str]]
    racks_measured: str | None
    pairs: list[PairShown]
    pairs_left_out: int
    tests: list[TestShown]
    seq: int


def fabric_shown(cluster: Cluster) -> FabricShown:
    """Return all that is known of the fabric between nodes that are not removed."""
    fabric = cluster.fabric
    gone = {node_id for node_id in cluster.nodes if is_removed(cluster, node_id)}
    kept = [key for key in fabric.pairs if not gone.intersection(pair_of(key))]
    racks: dict[str, list[str]] = {}
    for node_id, rack in fabric.racks.items():
        if node_id not in gone:
            racks.setdefault(rack, []).append(node_id)
    return FabricShown(
        nodes=[_node(cluster, name) for name in sorted(fabric.nodes) if name not in gone],
        links=[_link(cluster, key) for key in fabric.links if not gone.intersection(pair_of(key))],
        racks=racks,
        racks_measured=rfc3339(fabric.racks_ns),
        pairs=[_pair(cluster, key) for key in kept[-PAIRS_MAX:]],
        pairs_left_out=max(0, len(kept) - PAIRS_MAX),
        tests=[
            *(_waiting(name, nodes) for name, nodes in fabric.requests.items()),
            *(_running(test) for test in fabric.tests.values()),
            *(_ended(test) for test in reversed(fabric.ended.values())),
        ],
        seq=cluster.seq,
    )


def shown_test(cluster: Cluster, name: str) -> TestShown | None:
    """Return a test by its id; None if it is not known (any more)."""
    fabric = cluster.fabric
    if name in fabric.requests:
        return _waiting(name, fabric.requests[name])
    if name in fabric.tests:
        return _running(fabric.tests[name])
    return _ended(fabric.ended[name]) if name in fabric.ended else None


def _pair(cluster: Cluster, key: str) -> PairShown:
    view, (a, b) = cluster.fabric.pairs[key], pair_of(key)
    return PairShown(
        a=a,
        b=b,
        forward=view.forward,
        backward=view.backward,
        small=view.small,
        rtt_us=view.rtt_ns / 1_000,
        usual=view.baseline.usual,
        spread=view.baseline.spread,
        measured=rfc3339(view.at_ns),
        error=view.error,
    )


def _node(cluster: Cluster, node_id: NodeId) -> NodeFabricShown:
    view, node = cluster.fabric.nodes[node_id], cluster.nodes.get(node_id)
    return NodeFabricShown(
        node=node_id,
        capacity=view.capacity,
        usual=view.baseline.usual,
        spread=view.baseline.spread,
        values=view.baseline.values,
        part=view.part / 1_000,
        suspect=view.reason,
        rack=node.network_rack if node is not None else "",
        drained=node.drain_evidence if node is not None and node.is_drained else "",
        measured=rfc3339(view.at_ns),
    )


def _link(cluster: Cluster, key: str) -> LinkShown:
    view, (a, b) = cluster.fabric.links[key], pair_of(key)
    return LinkShown(a, b, view.bandwidth, view.part / 1_000, rfc3339(view.at_ns))


def _waiting(name: str, nodes: tuple[str, ...]) -> TestShown:
    return TestShown(
        id=name,
        purpose="requested",
        state="waiting",
        detail="",
        nodes=nodes,
        left_out=(),
        rounds=0,
        pairs=0,
        ended=None,
    )


def _running(test: FabricTest) -> TestShown:
    return TestShown(
        id=test.test,
        purpose=test.purpose,
        state="running",
        detail="",
        nodes=test.nodes,
        left_out=test.left_out,
        rounds=test.number,
        pairs=test.measured,
        ended=None,
    )


def _ended(test: EndedTest) -> TestShown:
    return TestShown(
        id=test.test,
        purpose=test.purpose,
        state=test.outcome,
        detail=test.detail,
        nodes=test.nodes,
        left_out=test.left_out,
        rounds=test.rounds,
        pairs=test.pairs,
        ended=rfc3339(test.at_ns),
    )
