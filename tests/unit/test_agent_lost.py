"""The agent's core on a node that the scheduler held for lost: everything ends and it begins again,
but what ignores the lease goes on.
"""

from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.decide import next_due_ns
from tests.given_node import (
    EPOCH,
    INCARNATION,
    Node,
    clean,
    finished,
    over,
    ref,
    refused,
    released,
    start,
)


def test_a_node_held_for_lost_kills_everything_and_begins_again() -> None:
    node = Node().running()
    node.lease(verdict="lost")
    assert node.did() == [a.KillJob(ref())]
    assert node.did() == []
    node.exited(exit_=o.Exit(True, None, 9, "stopped"))
    assert node.see(clean()) == [
        over(finished(exit_code=None, signal=9, reason="stopped"), released())
    ]
    forgotten, again = node.see(o.FactsStored(30, (o.Mark("j.1", 3),)))
    assert forgotten == a.ForgetJob(ref(), 0, ())
    assert isinstance(again, a.RegisterAgain)
    assert node.did() == []


def test_a_node_held_for_lost_starts_nothing() -> None:
    node = Node(leased=False)
    node.orders(start("j"))
    node.lease(verdict="lost")
    assert node.did() == [over(refused(reason="node_lost"))]
    assert node.orders(start("k")) == []
    assert node.desired(start("k")) == []


def test_lease_ignoring_job_goes_on_in_the_next_incarnation_of_a_lost_node() -> None:
    node = Node().running(ignores_lease=True)
    node.lease(verdict="lost")
    (again,) = node.did()
    assert isinstance(again, a.RegisterAgain)
    node.state = s.begin(node.state.node_id, INCARNATION + 1, (), node.state)
    assert s.accounted(node.state) == [ref()]
    assert node.did() == []
    node.exited()
    assert node.see(clean()) == [over(finished(), released())]


def test_a_node_held_for_lost_ends_the_others_before_it_begins_again() -> None:
    node = Node().running(ignores_lease=True).running("k")
    node.lease(verdict="lost")
    assert node.did() == [a.KillJob(ref("k"))]


def test_waiting_lease_ignoring_job_does_not_start_on_a_lost_node() -> None:
    node = Node(leased=False)
    node.orders(start("j", ignores_lease=True))
    node.lease(verdict="lost")
    assert node.did() == [over(refused(reason="node_lost"))]


def test_an_old_verdict_does_not_end_the_new_incarnation() -> None:
    node = Node().running()
    node.lease(verdict="lost", incarnation=INCARNATION - 1)
    node.lease(verdict="lost", epoch=EPOCH - 1)
    assert node.did() == []


def test_a_question_that_was_due_is_dropped_by_a_node_held_for_lost() -> None:
    node = Node().running()
    node.lease(digest="another")
    asked_ns = next_due_ns(node.state)
    node.lease(verdict="lost")
    assert node.did() == [a.KillJob(ref())]
    assert asked_ns is not None
    node.now_ns = max(node.now_ns, asked_ns)
    node.did()
    due_ns = next_due_ns(node.state)
    assert due_ns is None or due_ns > node.now_ns
