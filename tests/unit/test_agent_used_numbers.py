"""The agent's core refuses an attempt if its node recorded the end of another one of that number.

A restored log may not know the first attempt. Then it gives the same number to the next one.
"""

from libs.common import facts as f
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import USED_AGAIN
from tests.given_node import Node, clean, over, ref, refused, start, stop

RELEASED = o.FactsStored(30, (o.Mark("j.1", s.OVER_LEVEL),))


def test_an_attempt_whose_number_a_restored_log_uses_again_is_refused() -> None:
    """Otherwise the log would wait for ever for an attempt that this node does not start."""
    node = Node().running().exited()
    node.see(clean())
    node.see(o.FactsStored(30, (o.Mark("j.1", 3),)))
    assert node.orders(start(seq=30)) == []
    assert node.orders(start(seq=31)) == [over(refused(reason=USED_AGAIN))]
    assert s.accounted(node.state) == [ref()]
    assert node.desired(start(seq=31)) == []
    assert node.see(o.FactsStored(51, (o.Mark("j.1", 3),))) == []
    assert s.accounted(node.state) == []
    assert node.desired(start(seq=31), stops=(stop(seq=60),), seq=60) == []


def unknown_and_ended() -> Node:
    """Return a node whose log has the last fact of an attempt that it does not know.

    The node has not heard yet that the fact is stored, at 30.
    """
    node = Node(adopted=(o.Adopted(ref()),))
    node.see(o.ProcessExited("j.1", o.Exit(executed=True, exit_code=0)))
    (record,) = node.see(clean())
    assert isinstance(record, a.Record)
    assert [type(fact) for fact in record.facts] == [f.JobStarted, f.JobFinished, f.JobReleased]
    return node


def test_an_order_that_comes_before_the_late_answer_of_the_log_is_refused_when_it_comes_again() -> (
    None
):
    node = unknown_and_ended()
    assert node.orders(start(seq=40)) == []
    node.see(RELEASED)
    assert node.orders(start(seq=40)) == [over(refused(reason=USED_AGAIN))]


def test_a_stop_does_not_keep_a_number_that_is_used_again_from_being_refused() -> None:
    node = unknown_and_ended()
    assert node.orders(start(seq=40), stop(seq=41)) == []
    node.see(RELEASED)
    assert node.desired(start(seq=40), stops=(stop(seq=41),)) == [over(refused(reason=USED_AGAIN))]
