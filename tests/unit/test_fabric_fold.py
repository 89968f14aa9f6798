"""A fact about the fabric takes effect only in the test and round for which it was recorded."""

import pytest

from libs.common import facts as f
from libs.common.facts.fabric_facts import REQUESTED, PairMeasured
from libs.common.model import NodeId
from libs.common.state.fabric import ENDED_KEPT, PAIRS_KEPT, pair_key
from tests.history import History, begun

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
REQUEST = f.FabricTestRequested(test="t", nodes=(N1, N2))
BEGUN = f.FabricTestBegun(test="t", purpose=REQUESTED, nodes=(N1, N2))
ROUND = f.FabricRoundOrdered(test="t", number=1, pairs=((N1, N2),))
CLOSED = f.FabricRoundClosed(test="t", number=1, pairs=())
ENDED = f.FabricTestEnded(test="t", outcome="done")


def under_way(*facts: f.AnyFact) -> History:
    """A test between two nodes, and what was recorded since it began."""
    history = begun(nodes=3)
    assert history.say(BEGUN, *facts)
    return history


def test_a_test_is_requested_once_however_far_it_is() -> None:
    history = begun(nodes=2)
    assert history.say(REQUEST)
    assert not history.say(REQUEST)
    assert history.say(BEGUN)
    assert not history.say(REQUEST)
    assert history.say(ENDED)
    assert not history.say(REQUEST)


def test_a_test_begins_once() -> None:
    history = begun(nodes=2)
    history.say(REQUEST)
    assert history.say(BEGUN)
    assert history.cluster.fabric.requests == {}
    assert not history.say(BEGUN)


def test_a_round_is_ordered_only_as_the_next_one_of_a_test_without_an_open_round() -> None:
    assert not begun(nodes=2).say(ROUND)
    history = under_way()
    assert not history.say(f.FabricRoundOrdered(test="t", number=2, pairs=((N1, N2),)))
    assert history.say(ROUND)
    assert not history.say(f.FabricRoundOrdered(test="t", number=2, pairs=((N1, N2),)))


@pytest.mark.parametrize(
    ("node", "peer", "test", "number"),
    [
        ("n1", "n2", "other", 1),
        ("n1", "n2", "t", 2),
        ("n1", "n3", "t", 1),
        ("n3", "n1", "t", 1),
    ],
)
def test_a_report_counts_only_for_the_open_round_and_the_ordered_pair(
    node: str, peer: str, test: str, number: int
) -> None:
    history = under_way(ROUND)
    report = f.FabricProbed(
        node_id=NodeId(node), peer=NodeId(peer), test=test, number=number, bandwidth=7
    )
    assert history.say(report)
    assert history.cluster.fabric.tests["t"].probes == {}


def test_the_first_report_of_a_node_counts() -> None:
    history = under_way(ROUND)
    for bandwidth in (7, 8):
        history.say(
            f.FabricProbed(node_id=N2, peer=N1, test="t", number=1, bandwidth=bandwidth, rtt_ns=-1)
        )
    (probe,) = history.cluster.fabric.tests["t"].probes.values()
    assert (probe.bandwidth, probe.rtt_ns) == (7, 0)


def test_a_round_is_closed_once() -> None:
    assert not begun(nodes=2).say(CLOSED)
    history = under_way()
    assert not history.say(CLOSED)
    history.say(ROUND)
    assert not history.say(f.FabricRoundClosed(test="t", number=2, pairs=()))
    assert history.say(CLOSED)
    assert not history.say(CLOSED)


def test_a_failed_probe_keeps_the_last_bandwidth_beside_its_error() -> None:
    history = under_way(ROUND)
    good = PairMeasured(a=N1, b=N2, forward=9, backward=8)
    history.say(f.FabricRoundClosed(test="t", number=1, pairs=(good,), at_ns=5))
    history.say(f.FabricRoundOrdered(test="t", number=2, pairs=((N1, N2),)))
    bad = PairMeasured(a=N1, b=N2, error="no route")
    history.say(f.FabricRoundClosed(test="t", number=2, pairs=(bad,), at_ns=6))
    view = history.cluster.fabric.pairs[pair_key(N1, N2)]
    assert (view.bandwidth, view.at_ns, view.error) == (8, 5, "no route")


def test_the_pairs_measured_longest_ago_leave_first() -> None:
    history = under_way(ROUND)
    peers = [NodeId(f"p{number}") for number in range(PAIRS_KEPT + 1)]
    results = tuple(PairMeasured(a=N1, b=peer, forward=9, backward=9) for peer in peers)
    history.say(f.FabricRoundClosed(test="t", number=1, pairs=results))
    kept = history.cluster.fabric.pairs
    assert len(kept) == PAIRS_KEPT
    assert pair_key(N1, peers[0]) not in kept and pair_key(N1, peers[1]) in kept


def test_a_test_that_is_not_under_way_does_not_end() -> None:
    assert not begun(nodes=2).say(ENDED)


def test_the_tests_that_ended_first_are_forgotten_first() -> None:
    history = begun(nodes=2)
    for number in range(ENDED_KEPT + 1):
        history.say(f.FabricTestBegun(test=f"t{number}", purpose=REQUESTED, nodes=(N1, N2)))
        history.say(f.FabricTestEnded(test=f"t{number}", outcome="done"))
    assert list(history.cluster.fabric.ended) == [f"t{n}" for n in range(1, ENDED_KEPT + 1)]


def test_measured_racks_replace_those_of_the_test_before() -> None:
    history = under_way()
    assert history.say(f.FabricTestEnded(test="t", outcome="done", racks=((N1, N2),)))
    nodes = history.cluster.nodes
    assert [nodes[name].network_rack for name in (N1, N2, N3)] == ["m1", "m1", ""]
    history.say(f.FabricTestBegun(test="u", purpose=REQUESTED, nodes=(N1, N2, N3)))
    history.say(f.FabricTestEnded(test="u", outcome="done", racks=((N1,), (N2, N3))))
    assert [nodes[name].network_rack for name in (N1, N2, N3)] == ["m1", "m2", "m2"]


def test_only_a_known_node_is_drained_and_returned() -> None:
    history, unknown = begun(), NodeId("unknown")
    assert not history.say(f.NodeDrained(node_id=unknown, test="t", evidence="slow"))
    assert not history.say(f.NodeDrainCleared(node_id=unknown, test="t"))
    assert history.say(f.NodeDrained(node_id=N1, test="t", evidence="slow"))
    assert history.cluster.nodes[N1].is_drained
    assert history.say(f.NodeDrainCleared(node_id=N1, test="t"))
    assert not history.cluster.nodes[N1].is_drained
