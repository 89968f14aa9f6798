"""Which nodes another node may fetch kept weights from, and in which order."""

import pytest

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.model import NodeId, TenantId
from libs.common.state.cluster import Cluster, Node
from libs.common.state.kept import Kept, KeptEntry
from services.api_gateway.agents.weight_sources import may_come, own_request, sources

ASKS = NodeId("asks")
NAMES = [f"n{number}" for number in range(6)]


def world(**states: str) -> tuple[Cluster, Kept]:
    kept = Kept(model="chat", tier="host", tenant=TenantId("red"), user="", request=7)
    kept.entries = {
        NodeId(name): KeptEntry(NodeId(name), 1, state)
        for name, state in {"asks": kept_life.FILLING, **states}.items()
    }
    nodes = {each: Node(each, "healthy", link_address="h:1") for each in kept.entries}
    return Cluster(nodes=nodes, kept={kept.key: kept}), kept


def ready(*names: str) -> tuple[Cluster, Kept]:
    return world(**dict.fromkeys(names, kept_life.READY))


@pytest.mark.parametrize("state", [kept_life.REQUESTED, kept_life.FAILED, kept_life.READY])
def test_a_node_with_an_entry_of_the_request_may_ask(state: str) -> None:
    cluster, kept = world(asks=state)
    assert own_request(cluster, ASKS, "chat", 7) is kept


@pytest.mark.parametrize(
    ("node", "model", "request_seq"),
    [("asks", "chat", 6), ("asks", "other", 7), ("n9", "chat", 7), ("gone", "chat", 7)],
)
def test_other_nodes_models_and_requests_are_refused(
    node: str, model: str, request_seq: int
) -> None:
    cluster, _ = world(gone=kept_life.EVICTED)
    with pytest.raises(Refused, match=f"node {node} has no entry of request {request_seq}"):
        own_request(cluster, NodeId(node), model, request_seq)


def test_only_other_ready_nodes_that_take_links_are_sources() -> None:
    cluster, kept = ready("ready", "away", "revoked", "without", "avoided")
    kept.entries |= {
        NodeId("gone"): KeptEntry(NodeId("gone"), 1, kept_life.READY),
        NodeId("filling"): KeptEntry(NodeId("filling"), 1, kept_life.FILLING),
    }
    kept.entries[ASKS].state = kept_life.READY
    cluster.nodes[NodeId("away")].state = "unreachable"
    cluster.nodes[NodeId("revoked")].revoked = "it wrote too much"
    cluster.nodes[NodeId("without")].link_address = ""
    assert sources(cluster, kept, ASKS, [NodeId("avoided")]) == ["ready"]


def test_nodes_of_the_same_measured_rack_come_first() -> None:
    cluster, kept = ready(*NAMES)
    for name in ("asks", "n3", "n5"):
        cluster.nodes[NodeId(name)].measured_rack = "m1"
    cluster.nodes[NodeId("n0")].measured_rack = "m2"
    found = sources(cluster, kept, ASKS, ())
    assert set(found[:2]) == {"n3", "n5"} and sorted(found) == NAMES


def test_asking_nodes_spread_over_the_sources() -> None:
    cluster, kept = ready(*NAMES)
    orders = {tuple(sources(cluster, kept, NodeId(name), ())) for name in NAMES}
    assert len({order[0] for order in orders}) > 1
    assert sources(cluster, kept, ASKS, ()) == sources(cluster, kept, ASKS, ())


def test_an_entry_on_its_way_may_become_a_source() -> None:
    for state in (kept_life.REQUESTED, kept_life.MEASURED, kept_life.FILLING):
        cluster, kept = world(other=state)
        assert may_come(cluster, kept, ASKS, ())
        assert not may_come(cluster, kept, ASKS, [NodeId("other")])
    for state in (kept_life.FAILED, kept_life.EVICTED, kept_life.READY):
        assert not may_come(*world(other=state), ASKS, ())
