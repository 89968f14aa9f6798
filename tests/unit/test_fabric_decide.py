"""The scheduler's rules of fabric tests, in states that facts made."""

from itertools import combinations

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.bounds import bounded
from libs.common.facts.fabric_facts import REQUESTED, SCHEDULED
from libs.common.model import JobId, NodeId
from libs.common.settings.settings import Settings
from libs.common.state.fabric import FAILED, PairView, pair_key
from services.scheduler.decide.fabric import HOUR_NS, ROUND_MORE_NS
from services.scheduler.orders.orders import message, probe_orders
from services.scheduler.state.fabric_rules import MS, FabricRules, fabric_rules
from tests.given import SECOND_NS, waiting
from tests.unit.fabric_world import FAST, FabricWorld
from tests.unit.scheduler_decisions import decisions, hear


def test_a_tournament_measures_every_pair_and_finds_a_healthy_fabric() -> None:
    given = FabricWorld(6)
    ended = given.end()
    assert [order.stage for order in given.rounds] == [0] * 5
    assert len(given.state.cluster.fabric.pairs) == 15
    assert ended.links == () and ended.detail == ""
    assert [node.reason for node in ended.nodes] == [""] * 6
    assert ended.racks == (tuple(given.names),)
    assert given.state.cluster.fabric.ended["t"].pairs == 15


def test_no_node_is_twice_in_a_round() -> None:
    given = FabricWorld(7)
    given.end()
    for order in given.rounds:
        nodes = [node for pair in order.pairs for node in pair]
        assert len(nodes) == len(set(nodes))


def test_a_slow_node_and_a_slow_link_are_confirmed_and_named() -> None:
    given = FabricWorld(8)
    given.capacity[given.names[3]] = FAST // 2
    given.links["n05 n06"] = FAST // 4
    ended = given.end()
    assert max(order.stage for order in given.rounds) == 2
    assert [node.node_id for node in ended.nodes if node.reason] == ["n03"]
    assert "50 % of other nodes" in next(node.reason for node in ended.nodes if node.reason)
    assert [(link.a, link.b, link.part) for link in ended.links] == [("n05", "n06", 250)]
    assert given.state.cluster.fabric.nodes[NodeId("n03")].baseline.values == 0
    assert "n05 n06" in given.state.cluster.fabric.links


def test_what_a_confirmation_clears_is_no_suspect() -> None:
    given = FabricWorld(8)
    given.links["n05 n06"] = FAST // 4
    hear(given.state, f.FabricTestRequested(test="t"))
    while not given.rounds or given.rounds[-1].stage == 0:
        given.rounds += [
            fact for fact in decisions(given.state) if isinstance(fact, f.FabricRoundOrdered)
        ]
        if given.rounds[-1].stage:
            given.links.clear()
        given.report(given.rounds[-1])
    ended = next(fact for fact in given.run() if isinstance(fact, f.FabricTestEnded))
    assert given.rounds[-1].targets == ("n05 n06",)
    assert ended.links == ()


def test_a_healed_link_leaves_the_suspects_with_the_next_test() -> None:
    given = FabricWorld(8)
    given.links["n05 n06"] = FAST // 4
    given.end()
    given.links.clear()
    hear(given.state, f.FabricTestRequested(test="t2"))
    given.run()
    assert given.state.cluster.fabric.links == {}


def test_only_nodes_of_the_test_confirm_a_suspect() -> None:
    given = FabricWorld(8)
    given.capacity[given.names[3]] = FAST // 2
    given.end()
    some = tuple(given.names[2:6])
    given.rounds.clear()
    hear(given.state, f.FabricTestRequested(test="t2", nodes=some))
    given.run()
    ordered = [order for order in given.rounds if order.test == "t2"]
    assert max(order.stage for order in ordered) > 0
    assert {node for order in ordered for pair in order.pairs for node in pair} == set(some)


def test_a_silent_node_costs_one_deadline_per_round_and_is_named() -> None:
    given = FabricWorld(6)
    given.silent[given.names[2]] = None
    before_s = given.now_s
    ended = given.end()
    waits = (given.now_s - before_s) / ((200 * MS + ROUND_MORE_NS) / 1e9 + 0.01)
    assert round(waits) == 5
    suspect = next(node for node in ended.nodes if node.reason)
    assert suspect.node_id == "n02"
    assert suspect.reason == "5 of 5 probes failed: n02 did not report"
    assert all(not node.reason for node in ended.nodes if node.node_id != "n02")


def test_a_node_that_accuses_all_others_is_the_suspect() -> None:
    given = FabricWorld(6)
    given.errors[given.names[2]] = "my peer stalled"
    ended = given.end()
    assert [node.node_id for node in ended.nodes if node.reason] == ["n02"]
    assert "n02: my peer stalled" in ended.detail


@pytest.mark.parametrize("lie", [0, 1, 1 << 62])
def test_a_node_that_lies_changes_no_other_row(lie: int) -> None:
    honest, lying = FabricWorld(8), FabricWorld(8)

    def report_of(
        order: f.FabricRoundOrdered, node_id: NodeId, peer: NodeId, value: int
    ) -> f.FabricProbed:
        made = FabricWorld.report_of(lying, order, node_id, peer, value)
        lied = bounded(replace(made, bandwidth=lie)) if node_id == "n02" else made
        assert isinstance(lied, f.FabricProbed)
        return lied

    lying.report_of = report_of  # type: ignore[method-assign]
    right = {node.node_id: node for node in honest.end().nodes}
    for node in lying.end().nodes:
        if node.node_id != "n02":
            assert node == right[node.node_id]


def test_only_idle_nodes_that_take_work_are_measured() -> None:
    given = FabricWorld(4)
    hear(given.state, *waiting("busy", gpus=1))
    decisions(given.state)
    busy = next(iter(given.state.cluster.jobs[JobId("busy")].members))
    begun_fact = given.ask()[0]
    assert isinstance(begun_fact, f.FabricTestBegun)
    assert busy not in begun_fact.nodes and len(begun_fact.nodes) == 3
    assert begun_fact.left_out == (f"{busy}: it runs jobs",)
    assert begun_fact.purpose == REQUESTED


def test_nodes_that_take_no_work_or_leave_are_left_out_with_the_reason() -> None:
    given = FabricWorld(4)
    revoked, leaving = given.names[:2]
    hear(given.state, f.NodeRevoked(node_id=revoked, reason="it wrote too much"))
    hear(given.state, f.NodeRemovalRequested(node_id=leaving))
    begun_fact = given.ask(*given.names)[0]
    assert isinstance(begun_fact, f.FabricTestBegun)
    assert begun_fact.left_out == (
        "n00: it takes no work (it wrote too much)",
        "n01: it leaves the cluster",
    )
    assert list(begun_fact.nodes) == given.names[2:]


def test_a_test_of_fewer_than_two_nodes_fails_and_says_why() -> None:
    given = FabricWorld(3)
    ended = given.end("n00", "nowhere")
    assert ended.outcome == FAILED
    assert ended.detail == (
        "fewer than two nodes can be measured now: nowhere: it has not registered"
    )


def test_an_agent_without_a_probe_port_is_left_out() -> None:
    given = FabricWorld(3)
    given.state.cluster.nodes[given.names[0]].fabric_address = ""
    begun_fact = given.ask()[0]
    assert isinstance(begun_fact, f.FabricTestBegun)
    assert begun_fact.left_out == ("n00: its agent takes no probes",)


def test_a_node_that_gets_a_job_is_left_out_of_later_rounds() -> None:
    given = FabricWorld(4)
    hear(given.state, f.FabricTestRequested(test="t"))
    given.rounds += [
        fact for fact in decisions(given.state) if isinstance(fact, f.FabricRoundOrdered)
    ]
    hear(given.state, *waiting("busy", gpus=2))
    given.report(given.rounds[-1])
    given.run()
    busy = next(iter(given.state.cluster.jobs[JobId("busy")].members))
    later = [pair for order in given.rounds[1:] for pair in order.pairs]
    assert later and not any(busy in pair for pair in later)


def test_a_schedule_begins_a_test_when_the_last_one_is_old_and_no_job_waits() -> None:
    given = FabricWorld(4, FabricRules(every_ns=60 * SECOND_NS))
    assert decisions(given.state, 59) == []
    hear(given.state, *waiting("large", gpus=9))
    assert not any(isinstance(fact, f.FabricTestBegun) for fact in decisions(given.state, 61))
    hear(given.state, f.CancelRequested(job_id=given.state.cluster.jobs[JobId("large")].job_id))
    made = decisions(given.state, 62)
    begun_fact = next(fact for fact in made if isinstance(fact, f.FabricTestBegun))
    assert begun_fact.purpose == SCHEDULED and begun_fact.test == f"idle-{62 * SECOND_NS}"


def test_no_schedule_without_the_setting() -> None:
    assert decisions(FabricWorld(4).state, 1e6) == []


def test_suspects_are_drained_only_with_the_setting_and_within_the_bound() -> None:
    given = FabricWorld(8)
    given.capacity[given.names[3]] = given.capacity[given.names[4]] = FAST // 2
    given.end()
    assert decisions(given.state, given.now_s) == []
    given.state.fabric_rules = FabricRules(drain=True)
    [drained] = decisions(given.state, given.now_s)
    assert isinstance(drained, f.NodeDrained) and drained.node_id == "n03"
    assert "50 % of other nodes" in drained.evidence
    assert not given.state.cluster.nodes[given.names[3]].takes_work
    assert decisions(given.state, given.now_s + 3_599) == []
    [second] = decisions(given.state, given.now_s + HOUR_NS / 1e9 + 1)
    assert isinstance(second, f.NodeDrained) and second.node_id == "n04"


def test_a_node_that_an_operator_returned_is_not_drained_again_for_the_same_test() -> None:
    given = FabricWorld(8, FabricRules(drain=True))
    given.capacity[given.names[3]] = FAST // 2
    drained = next(fact for fact in given.ask() if isinstance(fact, f.NodeDrained))
    hear(given.state, f.NodeDrainCleared(node_id=drained.node_id, test=drained.test))
    assert given.state.cluster.nodes[drained.node_id].takes_work
    assert decisions(given.state, given.now_s + 2 * HOUR_NS / 1e9) == []


def test_measured_racks_feed_placement_where_no_rack_is_declared() -> None:
    given = FabricWorld(8)
    racks = {name: index // 4 for index, name in enumerate(given.names)}
    given.links = {
        pair_key(a, b): FAST // 2 for a, b in combinations(given.names, 2) if racks[a] != racks[b]
    }
    assert given.end().racks == (tuple(given.names[:4]), tuple(given.names[4:]))
    hear(given.state, *waiting("gang", nodes=3, gpus=2, rack="required"))
    decisions(given.state, given.now_s)
    members = given.state.cluster.jobs[JobId("gang")].members
    assert len({racks[node_id] for node_id in members}) == 1


def test_a_declared_rack_wins_unless_the_setting_says_otherwise() -> None:
    given = FabricWorld(4)
    node = given.state.cluster.nodes[given.names[0]]
    node.rack = "declared"
    given.end()
    assert node.network_rack == "declared"
    given.state.fabric_rules = FabricRules(measured_first=True)
    hear(given.state, f.FabricTestRequested(test="t2"))
    given.run()
    assert node.network_rack == "m1"


def test_a_large_drop_of_most_nodes_is_reported_as_a_change_of_the_fabric() -> None:
    given = FabricWorld(6)
    for number in range(6):
        hear(given.state, f.FabricTestRequested(test=f"before-{number}"))
        given.run()
    given.capacity = dict.fromkeys(given.names, FAST // 3)
    ended = given.end()
    assert "the fabric has changed" in ended.detail
    assert not any(node.reason for node in ended.nodes)


def test_a_single_fallen_node_is_compared_with_its_own_baseline() -> None:
    given = FabricWorld(6)
    for number in range(6):
        hear(given.state, f.FabricTestRequested(test=f"before-{number}"))
        given.run()
    given.capacity[given.names[0]] = FAST * 87 // 100
    reasons = [node.reason for node in given.end().nodes if node.reason]
    assert len(reasons) == 1 and "87 % of its own" in reasons[0]


def test_both_nodes_of_a_pair_get_one_order_with_one_token_of_that_round() -> None:
    given = FabricWorld(2)
    hear(given.state, f.FabricTestRequested(test="t"))
    [order] = [fact for fact in decisions(given.state) if isinstance(fact, f.FabricRoundOrdered)]
    rules, cluster = FabricRules(), given.state.cluster
    first, second = probe_orders(cluster, order, rules, b"key")
    assert (first[0], second[0]) == ("n00", "n01")
    assert (first[1].dials, second[1].dials) == (True, False)
    assert first[1].token == second[1].token
    again = replace(order, number=2)
    assert next(probe_orders(cluster, again, rules, b"key"))[1].token != first[1].token
    assert next(probe_orders(cluster, order, rules, b"other"))[1].token != first[1].token
    assert first[1].address == cluster.nodes[second[0]].fabric_address
    assert message(7, [first[1]]).probes == (first[1],)


def test_a_pair_that_was_never_measured_has_no_bandwidth() -> None:
    assert PairView().bandwidth == 0


def test_a_node_that_refuses_probes_is_no_suspect_and_is_named() -> None:
    given = FabricWorld(6)
    given.refusing[given.names[2]] = "its time is used up"
    given.capacity[given.names[4]] = FAST // 2
    ended = given.end()
    assert [node.node_id for node in ended.nodes if node.reason] == ["n04"]
    assert ended.links == ()
    assert "n02 took no probe: its time is used up" in ended.detail
    assert not any("n02" in key for key in given.state.cluster.fabric.pairs)
    asked = [order for order in given.rounds if any("n02" in pair for pair in order.pairs)]
    assert len(asked) == 1


def test_a_test_that_every_node_refuses_fails_and_suspects_none() -> None:
    given = FabricWorld(10)
    given.refusing = dict.fromkeys(given.names, "busy")
    ended = given.end()
    assert ended.outcome == FAILED
    assert ended.detail.startswith("nothing was measured: ")
    assert ended.detail.endswith(" and others took no probe: busy")
    assert not [node for node in ended.nodes if node.reason] and ended.links == ()


def test_a_refusal_keeps_the_last_result_of_a_link() -> None:
    given = FabricWorld(6)
    given.end()
    before = dict(given.state.cluster.fabric.pairs)
    given.refusing = dict.fromkeys(given.names, "busy")
    hear(given.state, f.FabricTestRequested(test="t2"))
    given.run()
    assert given.state.cluster.fabric.pairs == before


def test_a_link_that_fails_between_nodes_that_reach_all_others_is_named() -> None:
    given, cut = FabricWorld(6), ("n01", "n02")

    def report_of(
        order: f.FabricRoundOrdered, node_id: NodeId, peer: NodeId, value: int
    ) -> f.FabricProbed:
        made = FabricWorld.report_of(given, order, node_id, peer, value)
        return replace(made, error="no route") if {node_id, peer} == set(cut) else made

    given.report_of = report_of  # type: ignore[method-assign]
    ended = given.end()
    assert [(link.a, link.b, link.bandwidth, link.part) for link in ended.links] == [(*cut, 0, 0)]
    assert not [node for node in ended.nodes if node.reason]


def test_the_settings_give_the_rules_of_tests() -> None:
    assert fabric_rules(Settings(fabric_every_s=0)) == FabricRules()
    settings = Settings(
        fabric_every_s=2,
        fabric_pair_ms=3,
        fabric_bulk_kib=4,
        fabric_drain=1,
        fabric_measured_racks=1,
    )
    assert fabric_rules(settings) == FabricRules(
        every_ns=2_000_000_000,
        pair_ns=3_000_000,
        bulk_bytes=4_096,
        drain=True,
        measured_first=True,
    )
