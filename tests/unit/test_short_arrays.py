"""Short arrays: a batch of elements is one job, each element has one result, and none runs twice
unless its job's policy allows another attempt.
"""

from typing import Any

from msgspec.structs import replace

from libs.common import arrays, element_runs
from libs.common import facts as f
from libs.common.change import IGNORED
from libs.common.facts import AnyFact
from libs.common.folds import array_fold
from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.cluster import Job
from libs.common.state.job import Batch
from libs.common.state.refusals import Refusals
from services.scheduler.state.state import State
from tests.given import (
    EPOCH,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    spec,
    started,
    tell,
)
from tests.given import waiting as queued
from tests.unit.scheduler_decisions import decisions

TENANT = TenantId("default")
NODE = registered("a", gpus=4, isolation={"short_arrays": "enforced"})


def short(text: str, **fields: object) -> list[AnyFact]:
    return queued("j", array=replace(arrays.parse(text), short=True), **fields)


def begun(text: str, place: int, count: int) -> f.ElementBegun:
    array = arrays.parse(text)
    return f.ElementBegun(
        job_id=arrays.batch_id(JobId("j"), array, place, count),
        array=JobId("j"),
        number=arrays.number_at(array, place),
        tenant=TENANT,
        count=count,
    )


def results(
    job: str, *runs: tuple[int, int], first: int = 0, begun: int = 0, attempt: int = 1
) -> f.ElementsEnded:
    return f.ElementsEnded(
        job_id=JobId(job), attempt=attempt, node_id=NodeId("a"), first=first, runs=runs, begun=begun
    )


def running(text: str = "0-9", **fields: object) -> State:
    """An array of one batch, which runs."""
    return given(
        NODE,
        short(text, **fields),
        begun(text, 0, 10),
        placed("j_0-9", member("a", 0)),
        started("j_0-9", "a"),
    )


def say(state: State, *facts: AnyFact) -> State:
    """Return the state of a scheduler that begins after these facts."""
    for fact in facts:
        assert tell(state.cluster, fact) is not IGNORED, fact
    fresh = State(state.cluster)
    fresh.begin(EPOCH, 0)
    return fresh


def batch(state: State, job: str = "j_0-9") -> Batch:
    found = state.cluster.jobs[JobId(job)].batch
    assert found is not None
    return found


def job(state: State, name: str = "j_0-9") -> Job:
    return state.cluster.jobs[JobId(name)]


def last(state: State) -> AnyFact:
    """Return the first decision: what follows the end of the attempt."""
    return decisions(state)[0]


def test_batches_begin_as_jobs_and_get_smaller_towards_the_end() -> None:
    state = given(NODE, short("0-99%2"))
    facts = [fact for fact in decisions(state) if isinstance(fact, f.ElementBegun)]
    assert [(fact.job_id, fact.count) for fact in facts] == [("j_0-24", 25), ("j_25-42", 18)]
    assert state.cluster.tenants[facts[0].tenant].waiting == 100 - 25 - 18


def test_a_batch_has_at_most_a_thousand_elements_and_at_least_eight() -> None:
    big = given(NODE, short("0-99999"))
    assert {each.count for each in decisions(big) if isinstance(each, f.ElementBegun)} == {1_000}
    small = given(NODE, short("0-9%9"))
    begun_here = [each for each in decisions(small) if isinstance(each, f.ElementBegun)]
    assert [each.count for each in begun_here] == [8, 2]


def test_the_time_limit_and_the_estimate_of_a_batch_are_those_of_all_its_elements() -> None:
    state = given(NODE, short("0-7", time_limit_s=2, estimate_s=3))
    decisions(state)
    made = job(state, "j_0-7").spec
    assert made.time_limit_s == element_runs.batch_limit_s(2, 8, made.grace_s)
    assert made.estimate_s == 24


def test_batches_go_only_to_agents_that_know_them() -> None:
    state = given(registered("old"), short("0-9"))
    assert decisions(state) == []


def test_the_fold_ignores_batches_with_another_name_or_size_than_right() -> None:
    state = given(NODE, short("0-9"))
    right = begun("0-9", 0, 10)
    wrong = (
        replace(right, count=9),
        replace(right, count=11),
        replace(right, count=0),
        replace(right, number=1),
    )
    assert [tell(state.cluster, each) for each in wrong] == [IGNORED] * len(wrong)
    ordinary = given(NODE, queued("j", array=arrays.parse("0-9")))
    assert tell(ordinary.cluster, right) is IGNORED


def test_results_count_once_and_in_order() -> None:
    state = running()
    state = say(state, results("j_0-9", (3, 0), begun=5))
    assert tell(state.cluster, results("j_0-9", (1, 0), first=4)) is IGNORED
    assert tell(state.cluster, results("j_0-9", (1, 600), first=3)) is IGNORED
    state = say(state, results("j_0-9", (3, 0), (1, 7), begun=4))
    assert batch(state) == Batch(0, 10, ((3, 0), (1, 7)), begun=5)
    state = say(state, results("j_0-9", (100, 0), first=4, begun=400))
    assert batch(state).done == batch(state).begun == 10
    other = results("j_0-9", (1, 0), attempt=2)
    assert tell(state.cluster, other) is IGNORED
    elsewhere = replace(results("j_0-9", (1, 0)), node_id=NodeId("b"))
    assert tell(state.cluster, elsewhere) is IGNORED


def test_results_of_a_job_without_elements_are_ignored() -> None:
    state = given(NODE, queued("k"), placed("k", member("a", 0)))
    assert tell(state.cluster, results("k", (1, 0))) is IGNORED


def test_a_batch_completes_if_all_its_elements_did() -> None:
    state = running()
    state = say(state, results("j_0-9", (10, 0)), finished("j_0-9", "a"), released("j_0-9", "a"))
    closed = last(state)
    assert isinstance(closed, f.JobClosed) and closed.outcome == "completed"
    assert closed.exit_code == 0 and closed.elements == 10
    assert job(state, "j").state == "completed"


def test_a_batch_fails_with_the_first_exit_code_and_counts_each_element() -> None:
    state = running()
    runs = ((4, 0), (1, 3), (5, 0))
    state = say(state, results("j_0-9", *runs), finished("j_0-9", "a", 1), released("j_0-9", "a"))
    closed = last(state)
    assert isinstance(closed, f.JobClosed)
    assert (closed.outcome, closed.reason, closed.exit_code) == (
        "failed",
        "1 of 10 elements failed",
        3,
    )
    array = job(state, "j")
    assert array.elements is not None and array.elements.ended == {"completed": 9, "failed": 1}
    assert (array.state, array.reason) == ("failed", "1 of 10 elements failed")
    assert array.exit_code == 3


LOST: dict[str, Any] = {"exit_code": None, "reason": "supervisor_lost"}


def test_the_next_attempt_begins_behind_the_elements_that_ended() -> None:
    state = running()
    state = say(
        state,
        results("j_0-9", (4, 0), begun=5),
        finished("j_0-9", "a", **LOST),
        released("j_0-9", "a"),
    )
    again = last(state)
    assert isinstance(again, f.JobRequeued) and again.elements == 4
    assert batch(state) == Batch(0, 10, ((4, 0),), begun=4)
    assert job(state).attempt == 2


def test_without_requeue_a_begun_element_is_lost_and_the_others_go_on() -> None:
    state = running(requeue=False)
    state = say(
        state,
        results("j_0-9", (4, 0), begun=5),
        finished("j_0-9", "a", **LOST),
        released("j_0-9", "a"),
    )
    again = last(state)
    assert isinstance(again, f.JobRequeued) and again.elements == 5
    assert batch(state).runs == ((4, 0), (1, element_runs.LOST))


def test_an_element_that_ended_its_attempt_is_lost_and_the_others_go_on() -> None:
    """For example, one of its processes could not be killed."""
    state = running()
    state = say(
        state,
        results("j_0-9", (4, 0), begun=5),
        finished("j_0-9", "a", None, reason="exited"),
        released("j_0-9", "a"),
    )
    again = last(state)
    assert isinstance(again, f.JobRequeued)
    assert (again.reason, again.elements, again.counted) == ("failed", 5, False)


def test_a_batch_that_all_nodes_refuse_fails() -> None:
    state = given(NODE, short("0-9"), begun("0-9", 0, 10), placed("j_0-9", member("a", 0)))
    job(state).refusals = Refusals(count=99)
    refused = f.JobRefused(job_id=JobId("j_0-9"), attempt=1, node_id=NodeId("a"), reason="no user")
    state = say(state, refused)
    closed = last(state)
    assert isinstance(closed, f.JobClosed) and closed.reason == "refused: no user"
    assert closed.elements == 0


def test_without_requeue_nothing_of_a_lost_node_runs_again() -> None:
    state = running(requeue=False)
    state = say(
        state,
        results("j_0-9", (4, 0), begun=5),
        f.NodeLost(node_id=NodeId("a"), incarnation=1, reason="silent"),
    )
    closed = last(state)
    assert isinstance(closed, f.JobClosed) and closed.elements == 4
    array = job(state, "j")
    assert array.elements is not None and array.elements.ended == {"completed": 4, "failed": 6}


def test_an_agent_that_never_started_an_attempt_proves_that_nothing_began() -> None:
    state = given(
        NODE, short("0-9", requeue=False), begun("0-9", 0, 10), placed("j_0-9", member("a", 0))
    )
    state = say(state, replace(NODE, incarnation=2))
    again = last(state)
    assert isinstance(again, f.JobRequeued)
    assert (again.reason, again.elements) == ("node_lost", 0)
    begun_there = given(
        NODE, short("0-9", requeue=False), begun("0-9", 0, 10), placed("j_0-9", member("a", 0))
    )
    tell(begun_there.cluster, started("j_0-9", "a"), at_s=1)
    begun_there = say(begun_there, replace(NODE, incarnation=2))
    assert isinstance(last(begun_there), f.JobClosed)


def test_an_end_that_came_too_late_does_not_count_twice() -> None:
    """The scheduler ended the attempt before it read the last results of a lost node."""
    state = running()
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1, reason="silent")
    state = say(
        state, results("j_0-9", (4, 0), begun=5), lost, results("j_0-9", (2, 0), first=4, begun=6)
    )
    assert batch(state).done == 6
    again = f.JobRequeued(
        job_id=JobId("j_0-9"), attempt=1, reason="node_lost", counted=False, elements=4
    )
    state = say(state, again)
    assert batch(state) == Batch(0, 10, ((4, 0),), begun=4)


def test_a_cancelled_batch_keeps_its_results_and_cancels_the_rest() -> None:
    state = running()
    state = say(
        state,
        f.CancelRequested(job_id=JobId("j")),
        results("j_0-9", (4, 0), begun=5),
        finished("j_0-9", "a", None, signal=15, reason="stopped"),
        released("j_0-9", "a"),
    )
    closed = next(fact for fact in decisions(state) if isinstance(fact, f.JobClosed))
    assert closed.outcome == "cancelled" and closed.elements == 4
    array = job(state, "j")
    assert array.elements is not None and array.elements.ended == {"completed": 4, "cancelled": 6}


def test_a_waiting_batch_that_is_cancelled_keeps_the_results_of_earlier_attempts() -> None:
    state = running()
    state = say(
        state,
        results("j_0-9", (4, 0), begun=5),
        finished("j_0-9", "a", **LOST),
        released("j_0-9", "a"),
        f.JobRequeued(job_id=JobId("j_0-9"), attempt=1, reason="lost", counted=False, elements=4),
        f.CancelRequested(job_id=JobId("j")),
    )
    decisions(state)
    array = job(state, "j")
    assert array.elements is not None and array.elements.ended == {"completed": 4, "cancelled": 6}


def test_an_element_of_a_short_array_cannot_be_cancelled_alone() -> None:
    state = given(NODE, short("0-9"))
    cancel = f.CancelRequested(job_id=JobId("j_3"))
    assert tell(state.cluster, cancel) is IGNORED


def test_the_elements_of_a_batch_are_counted_by_state() -> None:
    state = running()
    state = say(state, results("j_0-9", (4, 0), (1, 1), begun=6))
    states = array_fold.states_of(job(state))
    assert states == {"completed": 4, "failed": 1, "running": 1, "queued": 4}
    job(state).state = "completed"
    assert array_fold.states_of(job(state)) == {"completed": 4, "failed": 6}
    assert array_fold.states_of(Job(JobId("k"), spec(), TENANT, "", 1, state="queued")) == {
        "queued": 1
    }
