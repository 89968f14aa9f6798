"""The scheduler's ledger of ports, and what it remembers of jobs that left the fold."""

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.folds import job_fold
from libs.common.model import JobId
from services.scheduler.state.state import State
from tests.given import EPOCH, ended, given, member, placed, registered, waiting


def fold(state: State, *facts: AnyFact) -> None:
    state.apply_own(list(facts), 0)


def closed(job: str) -> f.JobClosed:
    return f.JobClosed(job_id=JobId(job), attempt=1, outcome="completed", exit_code=0)


def test_a_port_is_free_again_when_the_last_job_that_has_it_is_over() -> None:
    both = [placed(job, member("n", index), port=0) for index, job in enumerate("ab")]
    state = given(
        registered("n"), waiting("a"), waiting("b"), both, ended("a", "n"), ended("b", "n")
    )
    fold(state, closed("a"))
    assert state.ports.used["127.0.0.1"][0] == 1
    fold(state, closed("b"))
    assert 0 not in state.ports.used["127.0.0.1"]


def test_an_attempt_that_follows_another_in_one_commit_has_its_own_port() -> None:
    state = given(
        registered("n"), waiting("a"), placed("a", member("n", 0), port=1), ended("a", "n", 1)
    )
    again = f.JobRequeued(job_id=JobId("a"), attempt=1, reason="gpu_error", counted=False)
    healed = placed("a", member("n", 0, 1), attempt=2, port=2)
    commit = f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subjects.SCHEDULER,
        number=1,
        epoch=EPOCH,
        at_ns=0,
        seen=state.seq,
        facts=(again, healed),
    )
    state.apply_entry(state.seq + 1, subjects.SCHEDULER, commit)
    assert list(state.ports.used["127.0.0.1"]) == [2]
    assert state.queue_held == State(state.cluster).queue_held == {"default": 200}


def test_a_job_that_left_the_fold_is_in_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 0)
    state = given(registered("n"), waiting("a"), placed("a", member("n", 0)), ended("a", "n"))
    fold(state, closed("a"))
    assert JobId("a") not in state.cluster.jobs
    assert JobId("a") not in state.buckets.of
