"""The first job by each policy.

Each policy acts, refuses (the other job does not go first), and does nothing where it has nothing
to compare.
"""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from libs.common.state.ordering import decayed
from services.scheduler.decide.decide import decide
from services.scheduler.policies import POLICIES
from services.scheduler.state.state import State
from tests.given import SECOND_NS, ended, given, member, placed, registered, tell, waiting

HOUR_S = 3_600


def queue(policy: str, name: str = "default", **fields: Any) -> f.QueueSet:
    return f.QueueSet(queue=name, policy=policy, **fields)


def order(state: State, now_s: float = 1) -> list[str]:
    """The jobs by the order in which they would be placed, each on an empty cluster: what is placed
    is cancelled out of the queue.
    """
    found: list[str] = []
    while facts := decide(state, int(now_s * SECOND_NS)):
        for fact in facts:
            if isinstance(fact, f.JobPlaced):
                found.append(fact.job_id)
        state.apply_own(facts, int(now_s * SECOND_NS))
        for job_id in found:
            job = state.cluster.jobs[JobId(job_id)]
            if job.state == "placed":
                for node in list(job.members):
                    for each in ended(job_id, node, attempt=job.attempt):
                        state.refresh(tell(state.cluster, each))
    return found


def ran(job: str, minutes: int, **fields: Any) -> list[AnyFact]:
    """A job that has ended well after so many minutes on one node."""
    done = ended(job, "a", run_ms=minutes * 60_000)
    closed = f.JobClosed(job_id=JobId(job), attempt=1, outcome="completed")
    return [
        *waiting(job, **fields),
        placed(job, member("a", 0)),
        *done,
        closed,
        charged(job, minutes, **fields),
    ]


def charged(job: str, minutes: int, **fields: Any) -> f.UsageCharged:
    return f.UsageCharged(
        job_id=JobId(job),
        attempt=1,
        tenant=TenantId(fields.get("tenant", "default")),
        share_ms=minutes * 6_000_000,
    )


def lost_after(job: str, minutes: int, **fields: Any) -> list[AnyFact]:
    """A job in the queue again after an attempt of so many minutes."""
    done = ended(job, "a", exit_code=1, run_ms=minutes * 60_000)
    again = f.JobRequeued(job_id=JobId(job), attempt=1, reason="failed", counted=True)
    return [
        *waiting(job, **fields),
        placed(job, member("a", 0)),
        *done,
        again,
        charged(job, minutes),
    ]


def test_every_policy_that_can_be_set_is_there() -> None:
    from libs.common.state import ordering

    assert tuple(POLICIES) == ordering.POLICIES


def test_fifo_looks_at_no_priority() -> None:
    state = given(
        registered("a", 1),
        queue("fifo"),
        waiting("first", priority=0),
        waiting("second", priority=100),
    )
    assert order(state) == ["first", "second"]


def test_fifo_lets_nothing_pass_a_head_that_does_not_fit_now() -> None:
    busy = [*waiting("i"), placed("i", member("a", 0))]
    state = given(registered("a", 2), queue("fifo"), busy, waiting("big", gpus=2), waiting("small"))
    assert list(decide(state, SECOND_NS)) == []


def test_fifo_keeps_the_place_of_a_job_that_came_back() -> None:
    state = given(
        registered("a", 1), queue("fifo"), lost_after("back", 1, retries=1), waiting("later")
    )
    assert order(state)[0] == "back"


def test_priority_without_ageing_is_never_made_up_for_by_waiting() -> None:
    state = given(registered("a", 1), queue("priority"), waiting("old", priority=49))
    late(state, 365 * 24 * HOUR_S, waiting("new", priority=50))
    assert order(state, 365 * 24 * HOUR_S) == ["new", "old"]


def late(state: State, at_s: float, history: list[AnyFact]) -> None:
    """Apply facts that arrive at that time, after all earlier ones."""
    for fact in history:
        state.refresh(tell(state.cluster, fact, at_s, seq=int(at_s)))


@pytest.mark.parametrize(("waited_s", "first"), [(601, "old"), (599, "new")])
def test_with_ageing_so_much_waiting_makes_up_for_one_step(waited_s: int, first: str) -> None:
    state = given(registered("a", 1), queue("priority", ageing_s=600), waiting("old", priority=49))
    late(state, waited_s, waiting("new", priority=50))
    assert order(state, waited_s)[0] == first


def test_a_changed_priority_counts_at_once() -> None:
    busy = [*waiting("i", gpus=1), placed("i", member("a", 0))]
    state = given(
        registered("a", 1),
        busy,
        waiting("one"),
        waiting("two"),
        f.JobUpdated(job_id=JobId("two"), priority=51),
    )
    assert [job_id for _, job_id, _, _ in next(iter(state.queue.lanes.values())).heads()] == ["two"]
    state.refresh(tell(state.cluster, f.JobUpdated(job_id=JobId("one"), priority=52)))
    assert [job_id for _, job_id, _, _ in next(iter(state.queue.lanes.values())).heads()] == ["one"]


def test_fair_share_begins_with_the_tenant_that_holds_least() -> None:
    held = [*waiting("i", tenant="a"), placed("i", member("a", 0))]
    state = given(
        registered("a", 2),
        queue("fair_share"),
        held,
        waiting("j", tenant="a"),
        waiting("k", tenant="b"),
    )
    assert order(state)[0] == "k"


def test_fair_share_goes_by_weight() -> None:
    held = [
        *waiting("i", tenant="a"),
        placed("i", member("a", 0)),
        *waiting("l", tenant="b"),
        placed("l", member("a", 1)),
    ]
    weights = [
        f.TenantSet(tenant=TenantId("a"), weight=100),
        f.TenantSet(tenant=TenantId("b"), weight=300),
    ]
    state = given(
        registered("a", 3),
        queue("fair_share"),
        weights,
        held,
        waiting("j", tenant="a"),
        waiting("k", tenant="b"),
    )
    assert order(state)[0] == "k"


def test_fair_share_remembers_use_and_forgets_it() -> None:
    used = ran("i", 24 * 60, tenant="a")
    state = given(
        registered("a", 1),
        queue("fair_share"),
        used,
        waiting("j", tenant="a"),
        waiting("k", tenant="b"),
    )
    assert order(state)[0] == "k"
    assert (
        decayed(1_000_000, 24) == 498_724
        and decayed(1_000_000, 0) == 1_000_000
        and decayed(1 << 80, 64 * 24) == 0
    )


def test_fair_share_counts_the_resource_of_which_a_tenant_has_most() -> None:
    """One GPU of four is less than all CPUs."""
    node = registered("a", 4, cpus_milli=8_000, memory_bytes=1 << 40)
    cpus = [*waiting("i", tenant="a", gpus=0, cpus_milli=6_000), placed("i", member("a"))]
    gpus = [*waiting("l", tenant="b"), placed("l", member("a", 0))]
    state = given(
        node, queue("fair_share"), cpus, gpus, waiting("j", tenant="a"), waiting("k", tenant="b")
    )
    assert order(state)[0] == "k"


def test_within_a_tenant_fair_share_goes_by_priority() -> None:
    state = given(
        registered("a", 1),
        queue("fair_share"),
        waiting("low", priority=1),
        waiting("high", priority=2),
    )
    assert order(state) == ["high", "low"]


def test_srsf_takes_the_least_service_and_not_the_shortest_time() -> None:
    wide, narrow = waiting("wide", gpus=4, estimate_s=60), waiting("narrow", gpus=1, estimate_s=200)
    state = given(registered("a"), queue("srsf"), wide, narrow, waiting("without-estimate"))
    assert order(state) == ["narrow", "wide", "without-estimate"]


def test_srsf_uses_the_tenants_history_without_an_estimate() -> None:
    state = given(
        registered("a", 1),
        queue("srsf"),
        ran("i", 10, tenant="a"),
        waiting("j", tenant="b", estimate_s=HOUR_S),
        waiting("k", tenant="a"),
    )
    assert order(state) == ["k", "j"]


def test_srsf_takes_the_time_limit_where_there_is_nothing_else() -> None:
    state = given(
        registered("a", 1),
        queue("srsf"),
        waiting("long", time_limit_s=HOUR_S),
        waiting("short", time_limit_s=60),
    )
    assert order(state) == ["short", "long"]


def test_las_places_jobs_with_much_use_last() -> None:
    state = given(
        registered("a", 1), queue("las"), lost_after("old", 25, retries=1), waiting("new")
    )
    assert order(state) == ["new", "old"]


def test_las_does_not_reorder_jobs_of_one_level() -> None:
    state = given(registered("a", 1), queue("las"), lost_after("old", 9, retries=1), waiting("new"))
    assert order(state) == ["old", "new"]


def test_the_earliest_deadline_goes_first_and_none_last() -> None:
    in_s = {"late": 9_000, "soon": 5_000}
    jobs = [waiting(name, deadline_ns=at * SECOND_NS, estimate_s=60) for name, at in in_s.items()]
    assert order(given(registered("a", 1), queue("deadline"), waiting("whenever"), *jobs)) == [
        "soon",
        "late",
        "whenever",
    ]


def test_a_deadline_that_cannot_be_met_any_more_goes_behind_those_that_can() -> None:
    jobs = [
        waiting("lost", deadline_ns=5_000 * SECOND_NS, estimate_s=4_999),
        waiting("met", deadline_ns=9_000 * SECOND_NS, estimate_s=60),
    ]
    assert order(given(registered("a", 1), queue("deadline"), *jobs), now_s=1) == ["lost", "met"]
    assert order(given(registered("a", 1), queue("deadline"), *jobs), now_s=2) == ["met", "lost"]


def test_the_queue_that_holds_least_for_its_weight_goes_first() -> None:
    queues = [queue("fifo", "day", weight=300), queue("fifo", "night", weight=100)]
    held = [
        *waiting("i", queue="day"),
        placed("i", member("a", 0)),
        *waiting("k", queue="day"),
        placed("k", member("a", 1)),
        *waiting("l", queue="night"),
        placed("l", member("a", 2)),
    ]
    both = [*waiting("n", queue="night"), *waiting("d", queue="day")]
    state = given(registered("a", 4), *queues, held, both)
    assert [fact.job_id for fact in decide(state, SECOND_NS) if isinstance(fact, f.JobPlaced)] == [
        "d"
    ]


def test_a_reconfigured_queue_is_sorted_again() -> None:
    busy = [*waiting("i"), placed("i", member("a", 0))]
    state = given(registered("a", 1), busy, waiting("one", priority=1), waiting("two", priority=2))
    heads = [job_id for _, job_id, _, _ in next(iter(state.queue.lanes.values())).heads()]
    tell(state.cluster, queue("fifo"))
    state._reorder("default")
    assert (
        heads,
        [job_id for _, job_id, _, _ in next(iter(state.queue.lanes.values())).heads()],
    ) == (["two"], ["one"])


def test_a_policy_that_is_not_known_is_the_scheduler_s_own() -> None:
    state = given(
        registered("a", 1),
        queue("of-tomorrow"),
        waiting("low", priority=1),
        waiting("high", priority=2),
    )
    assert order(state) == ["high", "low"]
