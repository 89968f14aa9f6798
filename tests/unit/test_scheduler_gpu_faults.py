"""How a job goes on that ended with an error of its device: hardware is none of its doing, its own
error is.
"""

import pytest

from libs.common import facts as f
from libs.common.model import GpuHold, JobId, Member, NodeId
from services.scheduler.decide.decide import decide
from tests.given import (
    SECOND_NS,
    ended,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    waiting,
)


def said(*history: object) -> list[f.AnyFact]:
    state = given(*history)  # type: ignore[arg-type]
    return list(decide(state, 100 * SECOND_NS))


def run(reason: str, **request: int) -> list[object]:
    attempt = [
        placed("j", member("a", 0)),
        started("j", "a"),
        finished("j", "a", None, signal=15, reason=reason),
        released("j", "a"),
    ]
    return [registered("a"), waiting("j", **request), attempt]


def requeued(reason: str, counted: bool) -> f.JobRequeued:
    return f.JobRequeued(job_id=JobId("j"), attempt=1, reason=reason, counted=counted)


@pytest.mark.parametrize("reason", ["gpu_fault", "mps_lost"])
def test_a_job_whose_device_failed_is_tried_again_and_uses_up_no_retry(reason: str) -> None:
    assert said(*run(reason)) == [requeued(reason, counted=False)]


def test_a_job_that_must_not_run_twice_fails_with_its_device() -> None:
    (closed,) = said(*run("gpu_fault", requeue=False))
    assert isinstance(closed, f.JobClosed) and (closed.outcome, closed.reason) == (
        "failed",
        "gpu_fault",
    )


def test_an_error_of_its_own_is_one_of_its_retries() -> None:
    assert said(*run("gpu_error", retries=1)) == [requeued("gpu_error", counted=True)]
    (closed,) = said(*run("gpu_error"))
    assert isinstance(closed, f.JobClosed) and (closed.outcome, closed.reason) == (
        "failed",
        "gpu_error",
    )


def test_the_next_attempt_is_placed_on_another_device_than_the_one_that_is_away() -> None:
    first = member("a", 0).gpus[0].uuid
    fault = f.GpuFaulted(
        node_id=NodeId("a"), uuid=first, health="offline", reason="xid 95", verdict="reset"
    )
    again = requeued("gpu_fault", counted=False)
    (there,) = said(*run("gpu_fault"), fault, again)
    assert isinstance(there, f.JobPlaced)
    assert [hold.uuid for hold in there.members[0].gpus] != [first]


def test_a_gang_with_one_failed_device_restarts_as_a_whole() -> None:
    gang = [
        *waiting("j", nodes=2),
        placed(
            "j", member("a", 0), Member(NodeId("b"), 1, 1, (GpuHold(member("b", 0).gpus[0].uuid),))
        ),
    ]
    running = [
        started("j", "a"),
        started("j", "b"),
        finished("j", "a", None, signal=15, reason="gpu_fault"),
    ]
    stop, *_ = said(registered("a"), registered("b"), gang, running)
    assert isinstance(stop, f.JobStopOrdered) and stop.reason == "gang_hurt"
    over = [
        released("j", "a"),
        stop,
        finished("j", "b", None, signal=15, reason="stopped"),
        released("j", "b"),
    ]
    assert said(registered("a"), registered("b"), gang, running, over)[0] == requeued(
        "gpu_fault", counted=False
    )


def test_a_job_that_ended_well_on_a_device_that_erred_is_completed() -> None:
    done = [registered("a"), waiting("j"), placed("j", member("a", 0)), ended("j", "a")]
    (closed,) = said(*done)
    assert isinstance(closed, f.JobClosed) and closed.outcome == "completed"


def test_a_job_that_hung_is_tried_again_as_one_that_failed_by_itself() -> None:
    (closed,) = said(*run("hung"))
    assert isinstance(closed, f.JobClosed) and (closed.outcome, closed.reason) == ("failed", "hung")
    assert said(*run("hung", retries=1)) == [requeued("hung", counted=True)]


def test_a_member_that_hung_because_its_gang_lost_another_one_to_its_machine_uses_up_no_retry() -> (
    None
):
    gang = [
        *waiting("j", nodes=2),
        placed(
            "j", member("a", 0), Member(NodeId("b"), 1, 1, (GpuHold(member("b", 0).gpus[0].uuid),))
        ),
    ]
    hung = [
        started("j", "a"),
        started("j", "b"),
        finished("j", "a", None, signal=15, reason="hung"),
        released("j", "a"),
    ]
    lost = [finished("j", "b", None, signal=9, reason="gpu_fault"), released("j", "b")]
    assert said(registered("a"), registered("b"), gang, hung, lost)[0] == requeued(
        "gpu_fault", counted=False
    )
