"""A fact that its writer may not record does nothing in the scheduler."""

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit
from libs.common.leadership.leading import give_signs
from libs.common.model import NodeId, TenantId
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.scheduler.service import Scheduler
from tests.given import given, registered, waiting
from tests.history import stamp_of

VICTIM = NodeId("victim")
LIAR = subjects.node("liar")


class Reader:
    """A scheduler that folds commits."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            log=MemoryLog(MemoryStream()),
            bus=MemoryBus(),
            clock=SystemClock(),
            settings=Settings(cluster_id="test", instance="s1", state_hash_every=0),
            signs=lambda leading: give_signs(leading, MemoryBus()),
            store=MemorySnapshots(),
        )

    def read(self, subject: str, *facts: AnyFact) -> None:
        cluster = self.scheduler.acked
        mark = cluster.writers.get(subject)
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=mark.number + 1 if mark is not None else 1,
            epoch=cluster.epoch,
            at_ns=cluster.seq + 1,
            seen=cluster.seq,
            facts=facts,
        )
        self.scheduler.folded(Entry(cluster.seq + 1, subject, f.encode(commit)), commit)


def test_a_node_that_says_that_another_one_returned_gives_it_no_lease() -> None:
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(VICTIM), registered(VICTIM))
    reader.read(subjects.SCHEDULER, f.NodeLost(node_id=VICTIM, incarnation=1))
    reader.read(subjects.node(VICTIM), registered(VICTIM, incarnation=2))
    returned = f.NodeReturned(node_id=VICTIM, incarnation=2)
    reader.read(LIAR, returned, f.NodeReturned(node_id=NodeId("unknown"), incarnation=1))
    assert reader.scheduler.leases.granted == {}
    reader.read(subjects.SCHEDULER, returned)
    assert list(reader.scheduler.leases.granted) == [VICTIM]


def test_an_operators_word_counts_if_a_gateway_records_it_while_the_node_is_unheard() -> None:
    reader = Reader()
    reader.read(subjects.SCHEDULER, f.TermBegan(instance="s1"))
    reader.read(subjects.node(VICTIM), registered(VICTIM))
    dead = f.NodeDeclaredDead(node_id=VICTIM, incarnation=1, lost=0)
    leases, now = reader.scheduler.leases, SystemClock().boot_ns()
    leases.hear(reader.scheduler.acked, VICTIM, now, True)
    reader.read(subjects.gateway("g"), dead)
    assert leases.dead == {}
    leases.heard[VICTIM] = now - 60 * 1_000_000_000
    reader.read(LIAR, dead)
    assert leases.dead == {}
    reader.read(subjects.gateway("g"), dead)
    assert leases.dead == {VICTIM: 1}


@pytest.mark.parametrize(
    "fact",
    [
        f.TermBegan(instance="liar"),
        f.PluginDisabled(extends="order", name="mine", version="1", reason="x"),
        f.QueueSet(queue="default", policy="fifo"),
        f.TenantSet(tenant=TenantId("default"), max_gpu_share=1),
        f.BudgetExhausted(tenant=TenantId("default"), gpu_hours=1, used_share_ms=0),
    ],
)
def test_a_node_that_records_facts_of_others_reorders_no_queue(fact: AnyFact) -> None:
    state = given(registered("n"), waiting("j", gpus=8))
    before = state.queue.version
    state.imagine(fact, stamp_of(LIAR, 9))
    assert state.queue.version == before
