"""Checks that agents make on each other's datagrams."""

import msgspec
import nkeys
import pytest

from libs.common.messages import Roster, RosterEntry
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node
from libs.common.timing import Timing
from services.node_agent.peers.peer_messages import (
    DATAGRAM_BYTES_MAX,
    PeerAnswer,
    PeerAsk,
    Reader,
    Said,
    Signer,
)
from services.node_agent.peers.peers_udp import place
from services.scheduler.leases.roster import NODES_MAX, WORD_MAX, roster

NONCE = b"0123456789abcdef"


def signer(number: int) -> Signer:
    return Signer(nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER))


KEYS = {NodeId("a"): signer(1), NodeId("b"): signer(2)}
ROSTER = Roster(
    cluster_id="home",
    seq=1,
    digest="",
    lease_ms=13_000,
    nodes=tuple(RosterEntry(name, "", key.public, 5) for name, key in KEYS.items()),
)


def ask(
    node: str = "b", cluster: str = "home", incarnation: int = 5, nonce: bytes = NONCE
) -> PeerAsk:
    return PeerAsk(cluster, NodeId(node), incarnation, nonce)


def heard(said: Said, by: int = 2) -> Said | None:
    return Reader(ROSTER).read(signer(by).datagram(said))


def test_message_signed_by_a_roster_node_is_believed() -> None:
    answer = PeerAnswer(
        cluster_id="home",
        node_id=NodeId("b"),
        incarnation=6,
        nonce=NONCE,
        to=NodeId("a"),
        unrenewed_ms=700,
    )
    assert heard(ask()) == ask()
    assert heard(answer) == answer


def test_question_of_an_older_build_is_read_and_names_no_recipient() -> None:
    before = msgspec.msgpack.encode(["ask", "home", "b", 5, NONCE])
    assert msgspec.msgpack.decode(before, type=PeerAsk) == ask()
    assert ask().to == ""


def test_older_build_reads_a_question_that_names_its_recipient() -> None:
    class Before(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
        cluster_id: str
        node_id: NodeId
        incarnation: int
        nonce: bytes

    now = msgspec.msgpack.encode(
        PeerAsk(cluster_id="home", node_id=NodeId("b"), incarnation=5, nonce=NONCE, to=NodeId("a"))
    )
    assert msgspec.msgpack.decode(now, type=Before) == Before("home", NodeId("b"), 5, NONCE)


@pytest.mark.parametrize(
    "said",
    [ask(cluster="away"), ask(incarnation=4), ask(node="unknown"), ask(nonce=b"short")],
    ids=[
        "of another cluster",
        "of an older life",
        "of a node outside the roster",
        "without a whole nonce",
    ],
)
def test_message_from_outside_the_roster_is_dropped(said: Said) -> None:
    assert heard(said) is None


def test_message_signed_by_another_node_is_dropped() -> None:
    assert heard(ask(), by=1) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff" * 40,
        b"\x92\xc4\x01\x00\xc4\x00",
        b"\x90",
        b"x" * (DATAGRAM_BYTES_MAX + 1),
    ],
)
def test_junk_is_dropped(data: bytes) -> None:
    assert Reader(ROSTER).read(data) is None


def test_a_changed_byte_is_found() -> None:
    good = signer(2).datagram(ask())
    for at in range(len(good)):
        assert Reader(ROSTER).read(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]) is None


@pytest.mark.parametrize("key", ["", "U", "UAAA", "1" * 56, "é" * 56])
def test_invalid_public_key_in_the_roster_is_reported(key: str) -> None:
    entries = (RosterEntry(NodeId("b"), "", key, 5),)
    assert (
        Reader(msgspec.structs.replace(ROSTER, nodes=entries)).read(signer(2).datagram(ask()))
        is None
    )


def test_an_address_is_an_ip_and_a_port() -> None:
    assert place("10.0.0.7:9") == ("10.0.0.7", 9)
    assert [
        place(text)
        for text in (
            "",
            "10.0.0.7",
            "10.0.0.7:",
            ":9",
            "10.0.0.7:0",
            "10.0.0.7:65536",
            "10.0.0.7:x",
        )
    ] == [None] * 7


# The roster that the scheduler gives.


def cluster(size: int, word: str = "10.0.0.1:40000") -> Cluster:
    nodes = [
        Node(
            NodeId(f"{'n' * 58}{number:05}"),
            "healthy",
            number,
            peer_address=word,
            peer_key="U" * 56,
        )
        for number in range(size)
    ]
    return Cluster(
        seq=9,
        cluster_id="home",
        timing=Timing(lease_ms=13_000),
        nodes={node.node_id: node for node in nodes},
    )


def test_a_roster_names_the_nodes_in_order_of_their_first_registration() -> None:
    found = roster(cluster(3))
    assert [entry.node_id[-1] for entry in found.nodes] == ["0", "1", "2"]
    assert (found.seq, found.lease_ms, found.cluster_id) == (9, 13_000, "home")


def test_a_later_incarnation_alone_is_no_other_roster_but_an_address_is() -> None:
    one, later = cluster(3), cluster(3)
    next(iter(later.nodes.values())).incarnation += 1
    assert roster(one).digest == roster(later).digest != roster(cluster(3, "10.0.0.2:40000")).digest


def test_the_largest_roster_is_below_a_message_of_the_log_server() -> None:
    assert len(msgspec.msgpack.encode(roster(cluster(NODES_MAX, "1" * WORD_MAX)))) < 1 << 20
    assert len(msgspec.msgpack.encode(roster(cluster(1_000)))) < 200_000


def test_too_many_nodes_or_too_long_words_are_left_out() -> None:
    assert roster(cluster(NODES_MAX + 1)).nodes == ()
    assert roster(cluster(1, "1" * (WORD_MAX + 1))).nodes[0].address == ""
