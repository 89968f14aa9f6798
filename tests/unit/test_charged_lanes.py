"""A charge may change the order of tenants under `fair_share`, so the scheduler decides again."""

from libs.common import facts as f
from libs.common import subjects
from libs.common.change import Stamp
from libs.common.model import JobId, TenantId
from services.scheduler.queueing.queue_order import heads
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, waiting
from tests.unit.scheduler_decisions import decisions
from tests.unit.test_policies import queue, ran

HOUR_SHARE_MS = 100 * 3_600_000


def big_before_small() -> State:
    """Return a state in which the whole node is reserved for a job of tenant t, so that a job of
    tenant u waits beside free devices. The use of an ended job of t is not charged yet.
    """
    *history, _ = ran("ended", 60, tenant="t")
    state = given(
        registered("a"),
        queue("fair_share"),
        history,
        waiting("rock", tenant="v"),
        placed("rock", member("a", 0)),
        waiting("big", tenant="t", gpus=4),
        waiting("small", tenant="u"),
    )
    assert decisions(state) == []
    return state


def charge(state: State, tenant: str, share_ms: int = HOUR_SHARE_MS) -> None:
    fact = f.UsageCharged(
        job_id=JobId("ended"), attempt=1, tenant=TenantId(tenant), share_ms=share_ms
    )
    stamp = Stamp(seq=0, at_ns=0, epoch=1, writer=subjects.WRITER_OF[type(fact)], writer_id="")
    state.imagine(fact, stamp)


def test_a_charge_that_puts_another_tenant_first_starts_its_job() -> None:
    state = big_before_small()
    charge(state, "t")
    assert decisions(state) == [placed("small", member("a", 1), port=29_501)]


def test_a_charge_that_keeps_the_order_of_tenants_causes_no_pass() -> None:
    state = big_before_small()
    versions = state.versions
    charge(state, "u")
    assert decisions(state) == [] and state.versions == versions


def test_a_question_between_a_charge_and_the_decision_does_not_hide_the_charge() -> None:
    state = big_before_small()
    charge(state, "t")
    assert [entry.job_id for entry in heads(state)] == ["small", "big"]
    assert [fact.job_id for fact in decisions(state)] == ["small"]


def test_charges_are_not_compared_if_a_pass_follows_anyway() -> None:
    state = big_before_small()
    charge(state, "t")
    state.queue.version += 1
    versions = state.versions
    assert [fact.job_id for fact in decisions(state)] == ["small"]
    assert state.nothing_fits != versions
