"""The standby of a replica in the agent's core: promotions, the port, and what a job may claim."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from libs.common.facts import NodeFact, StandbyPromoted
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, Orders, StartOrder
from libs.common.model import STANDBY_STEP, Serve
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import standby
from services.node_agent.core.keeping import key_of, replace_list
from services.node_agent.resident.standbys import REPORT, REPORT_BYTES, Standbys
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


def reported(node: Node, jobs_dir: Path, report: bytes) -> list[NodeFact]:
    """Return the facts after the job of the replica wrote this report."""
    folder = jobs_dir / "chat-1.1"
    folder.mkdir(exist_ok=True)
    (folder / REPORT).write_bytes(report)
    return [
        fact for seen in Standbys(jobs_dir).look(node.state) for fact in recorded(node.see(seen))
    ]


def test_times_that_no_fact_can_hold_are_bounded(tmp_path: Path) -> None:
    node = running()
    order = KeepOrder(
        model="chat",
        tier=kept_life.STANDBY,
        tenant="default",
        request=1,
        number=1,
        state=kept_life.FILLING,
        granted=1,
    )
    replace_list(node.state.keeps, 1, (order,))
    assert key_of(order) in node.state.keeps.wanted
    report = {"number": 1, "took_ms": 0, "reason": "", "ready": True, "ready_ms": 0}
    text = msgspec.json.encode(report).decode().replace('_ms":0', f'_ms":{10**26}')
    facts = reported(node, tmp_path, text.encode())
    assert [(fact.took_ms if isinstance(fact, StandbyPromoted) else 0) for fact in facts] == [
        standby.MS_MAX,
        0,
    ]
    for fact in facts:
        msgspec.msgpack.encode(fact)


@pytest.mark.parametrize(
    "report", [b"", b"\xff", b'{"number":', b'{"x":'.ljust(REPORT_BYTES, b"[")]
)
def test_report_that_cannot_be_decoded_counts_as_none(tmp_path: Path, report: bytes) -> None:
    assert reported(running(), tmp_path, report) == []
