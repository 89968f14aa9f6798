"""Estimated starts of waiting jobs: from estimates, history or limits, or unknown."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Allocation, JobId, TenantId
from libs.common.state.cluster import WriterMark
from services.scheduler.explain import estimate as estimates
from services.scheduler.explain.explain import explain
from services.scheduler.explain.trial import prepare
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given, member, placed, registered, started, waiting

J = JobId("j")


def busy(job: str, gpu: int, **fields: Any) -> list[AnyFact]:
    return [*waiting(job, **fields), placed(job, member("a", gpu)), started(job, "a")]


def said(*history: Any, at_s: int = 0) -> dict[str, Any]:
    state = given(*history)
    state.pass_time(at_s * SECOND_NS)
    found: dict[str, Any] = explain(state, J)["estimate"]
    return found


def test_estimated_start_is_the_time_limit_of_the_last_needed_job() -> None:
    found = said(
        registered("a", 2),
        busy("x", 0, time_limit_s=600),
        busy("y", 1, time_limit_s=60),
        waiting("j", gpus=2),
        at_s=30,
    )
    assert found == {
        "in_s": 570,
        "basis": "a guess from time limits (2 jobs); jobs submitted meanwhile may go first",
    }


def test_an_estimate_counts_before_a_limit_and_a_late_job_by_its_limit() -> None:
    guessed = busy("x", 0, time_limit_s=600, estimate_s=100)
    assert said(registered("a", 1), guessed, waiting("j"))["in_s"] == 100
    assert said(registered("a", 1), guessed, waiting("j"), at_s=200)["in_s"] == 400


def test_the_history_of_the_tenant_counts_without_an_estimate() -> None:
    ended = f.JobFinished(
        job_id=JobId("old"), attempt=1, node_id=registered("a").node_id, exit_code=0, run_ms=50_000
    )
    over = [
        ended,
        f.JobReleased(job_id=JobId("old"), attempt=1, node_id=ended.node_id),
        f.JobClosed(JobId("old"), 1, "completed"),
    ]
    found = said(registered("a", 1), busy("old", 0), over, busy("x", 0), waiting("j"))
    assert (
        found["in_s"] == 50
        and "a guess from earlier jobs of the same tenant (1 job)" in found["basis"]
    )


def test_an_allocation_ends_when_was_last_said_of_it() -> None:
    asked = waiting("x", allocation=Allocation(100), estimate_s=100)
    began = replace(placed("x", member("a", 0)), expires_ns=100 * SECOND_NS)
    longer = f.AllocationExtended(job_id=JobId("x"), attempt=1, expires_ns=900 * SECOND_NS)
    found = said(registered("a", 1), asked, began, started("x", "a"), longer, waiting("j"))
    assert found["in_s"] == 900 and "the ends of allocations (1 job)" in found["basis"]


def test_an_earlier_job_takes_its_turn_first() -> None:
    found = said(
        registered("a", 1),
        busy("x", 0, time_limit_s=60),
        waiting("first", estimate_s=30),
        waiting("j"),
    )
    assert found["in_s"] == 90
    assert found["basis"].startswith(
        "a guess from time limits (1 job), their users' estimates (1 job)"
    )


def test_no_estimate_when_running_jobs_have_no_limit() -> None:
    assert said(registered("a", 1), busy("x", 0), waiting("j")) == {
        "in_s": None,
        "basis": "none: 1 job ahead has no time limit and no estimate",
    }
    later = said(registered("a", 1), busy("x", 0, time_limit_s=60), waiting("first"), waiting("j"))
    assert later["in_s"] is None and "1 job ahead has" in later["basis"]


def test_a_job_that_would_never_start_is_told_so() -> None:
    assert said(registered("a", 1), busy("x", 0, time_limit_s=60), waiting("j", gpus=2))[
        "basis"
    ] == ("none: this cluster cannot hold it as it is")
    capped = f.TenantSet(tenant=TenantId("t"), max_gpu_share=100)
    found = said(
        registered("a", 3), capped, busy("x", 0, time_limit_s=60), waiting("j", gpus=2, tenant="t")
    )
    assert found["basis"] == "none: it would not start even after all running jobs have ended"


def test_so_many_ends_are_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "ENDS_MAX", 1)
    found = said(
        registered("a", 2),
        busy("x", 0, time_limit_s=60),
        busy("y", 1, time_limit_s=90),
        waiting("j", gpus=2),
    )
    assert found["basis"] == "none: not once the next 1 jobs ended"


def test_the_time_of_a_past_state_is_that_of_its_last_commit() -> None:
    state = State(given(registered("a")).cluster)
    state.cluster.writers["facts.gateway.g"] = WriterMark(7, 1, 5 * SECOND_NS, 0)
    prepare(state)
    assert (state.epoch, state.wall_ns) == (1, 5 * SECOND_NS)
