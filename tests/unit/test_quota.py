"""Quota decides once on each submission, and charges each placed attempt once when it has ended."""

from collections.abc import Sequence

import msgspec

from libs.common import facts as f
from libs.common.facts import AnyFact, Commit
from libs.common.model import GPU_HOUR_SHARE_MS, TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import HOUR_NS
from services.quota.decide import decide
from services.quota.state import State
from tests.history import (
    SECOND,
    begun,
    closed,
    finished,
    job,
    lost,
    member,
    placed,
    registered,
    released,
    requeued,
    started,
    submitted,
)

TENANT = TenantId("default")
# 2026-11-21 12:00 UTC, and the last second of that month.
NOVEMBER_NS = 1_795_262_400 * SECOND
LAST_OF_NOVEMBER_NS = 1_796_083_199 * SECOND

HOUR = NOVEMBER_NS // HOUR_NS


class World:
    """A history as quota reads it.

    `decided` is what quota says next; `record` is that coming back from the log.
    """

    def __init__(self) -> None:
        self.history = begun()
        self.now_ns = NOVEMBER_NS
        self.state = replayed(self.history.log)

    def say(self, *facts: AnyFact) -> None:
        for fact in facts:
            self.history.say(fact)
            subject, commit = self.history.log[-1]
            self.state.apply_entry(len(self.history.log), subject, commit)

    def queue(self, name: str) -> None:
        self.say(submitted(name), f.JobAdmitted(job_id=job(name)), f.JobQueued(job_id=job(name)))

    def decided(self) -> list[AnyFact]:
        return list(decide(self.state, self.now_ns))

    def record(self) -> list[AnyFact]:
        """Everything that quota has to say, as the shell does it: folded ahead, then passed over in
        the log.
        """
        said: list[AnyFact] = []
        while facts := decide(self.state, self.now_ns):
            self.state.apply_own(facts, SECOND)
            said += facts
            self.history.say(*facts)
            self.state.skip_own(len(self.history.log), *self.history.log[-1])
        return said

    def again(self) -> "World":
        """The same, by a process that has just replayed the log."""
        self.state = replayed(self.history.log)
        return self


def replayed(log: Sequence[tuple[str, Commit]]) -> State:
    state = State(Cluster())
    for seq, (subject, commit) in enumerate(log, 1):
        state.apply_entry(seq, subject, commit)
    return state


def limited(max_waiting: int) -> World:
    world = World()
    world.say(f.TenantSet(tenant=TENANT, max_waiting=max_waiting))
    return world


def run(world: World, name: str, share: int = 100, attempt: int = 1) -> None:
    """A job's whole attempt but for its close; each fact is one second after the one before it."""
    world.say(
        placed(name, member("n1", "n1g1", share=share), attempt=attempt),
        started(name, "n1", attempt),
    )
    world.say(finished(name, "n1", 0, attempt), released(name, "n1", attempt))


def names(facts: Sequence[AnyFact]) -> list[tuple[str, str]]:
    return [(type(fact).__name__, str(getattr(fact, "job_id", ""))) for fact in facts]


def test_a_submission_is_admitted() -> None:
    world = World()
    world.say(submitted("a"))
    assert world.decided() == [f.JobAdmitted(job_id=job("a"))]


def test_submissions_are_answered_in_their_order_and_once() -> None:
    world = World()
    world.say(submitted("b"), submitted("a"))
    assert names(world.record()) == [("JobAdmitted", "b"), ("JobAdmitted", "a")]
    assert world.decided() == []


def test_a_submission_over_the_tenant_s_limit_is_rejected_with_what_to_do() -> None:
    world = limited(1)
    world.say(submitted("a"))
    world.record()
    world.say(submitted("b"))
    (said,) = world.record()
    assert isinstance(said, f.JobRejected)
    assert said.reason == "tenant default may have 1 job waiting and has 1: wait for some to start"


def test_a_tenant_may_have_as_many_waiting_as_its_limit() -> None:
    world = limited(2)
    world.say(submitted("a"))
    world.record()
    world.say(submitted("b"))
    assert names(world.record()) == [("JobAdmitted", "b")]


def test_a_job_that_was_placed_waits_no_more() -> None:
    world = limited(1)
    world.queue("a")
    world.say(placed("a", member("n1", "n1g1")), submitted("b"))
    assert names(world.decided()) == [("JobAdmitted", "b")]


def test_a_rejected_job_takes_no_place() -> None:
    world = limited(1)
    world.say(submitted("a"))
    world.record()
    for name in ("b", "c"):
        world.say(submitted(name))
        assert names(world.record()) == [("JobRejected", name)]
    assert world.state.cluster.tenants[TENANT].waiting == 1


def test_the_first_of_simultaneous_submissions_are_admitted() -> None:
    world = limited(1)
    world.say(submitted("a"), submitted("b"))
    assert names(world.record()) == [("JobAdmitted", "a"), ("JobRejected", "b")]


def test_no_limit_is_no_limit() -> None:
    world = limited(0)
    world.say(*(submitted(f"j{number}") for number in range(50)))
    assert {type(fact) for fact in world.record()} == {f.JobAdmitted}


def test_quota_records_nothing_when_no_submission_or_charge_is_due() -> None:
    world = World()
    world.queue("a")
    world.say(placed("a", member("n1", "n1g1")), started("a", "n1"))
    assert world.decided() == []


def in_short(facts: Sequence[f.AnyFact]) -> list[f.AnyFact]:
    """Return the facts without what tests/unit/test_efficiency_fold.py checks of charges."""
    gone = {"began_ns": 0, "ended_ns": 0, "gpus": 0, "parts": ()}
    return [
        msgspec.structs.replace(fact, **gone) if isinstance(fact, f.UsageCharged) else fact
        for fact in facts
    ]


def test_an_ended_attempt_is_charged_from_its_placement_to_its_close() -> None:
    world = World()
    world.queue("a")
    run(world, "a", share=50)
    assert world.decided() == []
    world.say(closed("a"))
    assert in_short(world.decided()) == [
        f.UsageCharged(job_id=job("a"), attempt=1, tenant=TENANT, share_ms=50 * 4_000, hour=HOUR)
    ]


def test_a_member_is_charged_for_the_time_that_its_node_measured_whatever_the_wall_clocks_say() -> (
    None
):
    world = World()
    world.say(registered("n2", "n2g1"))
    world.queue("a")
    world.say(
        placed("a", member("n1", "n1g1"), member("n2", "n2g1", rank=1, share=50)),
        started("a", "n1"),
        started("a", "n2"),
    )
    for name, run_ms in (("n1", 700), ("n2", 300)):
        world.say(msgspec.structs.replace(finished("a", name), run_ms=run_ms), released("a", name))
    world.say(closed("a"))
    assert in_short(world.decided()) == [
        f.UsageCharged(
            job_id=job("a"), attempt=1, tenant=TENANT, share_ms=100 * 700 + 50 * 300, hour=HOUR
        )
    ]


def test_an_attempt_is_charged_once() -> None:
    world = World()
    world.queue("a")
    run(world, "a")
    world.say(closed("a"))
    assert names(world.record()) == [("UsageCharged", "a")]
    assert world.decided() == []
    assert world.state.cluster.tenants[TENANT].used_share_ms == 400_000


def test_each_attempt_is_charged_on_its_own() -> None:
    world = World()
    world.queue("a")
    run(world, "a")
    world.say(requeued("a"))
    run(world, "a", attempt=2)
    world.say(closed("a", attempt=2))
    assert [fact.attempt for fact in world.record() if isinstance(fact, f.UsageCharged)] == [1, 2]


def test_an_attempt_whose_node_was_lost_is_charged() -> None:
    world = World()
    world.queue("a")
    world.say(placed("a", member("n1", "n1g1")), started("a", "n1"), lost("n1"), requeued("a"))
    assert in_short(world.decided()) == [
        f.UsageCharged(job_id=job("a"), attempt=1, tenant=TENANT, share_ms=300_000, hour=HOUR)
    ]


def test_a_job_that_never_ran_is_charged_nothing() -> None:
    world = World()
    world.queue("a")
    world.say(closed("a", "cancelled"))
    assert world.decided() == []


def test_after_a_replay_what_was_said_is_not_said_again_and_what_was_not_is() -> None:
    world = World()
    world.queue("a")
    world.say(submitted("b"))
    run(world, "a")
    world.say(closed("a"))
    assert names(world.again().decided()) == [("JobAdmitted", "b")]
    assert names(world.again().record()) == [("JobAdmitted", "b"), ("UsageCharged", "a")]
    assert world.again().decided() == []
    assert world.state.cluster.tenants[TENANT].used_share_ms == 400_000


def test_a_close_that_is_ignored_is_not_charged() -> None:
    world = World()
    world.queue("a")
    world.say(placed("a", member("n1", "n1g1")))
    world.say(closed("a"))
    assert world.decided() == []


def test_an_admission_goes_before_a_charge() -> None:
    world = World()
    world.queue("a")
    run(world, "a")
    world.say(closed("a"), submitted("b"))
    assert names(world.record()) == [("JobAdmitted", "b"), ("UsageCharged", "a")]


def budget(gpu_hours: int) -> World:
    world = World()
    world.say(f.TenantSet(tenant=TENANT, gpu_hours=gpu_hours))
    return world


def charged(world: World, hours: int, attempt: int = 1) -> None:
    world.say(
        f.UsageCharged(
            job_id=job("a"), attempt=attempt, tenant=TENANT, share_ms=hours * GPU_HOUR_SHARE_MS
        )
    )


def test_a_budget_that_is_used_up_is_said_once() -> None:
    world = budget(2)
    charged(world, 1)
    assert world.decided() == []
    charged(world, 1, attempt=2)
    assert world.record() == [
        f.BudgetExhausted(tenant=TENANT, gpu_hours=2, used_share_ms=2 * GPU_HOUR_SHARE_MS)
    ]
    charged(world, 1, attempt=3)
    assert world.decided() == [] and world.again().decided() == []
    assert world.state.cluster.tenants[TENANT].exhausted


def test_a_raised_budget_is_used_up_again_when_it_is() -> None:
    world = budget(1)
    charged(world, 1)
    world.record()
    world.say(f.TenantSet(tenant=TENANT, gpu_hours=3))
    assert world.decided() == [] and not world.state.cluster.tenants[TENANT].exhausted
    charged(world, 2, attempt=2)
    assert names(world.record()) == [("BudgetExhausted", "")]


def test_a_budget_that_is_lowered_below_what_was_used_is_used_up() -> None:
    world = budget(5)
    charged(world, 3)
    world.say(f.TenantSet(tenant=TENANT, gpu_hours=2))
    assert names(world.again().record()) == [("BudgetExhausted", "")]


def test_without_a_budget_nothing_is_used_up() -> None:
    world = budget(0)
    charged(world, 1_000)
    assert world.decided() == []


def monthly(gpu_hours: int) -> World:
    world = World()
    world.say(f.TenantSet(tenant=TENANT, gpu_hours=gpu_hours, gpu_hours_per="month"))
    assert world.record() == [f.BudgetRenewed(tenant=TENANT, month=202_611)]
    return world


def test_a_month_s_budget_is_used_up_by_that_month_s_charges() -> None:
    world = budget(0)
    charged(world, 5)
    world.say(f.TenantSet(tenant=TENANT, gpu_hours=2, gpu_hours_per="month"))
    assert world.record() == [f.BudgetRenewed(tenant=TENANT, month=202_611)]
    charged(world, 2, attempt=2)
    assert world.record() == [
        f.BudgetExhausted(
            tenant=TENANT, gpu_hours=2, used_share_ms=2 * GPU_HOUR_SHARE_MS, month=202_611
        )
    ]
    assert world.again().decided() == [] and world.state.cluster.tenants[TENANT].exhausted


def test_the_next_month_of_utc_renews_the_budget_once() -> None:
    world = monthly(1)
    charged(world, 1)
    world.record()
    world.now_ns = LAST_OF_NOVEMBER_NS
    assert world.decided() == []
    world.now_ns += SECOND
    assert world.record() == [f.BudgetRenewed(tenant=TENANT, month=202_612)]
    tenant = world.again().state.cluster.tenants[TENANT]
    assert (tenant.exhausted, tenant.month_share_ms, tenant.used_share_ms) == (
        False,
        0,
        GPU_HOUR_SHARE_MS,
    )
    charged(world, 1, attempt=2)
    assert names(world.record()) == [("BudgetExhausted", "")]


def test_exhausted_budget_of_another_month_does_not_affect_this_month() -> None:
    world = monthly(1)
    before = world.state.cluster.ignored
    world.say(f.BudgetExhausted(tenant=TENANT, gpu_hours=1, used_share_ms=1, month=202_610))
    assert (
        not world.state.cluster.tenants[TENANT].exhausted
        and world.state.cluster.ignored == before + 1
    )


def test_a_clock_that_went_back_renews_nothing() -> None:
    world = monthly(1)
    world.now_ns = SECOND
    assert world.decided() == []


def test_a_charge_after_the_turn_of_the_month_is_the_new_month_s() -> None:
    world = monthly(1)
    world.queue("a")
    run(world, "a")
    world.say(closed("a"))
    world.now_ns = LAST_OF_NOVEMBER_NS + SECOND
    assert names(world.record())[:2] == [("BudgetRenewed", ""), ("UsageCharged", "a")]
    assert world.state.cluster.tenants[TENANT].month_share_ms > 0


def test_a_lifetime_budget_is_not_renewed_and_ignores_the_month() -> None:
    world = monthly(1)
    charged(world, 1)
    world.record()
    world.say(f.TenantSet(tenant=TENANT, gpu_hours=2))
    assert not world.state.cluster.tenants[TENANT].exhausted
    world.now_ns = LAST_OF_NOVEMBER_NS + SECOND
    assert world.decided() == []
