"""Nodes that are lost and return again and again get no new jobs for a time."""

from libs.common import facts as f
from libs.common.model import JobId, NodeId
from services.api_gateway.intents.fabric_intents import drain_clearance
from services.scheduler.explain.explain import explain
from services.scheduler.leases import flapping
from services.scheduler.leases.leases import DEAF_BEATS, MS, Leases
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, tell, waiting
from tests.unit.scheduler_decisions import decisions

A, J = NodeId("a"), JobId("j")
S = flapping.SECOND_NS


def lost_often(times: int, every_s: int = 60, nodes: str = "ab") -> State:
    """A cluster whose node `a` was lost so many times and is back."""
    state = given(*(registered(name) for name in nodes), waiting("j"))
    for number in range(times):
        at_s = float(number * every_s)
        loss = f.NodeLost(node_id=A, incarnation=number + 1)
        back = f.NodeReturned(node_id=A, incarnation=number + 2)
        for fact in (loss, registered("a", incarnation=number + 2), back):
            state.refresh(tell(state.cluster, fact, at_s))
    state.hold_s = 600
    return state


def held(times: int = 3, hold_s: int = 600) -> f.NodeHeldBack:
    last_s = (times - 1) * 60
    return f.NodeHeldBack(
        node_id=A,
        until_ns=(hold_s + 1) * S,
        lost_ns=last_s * S,
        reason=f"it was lost {times} times within {last_s} s: no new jobs for {hold_s} s",
    )


def test_a_node_that_was_lost_three_times_within_an_hour_is_held_back_and_gets_no_job() -> None:
    state = lost_often(3)
    first, second = decisions(state)
    assert first == held() and second == placed("j", member("b", 0))
    assert state.cluster.nodes[A].withheld == held().reason


def test_why_names_the_reason_for_which_a_node_is_held_back() -> None:
    state = lost_often(3, nodes="a")
    state.refresh(tell(state.cluster, held()))
    whats = [each["what"] for each in explain(state, J)["blockers"]]
    assert f"node withheld: {held().reason}" in whats


def test_each_further_loss_doubles_the_hold() -> None:
    assert decisions(lost_often(4))[0] == held(4, 1_200)
    assert decisions(lost_often(9))[0].until_ns == ((600 << 5) + 1) * S


def test_two_losses_or_three_in_a_long_time_hold_no_node_back() -> None:
    for state in (lost_often(2), lost_often(3, every_s=3_600)):
        assert not any(isinstance(fact, f.NodeHeldBack) for fact in decisions(state))


def test_no_more_than_half_of_the_nodes_are_held_back() -> None:
    assert not any(isinstance(fact, f.NodeHeldBack) for fact in decisions(lost_often(3, nodes="a")))


def test_a_hold_ends_with_its_time_and_is_not_repeated_for_the_same_losses() -> None:
    state = lost_often(3)
    state.refresh(tell(state.cluster, held()))
    (first, *others) = decisions(state, now_s=602)
    assert first == f.NodeHoldEnded(node_id=A, until_ns=601 * S)
    assert not any(isinstance(fact, f.NodeHeldBack) for fact in others)
    assert state.cluster.nodes[A].takes_work


def test_an_operator_ends_a_hold_by_setting_the_node_online() -> None:
    state = lost_often(3)
    state.refresh(tell(state.cluster, held()))
    (cleared,) = drain_clearance(state.cluster.nodes[A], {"service": "online", "user": "ann"})
    assert cleared == f.NodeHoldCleared(node_id=A, until_ns=601 * S, user="ann")
    tell(state.cluster, cleared)
    assert state.cluster.nodes[A].takes_work
    assert drain_clearance(state.cluster.nodes[A], {"service": "online"}) == []
    assert drain_clearance(state.cluster.nodes[A], {"service": "draining"}) == []


def test_facts_about_the_hold_of_an_unknown_node_or_an_older_hold_are_ignored() -> None:
    state = lost_often(3)
    unknown = NodeId("x")
    odd = f.NodeHeldBack(node_id=unknown, until_ns=1, lost_ns=1, reason="")
    tell(state.cluster, odd)
    tell(state.cluster, f.NodeHoldEnded(node_id=unknown, until_ns=1))
    tell(state.cluster, f.NodeHoldEnded(node_id=A, until_ns=0))
    assert state.cluster.ignored == 3


def test_a_node_that_names_no_new_lease_although_it_is_answered_is_deaf_until_it_returns() -> None:
    cluster = given(registered("a"), registered("b")).cluster
    leases, now = Leases(), 0
    leases.begin(cluster, 0)
    leases.hear(cluster, A, now, True, named=7)
    for now in range(0, 20_000 * MS, 1_000 * MS):
        leases.hear(cluster, A, now, True, named=7)
        leases.grant(cluster, A, now)
        assert leases.is_deaf(cluster, A, now) == (now > 14_500 * MS)
    leases.hear(cluster, A, now, True, named=8)
    assert not leases.is_deaf(cluster, A, now)
    leases.grant(cluster, A, now)
    leases.returned(cluster, A, now)
    assert not leases.is_deaf(cluster, A, now + 60_000 * MS)


def test_a_node_that_hears_no_answer_gets_no_lease_until_it_hears_one() -> None:
    cluster = given(registered("a"), registered("b")).cluster
    leases, now = Leases(), 0
    leases.begin(cluster, 0)
    for number in range(2 * DEAF_BEATS):
        now += 1_000 * MS
        leases.hear(cluster, A, now, True, named=7, echo=7)
        assert leases.is_deaf(cluster, A, now) == (number >= DEAF_BEATS)
        if not leases.is_deaf(cluster, A, now):
            for _ in range(2):  # the agent repeats its heartbeat through another server
                leases.grant(cluster, A, now, sent=now)
    leases.hear(cluster, A, now, True, named=7, echo=8)
    assert not leases.is_deaf(cluster, A, now)


def test_a_node_whose_one_lost_answer_is_followed_by_silence_is_not_deaf() -> None:
    cluster = given(registered("a"), registered("b")).cluster
    leases = Leases()
    leases.begin(cluster, 0)
    leases.hear(cluster, A, MS, True, echo=7)
    leases.grant(cluster, A, MS, sent=MS)
    leases.hear(cluster, A, 9_000 * MS, True, echo=7)
    assert not leases.is_deaf(cluster, A, 9_000 * MS)


def test_an_agent_that_starts_again_and_again_is_not_deaf() -> None:
    """Each of its incarnations names no lease at first."""
    leases = Leases()
    cluster = given(registered("a"), registered("b")).cluster
    leases.begin(cluster, 0)
    for number, now in enumerate(range(0, 60_000 * MS, 1_000 * MS)):
        tell(cluster, registered("a", incarnation=number + 1))
        leases.silent(cluster, cluster, now)
        leases.hear(cluster, A, now, False, named=0)
        assert not leases.is_deaf(cluster, A, now)
        leases.grant(cluster, A, now)
