"""Results of elements: recorded now and then while a batch runs, the rest before its end."""

from libs.common import facts as f
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.batch import ELEMENTS_EVERY_NS
from services.node_agent.core.decide import next_due_ns
from tests.given_node import NODE, Node, T, ref, start


def said(first: int, *runs: tuple[int, int], begun: int) -> f.ElementsEnded:
    return f.ElementsEnded(
        job_id=ref().job_id, attempt=1, node_id=NODE, first=first, runs=runs, begun=begun
    )


def recorded(*facts: f.NodeFact) -> list[a.Action]:
    return [a.Record(facts, (o.Mark("j.1", 1),))]


def facts_of(actions: list[a.Action]) -> list[str]:
    return [
        f.kind_of(fact)
        for action in actions
        if isinstance(action, a.Record)
        for fact in action.facts
    ]


def running() -> Node:
    node = Node()
    node.orders(start())
    node.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 7, T))
    return node


def test_the_first_results_are_recorded_at_once_and_later_ones_together() -> None:
    node = running()
    assert node.see(o.ElementsSeen("j.1", 3, (0, 0, 1), 7)) == recorded(
        said(3, (2, 0), (1, 1), begun=7)
    )
    assert node.see(o.ElementsSeen("j.1", 3, (0, 0, 1, 0), 8)) == []
    due_ns = next_due_ns(node.state)
    assert due_ns == node.now_ns + ELEMENTS_EVERY_NS
    node.now_ns = due_ns
    assert node.see() == recorded(said(6, (1, 0), begun=8))


def test_nothing_is_recorded_without_results_while_the_batch_runs() -> None:
    assert running().see(o.ElementsSeen("j.1", 0, (), 2)) == []


def test_what_began_is_recorded_before_the_end() -> None:
    node = running()
    node.see(o.ElementsSeen("j.1", 0, (0,), 1))
    lost = o.ProcessExited("j.1", o.Exit(True, None, 0, "supervisor_lost"))
    actions = node.see(o.ElementsSeen("j.1", 0, (0,), 2), lost)
    actions += node.see(o.ReleaseChecked("j.1", {}, clean=True))
    assert facts_of(actions) == ["array.elements_ended", "job.finished", "job.released"]
    assert node.see() == []
