"""Two nodes use RDMA if both offer it; the reason says what is missing, and the fact holds it."""

import asyncio

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import NodeId
from libs.common.state.node import LINKS_KEPT, TEXT_MAX, LinkView
from libs.job.transport import verbs
from services.node_agent.fabric.choice import (
    DIAL,
    FAILED_MAX,
    FAILED_S,
    RDMA,
    TCP,
    Choices,
    Offer,
    between,
    offer,
)
from services.node_agent.links.chosen import NODES_MAX, ChosenLinks
from services.node_agent.links.report import link_metrics
from tests.given import given, registered, tell

FABRIC = "InfiniBand subnet fe80:0000:0000:0000"
HAS = Offer(RDMA, "port mlx5_0/1 is active", FABRIC)
PORT = verbs.Port(
    device="mlx5_0",
    number=1,
    gid="fe80:0000:0000:0000:ec0d:9a03:0078:64a6",
    gid_index=0,
    layer="InfiniBand",
    kind="IB/RoCE v1",
)
LACKS = Offer(TCP, "no port is active")


def test_two_nodes_with_rdma_use_it() -> None:
    found = between(HAS, Offer(RDMA, "port mlx5_1/1 is active", FABRIC))
    assert found.transport == RDMA and "mlx5_0/1" in found.why and "mlx5_1/1" in found.why


@pytest.mark.parametrize(
    ("own", "peer", "why"),
    [
        (LACKS, HAS, "this node offers no RDMA: no port is active"),
        (HAS, LACKS, "the peer offers no RDMA: no port is active"),
        (HAS, Offer("", ""), "the peer offers no RDMA: its agent does not say why"),
        (
            HAS,
            Offer(RDMA, "", "RoCE v2 IPv4"),
            f"the RDMA ports are in different fabrics: {FABRIC} here, RoCE v2 IPv4 there",
        ),
    ],
)
def test_one_node_without_rdma_makes_it_tcp_and_the_reason_is_said(
    own: Offer, peer: Offer, why: str
) -> None:
    assert between(own, peer) == Offer(TCP, why)


def test_a_node_offers_rdma_if_a_port_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "usable_port", lambda: PORT)
    assert offer() == HAS
    assert offer(TCP) == Offer(TCP, "MUSTER_LINK_TRANSPORT=tcp")

    def missing() -> verbs.Port:
        raise verbs.no_rdma("no port is active")

    monkeypatch.setattr(verbs, "usable_port", missing)
    assert offer() == LACKS


def test_a_registration_says_what_the_node_offers_and_why() -> None:
    cluster = given(registered("a", transport=TCP, transport_why=LACKS.why)).cluster
    node = cluster.nodes[NodeId("a")]
    assert (node.transport, node.transport_why) == (TCP, LACKS.why)
    tell(cluster, registered("a", incarnation=9), seq=99)
    assert node.transport == ""  # an agent that does not say it


@pytest.mark.parametrize(
    ("port", "fabric"),
    [
        (PORT, FABRIC),
        (PORT._replace(layer="Ethernet", kind="RoCE v2"), "RoCE v2 IPv6"),
        (
            verbs.Port("rxe0", 1, f"{verbs.IPV4_MAPPED}0a4d:0001", 1, "Ethernet", "RoCE v2"),
            "RoCE v2 IPv4",
        ),
    ],
)
def test_a_port_names_its_fabric(port: verbs.Port, fabric: str) -> None:
    assert port.fabric == fabric


def test_rdma_that_failed_to_a_node_is_not_tried_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verbs, "usable_port", lambda: PORT)
    now_s = 0.0
    choices = Choices(now_s=lambda: now_s)
    b, c = NodeId("b"), NodeId("c")
    assert choices.to(b, HAS).transport == RDMA
    choices.failed(b, "no answer")
    now_s = FAILED_S - 1
    assert choices.to(b, HAS) == Offer(TCP, "RDMA failed 299 s ago: no answer")
    assert choices.to(c, HAS).transport == RDMA and choices.to(b, LACKS).transport == TCP
    now_s = FAILED_S
    assert choices.to(b, HAS).transport == RDMA
    for number in range(FAILED_MAX + 1):
        choices.failed(NodeId(f"n{number}"), "no answer")
    assert choices.to(NodeId("n0"), HAS).transport == RDMA
    assert choices.to(NodeId("n1"), HAS).transport == TCP


def test_metrics_count_sessions_and_bytes_by_side_and_transport() -> None:
    choices = Choices(TCP)
    assert link_metrics("a", choices.counts()) == []
    choices.ended(DIAL, RDMA, 7)
    choices.ended(DIAL, RDMA, 5)
    lines = link_metrics("a", choices.counts())
    marks = '{Hostname="a",side="dial",transport="rdma"}'
    assert f"muster_link_sessions_total{marks} 2" in lines
    assert f"muster_link_bytes_total{marks} 12" in lines


LINK = f.LinkChosen(
    node_id=NodeId("a"), incarnation=1, peer=NodeId("b"), transport=RDMA, why="both offer it"
)


def test_the_state_has_the_last_link_to_each_node_until_the_node_registers_again() -> None:
    cluster = given(registered("a"), registered("b"), LINK).cluster
    node = cluster.nodes[NodeId("a")]
    assert node.links == {"b": LinkView(RDMA, "both offer it")}
    tell(cluster, replace(LINK, transport=TCP, why="x" * 1_000), seq=10)
    assert node.links == {"b": LinkView(TCP, "x" * TEXT_MAX)}
    for number in range(LINKS_KEPT):
        tell(cluster, replace(LINK, peer=NodeId(f"n{number}")), seq=11 + number)
    assert len(node.links) == LINKS_KEPT and "b" not in node.links
    tell(cluster, registered("a", incarnation=2), seq=200)
    assert node.links == {}


@pytest.mark.parametrize(
    "wrong",
    [{"incarnation": 2}, {"transport": "smoke"}, {"peer": "B/../c"}, {"node_id": "unknown"}],
)
def test_a_link_of_another_life_or_an_unknown_kind_is_ignored(wrong: dict[str, object]) -> None:
    cluster = given(registered("a")).cluster
    before = cluster.ignored
    tell(cluster, replace(LINK, **wrong), seq=10)
    assert cluster.nodes[NodeId("a")].links == {} and cluster.ignored == before + 1


class Records:
    """A writer that keeps what it gets."""

    def __init__(self) -> None:
        self.facts: list[f.LinkChosen] = []

    def put(self, facts: list[f.LinkChosen]) -> None:
        self.facts += facts


async def test_a_choice_is_recorded_once_and_again_when_it_changes() -> None:
    records, lives = Records(), [1]
    chosen = ChosenLinks(NodeId("a"), records, lambda: lives[-1], asyncio.get_running_loop())

    async def noted(peer: str, transport: str) -> list[tuple[str, str, int]]:
        before = len(records.facts)
        await asyncio.to_thread(chosen.note, NodeId(peer), Offer(transport, "because"))
        await asyncio.sleep(0)
        return [(each.peer, each.transport, each.incarnation) for each in records.facts[before:]]

    assert await noted("b", TCP) == [("b", TCP, 1)]
    assert await noted("b", TCP) == [] and await noted("c", TCP) == [("c", TCP, 1)]
    assert await noted("b", RDMA) == [("b", RDMA, 1)]
    lives.append(2)
    assert await noted("b", RDMA) == [("b", RDMA, 2)]
    for number in range(NODES_MAX):
        await noted(f"n{number}", TCP)
    assert await noted("b", RDMA) == [("b", RDMA, 2)]
    closed = asyncio.new_event_loop()
    closed.close()
    ChosenLinks(NodeId("a"), records, lambda: 1, closed).note(NodeId("b"), Offer(TCP))
