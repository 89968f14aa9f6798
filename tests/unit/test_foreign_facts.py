"""A fact that its writer may not record does nothing in the scheduler."""

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import NodeId, TenantId
from tests.given import given, registered, waiting
from tests.history import stamp_of
from tests.unit.scheduler_reader import Reader

VICTIM = NodeId("victim")
LIAR = subjects.node("liar")


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
