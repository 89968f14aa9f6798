"""Two nodes use RDMA if both offer it; the reason says what is missing, and the fact holds it."""

import pytest

from libs.common.model import NodeId
from libs.job.transport import verbs
from services.node_agent.fabric.choice import RDMA, TCP, Offer, between, offer
from tests.given import given, registered, tell

HAS = Offer(RDMA, "port mlx5_0/1 is active")
LACKS = Offer(TCP, "no port is active")


def test_two_nodes_with_rdma_use_it() -> None:
    found = between(HAS, HAS._replace(why="port mlx5_1/1 is active"))
    assert found.transport == RDMA and "mlx5_0/1" in found.why and "mlx5_1/1" in found.why


@pytest.mark.parametrize(
    ("own", "peer", "why"),
    [
        (LACKS, HAS, "this node offers no RDMA: no port is active"),
        (HAS, LACKS, "the peer offers no RDMA: no port is active"),
        (HAS, Offer("", ""), "the peer offers no RDMA: its agent does not say why"),
    ],
)
def test_one_node_without_rdma_makes_it_tcp_and_the_reason_is_said(
    own: Offer, peer: Offer, why: str
) -> None:
    assert between(own, peer) == Offer(TCP, why)


def test_a_node_offers_rdma_if_a_port_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "usable_port", lambda: verbs.Port("mlx5_0", 1, "", 0))
    assert offer() == HAS

    def missing() -> verbs.Port:
        raise verbs.no_rdma("no port is active")

    monkeypatch.setattr(verbs, "usable_port", missing)
    assert offer() == LACKS


def test_a_registration_says_what_the_node_offers_and_why() -> None:
    cluster = given(registered("a", transport=TCP, transport_why=LACKS.why)).cluster
    node = cluster.nodes[NodeId("a")]
    assert (node.transport, node.transport_why) == LACKS
    tell(cluster, registered("a", incarnation=9), seq=99)
    assert node.transport == ""  # an agent that does not say it
