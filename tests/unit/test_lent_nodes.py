"""Reserved nodes are lent to preemptible jobs until the job that waits for them could start."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from services.scheduler.decide.decide import decide
from tests.given import SECOND_NS, ended, given, registered, started, tell, waiting
from tests.unit.test_backfill import BIG, LASTS_100, begin, running, when_and_where

FREELY: dict[str, Any] = {"preemptible": True, "checkpoint_grace_s": 5}


def test_reserved_nodes_are_lent_to_a_preemptible_job_until_the_first_job_could_start() -> None:
    busy = running("i", "a", 0, 1, **LASTS_100)
    state = given(registered("a"), busy, BIG, waiting("j", gpus=2, **FREELY))
    assert begin(state) == [("j", "a")]
    assert state.cluster.jobs[JobId("j")].preemption.lender == "big"
    assert when_and_where(state, "big") == (100, ["a"])
    state.refresh(tell(state.cluster, started("j", "a")))
    assert not any(isinstance(fact, f.JobPreempted) for fact in decide(state, 40 * SECOND_NS))
    for fact in ended("i", "a", 0):
        state.refresh(tell(state.cluster, fact))
    facts: list[AnyFact] = []
    while decided := decide(state, 41 * SECOND_NS):
        state.apply_own(decided, 41 * SECOND_NS)
        facts += decided
    (preempted,) = [fact for fact in facts if isinstance(fact, f.JobPreempted)]
    assert (preempted.job_id, preempted.by, preempted.sliced) == ("j", "big", False)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_run_s": 1},
        {"checkpoint_grace_s": 51},
        {"priority": 60},
        {"preemptible": False, "checkpoint_grace_s": 0},
    ],
)
def test_nothing_is_lent_to_a_job_that_might_not_make_room_in_time(fields: dict[str, Any]) -> None:
    state = given(registered("a"), running("i", "a", 0, 1, **LASTS_100), BIG)
    assert begin(given(registered("a"), running("i", "a", 0, 1, **LASTS_100), BIG)) == []
    job = waiting("j", gpus=2, **{**FREELY, **fields})
    first = f.QueueSet(queue="default", policy="fifo", backfill=True)
    state = given(registered("a"), first, running("i", "a", 0, 1, **LASTS_100), BIG, job)
    assert begin(state) == []


def test_nothing_is_lent_for_less_than_half_a_minute() -> None:
    for seconds, places in ((71, []), (70, [("j", "a")])):
        busy = running("i", "a", 0, 1, **LASTS_100)
        state = given(registered("a"), busy, BIG, waiting("j", gpus=2, **FREELY))
        assert begin(state, seconds) == places


def test_a_borrower_leaves_the_tenant_limit_of_the_first_job() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=500)
    busy = running("i", "a", 0, 1, **LASTS_100)
    history = [registered("a"), limit, *busy, *waiting("big", gpus=4, tenant="t")]
    for tenant, places in (("t", []), ("u", [("j", "a")])):
        assert begin(given(history, waiting("j", gpus=2, tenant=tenant, **FREELY))) == places


def test_a_job_on_lent_nodes_makes_room_for_its_lender_alone() -> None:
    busy = running("i", "a", 0, 1, **LASTS_100)
    state = given(registered("a"), busy, BIG, waiting("j", gpus=2, **FREELY))
    assert begin(state) == [("j", "a")]
    assert list(state.preemptible.borrowers) == ["big"]
    state.refresh(tell(state.cluster, f.CancelRequested(job_id=JobId("big"))))
    for fact in waiting("k", gpus=2):
        state.refresh(tell(state.cluster, fact))
    found = [fact for fact in decide(state, 2 * SECOND_NS) if isinstance(fact, f.JobPreempted)]
    assert found == []
