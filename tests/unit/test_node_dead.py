"""When the scheduler follows an operator who declares a node dead that it does not hear."""

from typing import Final

import msgspec
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.life import node_life
from libs.common.messages import Heartbeat, Lease
from libs.common.model import NodeId
from libs.common.process.clock import SystemClock
from services.scheduler.decide.nodes import bury_node
from tests.given import given, registered, tell
from tests.unit.scheduler_reader import Reader

N: Final = NodeId("n")
LIAR: Final = subjects.node("liar")
MINUTE_NS: Final = 60 * 1_000_000_000
DEAD: Final = f.NodeDeclaredDead(node_id=N, incarnation=1, lost=0)


def test_an_operators_word_counts_if_a_gateway_records_it_while_the_node_is_unheard() -> None:
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(N), registered(N))
    leases, now = reader.scheduler.leases, SystemClock().boot_ns()
    leases.hear(reader.scheduler.acked, N, now, True)
    reader.read(subjects.gateway("g"), DEAD)
    assert leases.dead == {}
    leases.beats[N] = now - MINUTE_NS
    reader.read(LIAR, DEAD)
    assert leases.dead == {}
    reader.read(subjects.gateway("g"), DEAD)
    assert leases.dead == {N: 1}


async def beat(reader: Reader, incarnation: int) -> str:
    """Send a heartbeat of the node, and return the verdict."""
    now = SystemClock().boot_ns()
    sent = Heartbeat(node_id=N, incarnation=incarnation, sent_boot_ns=now, digest="")
    answer = await reader.scheduler._on_heartbeat(
        f"{subjects.HEARTBEAT}.{N}", msgspec.msgpack.encode(sent)
    )
    assert answer is not None
    return msgspec.msgpack.decode(answer, type=Lease).verdict


@pytest.mark.parametrize(("incarnation", "verdict"), [(2, "unknown"), (0, "lost")])
async def test_a_node_that_sends_heartbeats_is_not_dead_whatever_the_verdict_on_them(
    incarnation: int, verdict: str
) -> None:
    """For example while the registration of a restarted agent is delayed."""
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(N), registered(N))
    scheduler, now = reader.scheduler, SystemClock().boot_ns()
    scheduler.state.cluster.nodes[N] = scheduler.acked.nodes[N]
    assert scheduler.leases.unheard(scheduler.acked, now) == [N]
    reader.read(subjects.gateway("g"), DEAD)
    assert scheduler.leases.dead == {N: 1}
    assert await beat(reader, incarnation) == verdict
    assert scheduler.leases.unheard(scheduler.acked, now) == []
    assert scheduler.leases.declared_dead(scheduler.acked, now + MINUTE_NS) == []
    reader.read(subjects.gateway("g"), DEAD)
    assert scheduler.leases.dead == {}
    assert scheduler.leases.heard == {}


def test_heartbeats_of_nodes_that_the_log_does_not_know_are_not_kept() -> None:
    reader = Reader()
    reader.scheduler.leases.note_beat(reader.scheduler.acked, N, 1)
    assert reader.scheduler.leases.beats == {}


@pytest.mark.parametrize("reason", [node_life.UNGUARDED, node_life.SILENT])
@pytest.mark.parametrize("word_is_first", [True, False])
def test_an_operators_word_that_crosses_the_loss_of_the_node_is_followed(
    word_is_first: bool, reason: str
) -> None:
    """Otherwise the jobs that the loss leaves there would wait for ever."""
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(N), registered(N))
    loss = f.NodeLost(node_id=N, incarnation=1, reason=reason)
    facts: list[tuple[str, AnyFact]] = [(subjects.gateway("g"), DEAD), (subjects.SCHEDULER, loss)]
    for subject, fact in facts if word_is_first else reversed(facts):
        reader.read(subject, fact)
    scheduler, now = reader.scheduler, SystemClock().boot_ns()
    dead = scheduler.leases.declared_dead(scheduler.acked, now)
    assert dead == [(N, 1)]
    state = given(registered(N), *(fact for _, fact in facts))
    (fact,) = bury_node(state, dead)
    assert fact == f.NodeLost(node_id=N, incarnation=1, reason=node_life.DECLARED_DEAD)
    reader.read(subjects.SCHEDULER, fact)
    assert scheduler.leases.declared_dead(scheduler.acked, now) == []
    tell(state.cluster, fact)
    assert bury_node(state, dead) == ()


async def test_a_word_of_a_former_silence_says_nothing_about_a_later_loss() -> None:
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(N), registered(N))
    reader.read(subjects.gateway("g"), DEAD)
    scheduler, now = reader.scheduler, SystemClock().boot_ns()
    scheduler.leases.hear(scheduler.acked, N, now, True)
    loss = f.NodeLost(node_id=N, incarnation=1, reason=node_life.UNGUARDED)
    reader.read(subjects.SCHEDULER, loss)
    assert scheduler.leases.declared_dead(scheduler.acked, now + MINUTE_NS) == []
    assert not scheduler.acked.nodes[N].declared_dead


def test_a_word_on_a_former_incarnation_says_nothing_about_the_next_one() -> None:
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(N), registered(N))
    reader.read(subjects.node(N), registered(N, incarnation=2))
    reader.read(subjects.gateway("g"), DEAD)
    assert reader.scheduler.leases.dead == {}
