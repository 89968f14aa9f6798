"""Requests about the fabric: what a body must say, and which fact follows."""

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.facts.fabric_facts import LinkSuspected, NodeMeasured, PairMeasured
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from services.api_gateway.intents.fabric_intents import (
    WAITING_MAX,
    drain_clearance,
    requested_test,
)
from services.api_gateway.problems import Problem
from services.api_gateway.views.fabric import fabric_shown, shown_test
from tests.given import given, registered, tell

ONE, TWO = NodeId("n1"), NodeId("n2")


def cluster() -> Cluster:
    return given(registered("n1"), registered("n2")).cluster


def test_no_nodes_mean_all_idle_ones() -> None:
    assert requested_test(cluster(), {}, "t") == f.FabricTestRequested(test="t")


def test_named_nodes_are_taken_once() -> None:
    fact = requested_test(cluster(), {"nodes": ["n2", "n1", "n2"], "user": "ada"}, "t")
    assert fact == f.FabricTestRequested(test="t", nodes=(TWO, ONE), user="ada")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"nodes": ["n3"]}, "node 'n3' is not known"),
        ({"nodes": ["n1"]}, "n1 alone has no link to measure"),
        ({"nodes": "n1"}, "nodes: expected a list, got a text"),
        ({"nodes": [1]}, "expected a text, got a whole number"),
        ({"node": []}, "did you mean 'nodes'"),
    ],
)
def test_a_wrong_body_is_refused_with_what_to_do(body: object, words: str) -> None:
    with pytest.raises(Refused, match=words):
        requested_test(cluster(), body, "t")


def test_too_many_waiting_tests_are_refused() -> None:
    full = cluster()
    for number in range(WAITING_MAX):
        tell(full, f.FabricTestRequested(test=f"t{number}"))
    with pytest.raises(Problem, match="wait already"):
        requested_test(full, {}, "one more")


def test_online_ends_the_drain_of_the_scheduler_and_other_states_do_not() -> None:
    state = cluster()
    node = state.nodes[ONE]
    assert drain_clearance(node, {"service": "online"}) == []
    tell(state, f.NodeDrained(node_id=ONE, test="t", evidence="slow"))
    assert drain_clearance(node, {"service": "draining"}) == []
    [cleared] = drain_clearance(node, {"service": "online", "user": "ada"})
    assert cleared == f.NodeDrainCleared(node_id=ONE, test="t", user="ada")
    tell(state, cleared)
    assert not node.is_drained


def test_a_test_is_shown_while_it_waits_runs_and_after_its_end() -> None:
    state = cluster()
    assert shown_test(state, "t") is None
    tell(state, f.FabricTestRequested(test="t", nodes=(ONE, TWO)))
    shown = shown_test(state, "t")
    assert shown is not None and shown.state == "waiting"
    tell(state, f.FabricTestBegun(test="t", purpose="requested", nodes=(ONE, TWO)))
    shown = shown_test(state, "t")
    assert shown is not None and shown.state == "running"
    tell(state, f.FabricRoundOrdered(test="t", number=1, pairs=((ONE, TWO),)))
    results = (PairMeasured(ONE, TWO, 1_000, 900, 500, 40_000),)
    tell(state, f.FabricRoundClosed(test="t", number=1, pairs=results, at_ns=1))
    ended = f.FabricTestEnded(
        test="t",
        outcome="done",
        nodes=(NodeMeasured(ONE, 900, 900, 1, 1, 500, "slow"),),
        links=(LinkSuspected(ONE, TWO, 900, 300),),
        racks=((ONE, TWO),),
        at_ns=2_000_000_000,
    )
    tell(state, ended)
    shown = shown_test(state, "t")
    assert shown is not None and (shown.state, shown.pairs, shown.rounds) == ("done", 1, 1)
    fabric = fabric_shown(state)
    assert [(pair.a, pair.forward, pair.backward) for pair in fabric.pairs] == [("n1", 1_000, 900)]
    assert [(node.node, node.suspect, node.rack) for node in fabric.nodes] == [("n1", "slow", "m1")]
    assert [(link.a, link.b, link.part) for link in fabric.links] == [("n1", "n2", 0.3)]
    assert fabric.racks == {"m1": ["n1", "n2"]} and fabric.pairs_left_out == 0
    assert [test.id for test in fabric.tests] == ["t"]
