"""Reserved nodes are lent to preemptible jobs until the job that waits for them could start."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId, TenantId
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State
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


def lent(*more: Any) -> State:
    """`j` runs on node a, which is reserved for `big` until `i` ends there."""
    busy = running("i", "a", 0, 1, **LASTS_100)
    state = given(registered("a"), *more, busy, BIG, waiting("j", gpus=2, **FREELY))
    assert ("j", "a") in begin(state)
    assert list(state.preemptible.borrowers) == ["j"]
    hear(state, started("j", "a"))
    return state


def hear(state: State, *facts: AnyFact) -> None:
    for fact in facts:
        state.refresh(tell(state.cluster, fact))


def called_back(state: State, at_s: float = 2) -> list[tuple[str, str]]:
    """The jobs that are preempted now, and for which."""
    facts: list[AnyFact] = []
    while decided := decide(state, int(at_s * SECOND_NS)):
        state.apply_own(decided, int(at_s * SECOND_NS))
        facts += decided
    return [(fact.job_id, fact.by) for fact in facts if isinstance(fact, f.JobPreempted)]


def test_a_job_that_stands_behind_the_borrower_does_not_call_it_back() -> None:
    state = lent()
    later = waiting("k", gpus=4, priority=40)
    hear(state, f.CancelRequested(job_id=JobId("big")), *later, *ended("i", "a", 0))
    assert called_back(state) == []


def test_a_job_that_stands_between_the_lender_and_the_borrower_calls_it_back() -> None:
    """The lender was cancelled, and this one is the first now."""
    between = waiting("k", gpus=4)
    busy = running("i", "a", 0, 1, **LASTS_100)
    state = given(registered("a"), busy, BIG, between, waiting("j", gpus=2, **FREELY))
    assert begin(state) == [("j", "a")]
    hear(state, f.CancelRequested(job_id=JobId("big")), *ended("i", "a", 0))
    assert called_back(state) == [("j", "k")]


def test_a_job_that_comes_to_stand_before_the_lender_calls_back_what_that_lent() -> None:
    """It was held when the nodes were lent."""
    held = [*waiting("early", gpus=4), f.JobUpdated(job_id=JobId("early"), held=True)]
    state = lent(*held)
    hear(state, f.JobUpdated(job_id=JobId("early"), held=False), *ended("i", "a", 0))
    assert called_back(state) == [("j", "early")]


def test_a_gang_on_lent_nodes_that_loses_a_node_does_not_keep_the_others() -> None:
    gang = {**FREELY, "nodes": 2, "gpus": 2}
    busy = [*running("i", "a", 0, 1, **LASTS_100), *running("k", "b", 0, 1, **LASTS_100)]
    big = waiting("big", nodes=2, gpus=4)
    nodes = [registered(name) for name in ("a", "b", "c")]
    full = running("l", "c", 0, 1, 2, 3)
    state = given(*nodes, busy, full, big, waiting("j", **gang))
    assert begin(state) == [("j", "a")]
    hear(state, started("j", "a"), started("j", "b"), *ended("l", "c", 0))
    hear(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    facts: list[AnyFact] = []
    while decided := decide(state, 2 * SECOND_NS):
        state.apply_own(decided, 2 * SECOND_NS)
        facts += decided
    assert any(isinstance(fact, f.JobStopOrdered) for fact in facts)
    assert not any(isinstance(fact, f.DevicesReserved) for fact in facts)


@pytest.mark.parametrize(("grace_s", "found"), [(86_400, [("j", "big")]), (10, [])])
def test_a_borrower_that_is_stopped_slowly_is_called_back(
    grace_s: int, found: list[tuple[str, str]]
) -> None:
    state = lent()
    hear(state, f.CancelRequested(job_id=JobId("j"), grace_s=grace_s))
    assert called_back(state) == []
    hear(state, *ended("i", "a", 0))
    assert called_back(state, 3) == found


def test_nothing_is_lent_before_a_maintenance() -> None:
    busy = running("i", "a", 0, 1, **LASTS_100)
    later = f.ReservationSet(
        reservation="service", nodes=(NodeId("a"),), start_ns=10**15, end_ns=2 * 10**15
    )
    assert begin(given(registered("a"), later, busy, BIG, waiting("j", gpus=2, **FREELY))) == []


def test_a_job_that_can_borrow_is_tried_behind_one_of_equal_needs_that_cannot() -> None:
    busy = running("i", "a", 0, 1, **LASTS_100)
    jobs = [*waiting("k", gpus=2), *waiting("j", gpus=2, **FREELY)]
    assert begin(given(registered("a"), busy, BIG, jobs)) == [("j", "a")]


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": 1, "reason": "exited"},
        {"exit_code": None, "signal": 15, "reason": "time_limit"},
    ],
)
def test_a_borrower_that_has_ended_is_not_called_back(end: dict[str, Any]) -> None:
    """Its devices are not released yet, and it must not run again as if it had been preempted."""
    state = lent()
    hear(state, f.JobFinished(job_id=JobId("j"), attempt=1, node_id=NodeId("a"), **end))
    hear(state, *ended("i", "a", 0))
    assert called_back(state) == []
    hear(state, f.JobReleased(job_id=JobId("j"), attempt=1, node_id=NodeId("a")))
    assert called_back(state, 3) == []
    assert state.cluster.jobs[JobId("j")].state == "failed"
    assert state.cluster.jobs[JobId("big")].state == "placed"
