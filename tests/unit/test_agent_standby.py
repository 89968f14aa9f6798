"""The standby of a replica in the agent's core: promotions, the port, and what a job may claim."""

from msgspec.structs import replace

from libs.common.facts import NodeFact, StandbyPromoted
from libs.common.messages import Orders, StartOrder
from libs.common.model import STANDBY_STEP, Serve
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import standby
from tests.given_node import EPOCH, NODE, Node, S, ref, start

PORT = 30_000


def replica(has_standby: bool = True) -> StartOrder:
    order = start("chat-1")
    serve = Serve("chat", 1, standby=has_standby)
    return replace(order, port=PORT, spec=replace(order.spec, serve=serve))


def running(has_standby: bool = True) -> Node:
    node = Node()
    node.see(o.OrdersReceived(Orders(EPOCH, (replica(has_standby),))))
    node.see(
        o.JobLaunched("chat-1.1"),
        o.ProcessStarted("chat-1.1", 7, node.now_ns),
        o.Probed("chat-1.1", ""),
    )
    return node


def recorded(actions: list[a.Action]) -> list[NodeFact]:
    return [fact for each in actions if isinstance(each, a.Record) for fact in each.facts]


def promoted(number: int, port: int) -> StandbyPromoted:
    return StandbyPromoted(
        job_id=ref("chat-1").job_id,
        attempt=1,
        node_id=NODE,
        number=number,
        port=port,
        took_ms=9,
        reason="signal 9",
    )


def seen(number: int) -> o.StandbySeen:
    return o.StandbySeen("chat-1.1", number, 9, "signal 9")


def test_a_promotion_is_recorded_once_and_the_other_port_is_probed() -> None:
    node = running()
    actions = node.see(seen(1))
    assert recorded(actions) == [promoted(1, PORT - STANDBY_STEP)]
    assert [each.port for each in actions if isinstance(each, a.ProbeReplica)] == [
        PORT - STANDBY_STEP
    ]
    assert recorded(node.see(seen(1))) == []


def test_the_engines_take_turns_and_an_older_report_is_void() -> None:
    node = running()
    node.see(seen(1))
    assert recorded(node.see(seen(2))) == [promoted(2, PORT)]
    assert recorded(node.see(seen(1))) == []


def test_a_replica_without_a_standby_cannot_claim_a_promotion() -> None:
    assert recorded(running(has_standby=False).see(seen(1))) == []


def test_a_claim_of_more_promotions_than_an_attempt_can_have_is_void() -> None:
    node = running()
    assert recorded(node.see(seen(standby.NUMBER_MAX + 1))) == []
    assert recorded(node.see(seen(-1))) == []
    node.now_ns += S
    known = standby.Standby(PORT)
    assert standby.note_report(known, 1, -5, "x" * 1_000)
    assert (known.took_ms, len(known.reason)) == (0, standby.REASON_MAX)


def test_a_report_of_a_replica_without_a_probe_moves_nothing() -> None:
    node = running()
    attempt = node.state.attempts["chat-1.1"]
    attempt.health = None
    assert recorded(node.see(seen(1))) == [promoted(1, PORT - STANDBY_STEP)]
