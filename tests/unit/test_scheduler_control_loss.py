"""Scheduler decisions on jobs that ignore the lease, while their node is silent and afterwards."""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from services.scheduler.decide.decide import Observations
from tests.given import (
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    tell,
    waiting,
)
from tests.unit.scheduler_decisions import decisions


def going_on(**spec: object) -> list[AnyFact]:
    return [
        *waiting("j", on_control_loss="continue", **spec),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]


def loss(incarnation: int = 1, reason: str = "silent") -> f.NodeLost:
    at_ns = 1_000_000_000 if reason == "silent" else 0
    return f.NodeLost(node_id=NodeId("a"), incarnation=incarnation, reason=reason, lost_ns=at_ns)


def word(incarnation: int = 1, lost: int = 1) -> f.NodeDeclaredDead:
    return f.NodeDeclaredDead(node_id=NodeId("a"), incarnation=incarnation, lost=lost)


def test_job_that_ignores_the_lease_stays_on_its_silent_node() -> None:
    state = given(registered("a"), registered("b"), going_on())
    assert decisions(state, silent=[(NodeId("a"), 1)]) == [loss()]


def test_returning_node_with_only_its_held_attempts_is_taken_back() -> None:
    ref = given(registered("a"), going_on()).cluster.jobs[JobId("j")].ref
    back = given(
        registered("a"),
        registered("b"),
        going_on(),
        loss(),
        registered("a", incarnation=2, attempts=(ref,)),
    )
    assert decisions(back) == [f.NodeReturned(node_id=NodeId("a"), incarnation=2)]


def test_a_node_that_comes_back_without_it_frees_it() -> None:
    state = given(registered("a"), going_on(), loss(), registered("a", incarnation=2))
    again = placed("j", replace(member("a", 0), incarnation=2), attempt=2, port=29_501)
    requeued = f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False)
    assert decisions(state) == [requeued, f.NodeReturned(node_id=NodeId("a"), incarnation=2), again]


def test_an_operators_word_about_a_silent_node_is_followed_once() -> None:
    state = given(registered("a"), registered("b"), going_on(), loss(), word())
    assert decisions(state) == [
        loss(reason="declared_dead"),
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False),
        placed("j", member("b", 0), attempt=2, port=29_501),
    ]
    assert decisions(state) == []


def test_an_operators_word_about_a_node_that_is_not_heard_ends_all_its_jobs() -> None:
    state = given(registered("a"), registered("b"), going_on(), word(lost=0))
    assert decisions(state) == []
    assert decisions(state, dead=[(NodeId("a"), 2)]) == []
    assert decisions(state, dead=[(NodeId("a"), 1)]) == [
        loss(reason="declared_dead"),
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False),
        placed("j", member("b", 0), attempt=2, port=29_501),
    ]


def test_an_operators_word_about_a_node_that_was_removed_since_is_not_followed() -> None:
    state = given(registered("a"), registered("b"), word(lost=0))
    asked = f.NodeRemovalRequested(node_id=NodeId("a"), wait=False, user="ada")
    for fact in (asked, f.NodeRemoved(node_id=NodeId("a"))):
        tell(state.cluster, fact)
    assert state.cluster.nodes[NodeId("a")].state == "removed"
    assert not state.cluster.nodes[NodeId("a")].declared_dead


def test_what_is_heard_again_is_no_longer_observed_as_silent_or_dead() -> None:
    a, b = (NodeId("a"), 1), (NodeId("b"), 1)
    seen = Observations(silent=(a, b), dead=(a,))
    assert seen.without(a[0]) == Observations(silent=(b,))
    assert seen.without(NodeId("c")) is seen


def test_an_operators_word_about_a_node_that_registered_since_is_not_followed() -> None:
    ref = given(registered("a"), going_on()).cluster.jobs[JobId("j")].ref
    state = given(
        registered("a"), going_on(), loss(), word(), registered("a", incarnation=2, attempts=(ref,))
    )
    assert decisions(state) == [f.NodeReturned(node_id=NodeId("a"), incarnation=2)]


def test_a_cancel_waits_for_the_silent_node_and_ends_with_an_operators_word() -> None:
    cancel = f.CancelRequested(job_id=JobId("j"))
    history = [registered("a"), registered("b"), *going_on(), loss(), cancel]
    (stop,) = decisions(given(history))
    assert isinstance(stop, f.JobStopOrdered)
    assert decisions(given(history, stop, word()))[1:] == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="cancelled", reason="cancelled")
    ]


def test_a_gang_that_goes_on_waits_as_a_whole_for_its_silent_node() -> None:
    spec = waiting("j", nodes=2, on_control_loss="continue")
    gang = [
        *spec,
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "a"),
        started("j", "b"),
    ]
    history = [registered("a"), registered("b"), registered("c"), *gang]
    assert decisions(given(history), silent=[(NodeId("a"), 1)]) == [loss()]
    hurt = [*history, loss(), finished("j", "b", 1), released("j", "b")]
    (stop,) = decisions(given(hurt))
    assert isinstance(stop, f.JobStopOrdered) and stop.reason == "gang_hurt"
    assert decisions(given(hurt, stop)) == []
