"""A tenant's budget of GPU hours bounds what its allocations will have held: what it has not left
for one is not placed.
"""

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact
from libs.common.model import GPU_HOUR_SHARE_MS, Allocation, JobId, TenantId
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    waiting,
)
from tests.unit.scheduler_decisions import decisions, hear

HOUR = 3_600


def limited(hours: int) -> f.TenantSet:
    return f.TenantSet(tenant=TenantId("t"), gpu_hours=hours)


def wants(job: str, expires_s: int, tenant: str = "t", **fields: object) -> list[AnyFact]:
    return waiting(job, tenant=tenant, allocation=Allocation(expires_s), **fields)


def holds(job: str, gpu: int, expires_s: int) -> list[AnyFact]:
    """One that runs since time 0."""
    began = replace(placed(job, member("a", gpu)), expires_ns=expires_s * SECOND_NS)
    return [*wants(job, expires_s), began, started(job, "a")]


def begin(state: State, now_s: float = 1) -> list[str]:
    return [fact.job_id for fact in decisions(state, now_s) if isinstance(fact, f.JobPlaced)]


def test_an_allocation_is_placed_within_what_the_budget_has_left_and_not_beyond() -> None:
    assert begin(given(registered("a"), limited(4), wants("j", 2 * HOUR, gpus=2))) == ["j"]
    assert begin(given(registered("a"), limited(3), wants("j", 2 * HOUR, gpus=2))) == []


def test_without_a_budget_nobody_counts_and_of_a_job_nobody_knows() -> None:
    assert begin(given(registered("a"), wants("j", 99 * HOUR))) == ["j"]
    assert begin(
        given(registered("a"), limited(1), waiting("j", tenant="t", time_limit_s=99 * HOUR))
    ) == ["j"]


def test_resources_of_the_tenant_s_other_jobs_count_until_these_end() -> None:
    state = given(
        registered("a"), limited(3), holds("i", 0, 2 * HOUR), wants("j", 2 * HOUR), wants("k", HOUR)
    )
    assert begin(state) == ["k"]
    hear(state, finished("i", "a", None, run_ms=HOUR * 1_000, signal=15), released("i", "a"))
    assert begin(state) == []
    state.imagine(
        limited(4), Stamp(seq=0, at_ns=0, epoch=1, writer=subjects.GATEWAY_KIND, writer_id="")
    )
    assert begin(state) == ["j"]


def test_an_extension_takes_what_is_left() -> None:
    longer = f.AllocationExtended(job_id=JobId("i"), attempt=1, expires_ns=3 * HOUR * SECOND_NS)
    for said, begun in (([], ["j"]), ([longer], [])):
        assert (
            begin(given(registered("a"), limited(3), holds("i", 0, HOUR), said, wants("j", HOUR)))
            == begun
        )


def test_job_beyond_its_tenant_s_rest_lets_other_jobs_of_the_tenant_pass() -> None:
    same = [
        *wants("long", 9 * HOUR),
        *wants("short", HOUR),
        *waiting("job", tenant="t"),
        *wants("other", 9 * HOUR, tenant="u"),
    ]
    assert begin(given(registered("a"), limited(1), same)) == ["short", "job", "other"]


def test_a_scheduler_that_takes_over_counts_the_same() -> None:
    state = State(
        given(registered("a"), limited(3), holds("i", 0, 2 * HOUR), wants("j", 2 * HOUR)).cluster
    )
    state.begin(1, 0)
    assert begin(state) == []


@pytest.mark.parametrize("hours", [3, 2])
def test_why_names_the_budget_and_the_one_that_would_do(hours: int) -> None:
    state = given(registered("a"), limited(hours), holds("i", 0, 2 * HOUR), wants("j", 2 * HOUR))
    shown = explain(state, JobId("j"))
    assert (
        f"tenant t has {hours - 2}.0 GPU hours left of its budget of {hours}, and this "
        "allocation would hold 2.0"
    ) in shown["answer"]
    assert (
        "raise the budget of tenant t to 4 GPU hours "
        "(an administrator: muster tenant set t --gpu-hours 4)" in shown["changes"]
    )


def test_charges_reduce_the_budget_that_is_left() -> None:
    state = given(registered("a"), limited(3), wants("j", 2 * HOUR))
    state.cluster.tenants[TenantId("t")].used_share_ms = GPU_HOUR_SHARE_MS + 1
    assert begin(state) == []


def used_without_quota(hours: int) -> State:
    """A tenant with this budget, whose job `i` used 2 GPU hours that quota has not charged; the
    job `j` waits.
    """
    state = given(
        registered("a"),
        limited(hours),
        waiting("i", tenant="t"),
        placed("i", member("a", 0)),
        started("i", "a"),
        waiting("j", tenant="t"),
        waiting("k", tenant="u", gpus=2),
    )
    end_ms = 2 * HOUR * 1_000
    hear(state, finished("i", "a", 0, run_ms=end_ms), released("i", "a"))
    return state


def test_use_that_quota_has_not_charged_counts_against_the_budget() -> None:
    assert begin(used_without_quota(3), 2 * HOUR) == ["j", "k"]
    state = used_without_quota(2)
    assert begin(state, 2 * HOUR) == ["k"]
    assert begin(State(state.cluster), 2 * HOUR) == []


def test_why_names_a_budget_that_is_used_up_before_quota_says_so() -> None:
    state = used_without_quota(2)
    decisions(state, 2 * HOUR)
    shown = explain(state, JobId("j"))
    assert "tenant t has used up its budget of 2 GPU hours" in shown["answer"]
    assert any("raise the budget of tenant t to 3 GPU hours" in each for each in shown["changes"])


def test_a_charge_moves_what_a_tenant_owes_to_its_used_hours() -> None:
    state = used_without_quota(2)
    decisions(state, 2 * HOUR)
    (due,) = state.cluster.uncharged.values()
    assert state.owed.share_ms == {"t": due.share_ms} and due.share_ms == 2 * GPU_HOUR_SHARE_MS
    stamp = Stamp(seq=0, at_ns=0, epoch=1, writer=subjects.QUOTA_KIND, writer_id="")
    charged = f.UsageCharged(job_id=JobId("i"), attempt=1, tenant=due.tenant, share_ms=due.share_ms)
    state.imagine(charged, stamp)
    assert state.owed.share_ms == {"t": 0} and not state.owed.charges
    assert state.cluster.tenants[due.tenant].used_share_ms == due.share_ms
    assert State(state.cluster).owed.share_ms == {}
    state.imagine(charged, stamp)  # a charge of an attempt that is not owed
    assert state.owed.share_ms == {"t": 0}
