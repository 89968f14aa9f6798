"""A node that is to be removed is emptied, takes nothing more, and is removed when it may be."""

from libs.common import facts as f
from libs.common.model import AttemptRef, NodeId
from libs.common.state.cluster import membership_of
from services.scheduler.decide.nodes import remove_node, vacate
from services.scheduler.placement.choose import NO_PLACEMENT, choose
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.state.state import State
from tests.history import History, job, member, placed, registered, submitted

N1, N2 = NodeId("n1"), NodeId("n2")


def running(wait: bool = False) -> State:
    """One job on n1, which is to be removed; n2 is free."""
    history = History()
    history.say(registered("n1", "g1"), registered("n2", "g2"))
    history.say(
        submitted("j"),
        f.JobAdmitted(job_id=job("j")),
        f.JobQueued(job_id=job("j")),
        placed("j", member("n1", "g1")),
    )
    history.say(f.NodeRemovalRequested(node_id=N1, wait=wait))
    return State(history.cluster)


def test_jobs_on_a_node_to_be_removed_are_stopped() -> None:
    (order,) = vacate(running())
    assert isinstance(order, f.JobStopOrdered) and (order.job_id, order.reason) == (
        "j",
        "node_removed",
    )


def test_with_wait_it_may_end_by_itself() -> None:
    assert vacate(running(wait=True)) == ()


def test_no_job_is_placed_on_a_node_that_is_being_removed() -> None:
    state = running()
    spec = state.cluster.jobs[job("j")].spec
    choice = choose(
        state.capacity, spec, sharing_domain_of(state.cluster, state.cluster.jobs[job("j")].tenant)
    )
    assert choice is not NO_PLACEMENT and [node_id for node_id, _ in choice] == [N2]


def test_a_node_with_a_job_is_not_removed_and_an_empty_one_is_once() -> None:
    state = running()
    assert remove_node(state, [N1]) == ()
    membership_of(state.cluster, N2).leaving = True
    assert remove_node(state, [N2]) == (f.NodeRemoved(node_id=N2),)
    membership_of(state.cluster, N2).removed = True
    assert remove_node(state, [N2]) == ()


def holding(*more: f.AnyFact) -> State:
    """n1, to be removed, was lost while it held a job that ignores the lease."""
    history = History()
    history.say(
        registered("n1", "g1"),
        submitted("j", on_control_loss="continue"),
        f.JobAdmitted(job_id=job("j")),
    )
    history.say(
        f.JobQueued(job_id=job("j")),
        placed("j", member("n1", "g1")),
        f.NodeRemovalRequested(node_id=N1),
    )
    history.say(f.NodeLost(node_id=N1, incarnation=1), *more)
    return State(history.cluster)


def dead(incarnation: int = 1) -> f.NodeLost:
    return f.NodeLost(node_id=N1, incarnation=incarnation, reason="declared_dead")


REQUEUED = f.JobRequeued(job_id=job("j"), attempt=1, reason="node_lost", counted=False)


def test_a_lost_node_whose_job_may_go_on_is_not_removed_until_it_is_declared_dead() -> None:
    assert remove_node(holding(), [N1]) == ()
    assert remove_node(holding(dead(), REQUEUED), [N1]) == (f.NodeRemoved(node_id=N1),)


def test_a_node_that_came_back_with_what_was_declared_dead_is_not_removed() -> None:
    back = registered("n1", "g1", incarnation=2, attempts=(AttemptRef(job("j"), 1),))
    assert remove_node(holding(dead(), REQUEUED, back), [N1]) == ()
    assert remove_node(holding(dead(), REQUEUED, back, dead(2)), [N1]) == (
        f.NodeRemoved(node_id=N1),
    )
