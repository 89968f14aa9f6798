"""The end of an attempt of a batch: without `requeue` no element runs twice because of a fault, and
no batch is repeated without a pause.
"""

from typing import Any

import pytest

from libs.common import element_runs
from libs.common import facts as f
from libs.common.model import JobId, NodeId
from libs.common.state.job import Batch
from services.scheduler.decide.attempts import ATTEMPTS_MAX, BACK_OFF_NS
from services.scheduler.state.state import State
from tests.given import SECOND_NS, finished, released
from tests.unit.test_short_arrays import LOST, batch, job, last, results, running, say

NODE_LOST = f.NodeLost(node_id=NodeId("a"), incarnation=1, reason="silent")


def stopping(reason: str = "", **fields: Any) -> State:
    """A batch with 4 results and 5 begun elements, which was told to end for this reason."""
    state = say(running(**fields), results("j_0-9", (4, 0), begun=5))
    if reason:
        stop = f.JobStopOrdered(job_id=JobId("j_0-9"), attempt=1, reason=reason)
        state = say(state, stop)
    return state


def after(state: State, **fields: Any) -> f.JobRequeued | f.JobClosed:
    """Return what follows after the member ended like this."""
    given = {"exit_code": None, "reason": "stopped", **fields}
    found = last(say(state, finished("j_0-9", "a", **given), released("j_0-9", "a")))
    assert isinstance(found, f.JobRequeued | f.JobClosed)
    return found


@pytest.mark.parametrize("reason", ["preempted", "requeued"])
def test_an_element_that_was_stopped_as_asked_begins_again(reason: str) -> None:
    again = after(stopping(reason, requeue=False))
    assert isinstance(again, f.JobRequeued) and again.elements == 4


@pytest.mark.parametrize("reason", ["preempted", "requeued", "start_timeout"])
def test_without_requeue_nothing_runs_again_on_a_node_that_is_lost_while_it_stops(
    reason: str,
) -> None:
    closed = last(say(stopping(reason, requeue=False), NODE_LOST))
    assert isinstance(closed, f.JobClosed)
    assert (closed.outcome, closed.reason, closed.elements) == ("failed", "node_lost", 4)
    again = last(say(stopping(reason), NODE_LOST))
    assert isinstance(again, f.JobRequeued) and again.elements == 4


def test_without_requeue_an_element_that_a_fault_ended_while_it_stops_is_lost() -> None:
    state = stopping("preempted", requeue=False)
    again = after(state, **LOST)
    assert isinstance(again, f.JobRequeued) and again.elements == 5
    assert batch(state).runs == ((4, 0), (1, element_runs.LOST))
    whole = say(stopping("preempted", requeue=False), results("j_0-9", (4, 0), begun=10))
    closed = after(whole, **LOST)
    assert isinstance(closed, f.JobClosed) and closed.reason == "supervisor_lost"


def test_without_requeue_an_element_that_began_before_a_start_timeout_is_lost() -> None:
    again = after(stopping("start_timeout", requeue=False))
    assert isinstance(again, f.JobRequeued) and again.elements == 5
    whole = say(stopping("start_timeout", requeue=False), results("j_0-9", (4, 0), begun=10))
    closed = after(whole)
    assert isinstance(closed, f.JobClosed) and closed.reason == "start_timeout"


def test_a_success_without_all_results_runs_the_rest_again_only_with_requeue() -> None:
    again = after(stopping(), exit_code=0, reason="exited")
    assert isinstance(again, f.JobRequeued)
    assert (again.reason, again.elements) == ("element_lost", 4)
    assert again.not_before_ns == SECOND_NS + BACK_OFF_NS
    closed = after(stopping(requeue=False), exit_code=0, reason="exited")
    assert isinstance(closed, f.JobClosed)
    assert (closed.outcome, closed.reason) == ("failed", "element_lost")


def test_a_batch_over_its_own_time_limit_runs_its_rest_again_only_with_requeue() -> None:
    again = after(stopping(), reason="time_limit")
    assert isinstance(again, f.JobRequeued) and again.elements == 4
    lost = after(stopping(requeue=False), reason="time_limit")
    assert isinstance(lost, f.JobRequeued) and lost.elements == 5


def test_an_attempt_that_ran_nothing_is_repeated_after_a_pause_that_doubles() -> None:
    failed: dict[str, Any] = {"exit_code": 126, "reason": "exec_failed"}
    again = after(running(), **failed)
    assert isinstance(again, f.JobRequeued)
    assert (again.elements, again.not_before_ns) == (0, SECOND_NS + BACK_OFF_NS)
    state = running()
    job(state).attempt = 3
    found = last(
        say(
            state,
            finished("j_0-9", "a", attempt=3, **failed),
            released("j_0-9", "a", attempt=3),
        )
    )
    assert isinstance(found, f.JobRequeued) and found.not_before_ns == SECOND_NS + 4 * BACK_OFF_NS


def test_an_attempt_whose_lease_was_over_before_it_started_is_repeated_after_a_pause() -> None:
    for started_ns, pause_ns in ((1, 0), (0, SECOND_NS + BACK_OFF_NS)):
        state = running()
        job(state).started_ns = started_ns
        again = after(state, reason="lease_expired")
        assert isinstance(again, f.JobRequeued)
        assert (again.reason, again.not_before_ns) == ("lease_expired", pause_ns)


def test_preemptions_do_not_use_up_the_attempts_of_a_batch() -> None:
    failed: dict[str, Any] = {"exit_code": 126, "reason": "exec_failed", "attempt": ATTEMPTS_MAX}
    for preempted, outcome in ((0, f.JobClosed), (1, f.JobRequeued)):
        state = running()
        job(state).attempt = ATTEMPTS_MAX
        job(state).preemption.times = preempted
        ends = finished("j_0-9", "a", **failed), released("j_0-9", "a", attempt=ATTEMPTS_MAX)
        assert isinstance(last(say(state, *ends)), outcome)
    assert batch(state) == Batch(0, 10, (), begun=0)
