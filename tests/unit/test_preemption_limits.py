"""Whom room is made for: within what a tenant may hold, what is reserved counted, and in each queue
for itself.
"""

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId, TenantId
from services.scheduler.queueing.backfill import SCAN_MAX
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    ended,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    waiting,
)
from tests.unit.preemption_facts import running
from tests.unit.scheduler_decisions import decisions, hear


def limited(tenant: str, gpus: int) -> f.TenantSet:
    return f.TenantSet(tenant=TenantId(tenant), max_gpu_share=gpus * 100)


def three_full_nodes() -> list[AnyFact]:
    jobs = [fact for name in "abc" for fact in running(f"on-{name}", 0, 1, 2, 3, node=name)]
    return [*(registered(name) for name in "abc"), *jobs, limited("t", 4)]


def test_reserved_devices_count_when_room_is_made_within_a_tenant_limit() -> None:
    state = given(
        three_full_nodes(),
        *(waiting(f"high-{n}", gpus=4, priority=90, tenant="t") for n in range(3)),
    )
    assert [fact.job_id for fact in decisions(state)] == ["high-0", "on-a"]
    assert decisions(state_again(state)) == []


def test_reserved_devices_count_against_the_tenant_limit() -> None:
    """Not while others make room, and the job is placed then; whatever comes after it."""
    state = given(three_full_nodes(), waiting("high", gpus=4, priority=90, tenant="t"))
    decisions(state)
    hear(state, *waiting("small", priority=99, tenant="t"), *ended("on-b", "b")[1:])
    assert [(type(fact), fact.job_id) for fact in decisions(state)] == [
        (f.JobClosed, "on-b"),
        (f.JobPlaced, "high"),
    ]
    assert state.cluster.jobs[JobId("small")].state == "queued"


def test_own_reservation_does_not_block_its_job() -> None:
    state = given(three_full_nodes(), waiting("high", gpus=4, priority=90, tenant="t"))
    decisions(state)
    hear(state, finished("on-a", "a", None, signal=15, reason="stopped"), released("on-a", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["on-a", "high"]


def test_a_reservation_that_ends_leaves_its_share_to_its_tenant() -> None:
    """Also where nothing else changes: who made room has not ended yet."""
    free = registered("d", gpus=1)
    state = given(
        three_full_nodes(),
        free,
        waiting("high", gpus=4, priority=90, tenant="t"),
        waiting("small", tenant="t"),
    )
    assert [fact.job_id for fact in decisions(state)] == ["high", "on-a"]
    hear(state, f.JobClosed(job_id=JobId("high"), attempt=1, outcome="cancelled"))
    assert decisions(state) == [placed("small", member("d", 0), port=29_501)]


def state_again(state: State) -> State:
    """Return the state of a scheduler that takes over."""
    again = State(state.cluster)
    again.begin(1, SECOND_NS)
    return again


def two_queues(*history: AnyFact, backfill: bool = True) -> State:
    """The first in line needs a whole node, and no room can be made for it; it is promised `b`,
    where fewer jobs are in its way.
    """
    rocks = [
        *waiting("rock", gpus=2),
        placed("rock", member("b", 0, 1)),
        *waiting("stone"),
        placed("stone", member("a", 2)),
    ]
    jobs = [
        *rocks,
        *waiting("pebble"),
        placed("pebble", member("a", 3)),
        *running("low-a", 0, 1),
        *running("low-b", 2, node="b"),
    ]
    queues = [
        f.QueueSet(queue="one", policy="priority", backfill=backfill),
        f.QueueSet(queue="two", policy="priority"),
    ]
    return given(
        registered("a", cpus_milli=64_000),
        registered("b", cpus_milli=64_000),
        jobs,
        queues,
        waiting("big", gpus=4, priority=90, queue="one"),
        history,
    )


def test_a_job_for_which_no_room_can_be_made_keeps_it_from_its_own_queue_only() -> None:
    """The other queue's goes where more is lost: it keeps off what the first one is promised."""
    own, other = (waiting("small", gpus=2, priority=80, queue=queue) for queue in ("one", "two"))
    assert decisions(two_queues(*own)) == []
    assert [fact.job_id for fact in decisions(two_queues(*other))] == ["small", "low-a"]


def test_no_room_is_made_behind_the_first_job_of_a_queue_without_backfill() -> None:
    assert (
        decisions(two_queues(*waiting("small", gpus=2, priority=80, queue="two"), backfill=False))
        == []
    )


def test_the_room_that_is_made_leaves_the_first_ones_tenant_what_it_may_hold() -> None:
    small = waiting("small", gpus=2, priority=80, queue="two")
    for gpus, ending in ((12, []), (13, ["small", "low-a"])):
        assert [
            fact.job_id for fact in decisions(two_queues(limited("default", gpus), *small))
        ] == ending


COURSE = f.ReservationSet(
    reservation="course",
    nodes=(NodeId("c"),),
    start_ns=0,
    end_ns=10_000 * SECOND_NS,
    tenants=(TenantId("t"), TenantId("u")),
)


def busy(job: str, node: str, *gpus: int) -> list[AnyFact]:
    return [*waiting(job, gpus=len(gpus)), placed(job, member(node, *gpus))]


def many_kinds(number: int = 2 * SCAN_MAX) -> list[AnyFact]:
    """Jobs of another kind each, of one tenant in the queue `one`; there is no room for any."""
    return [
        fact
        for index in range(1, number + 1)
        for fact in waiting(
            f"j{index}", tenant="a", gpus=4, priority=80, cpus_milli=index, queue="one"
        )
    ]


def test_many_kinds_of_jobs_in_one_queue_do_not_keep_others_from_preemption() -> None:
    small = waiting("small", gpus=2, priority=80, queue="two")
    assert [fact.job_id for fact in decisions(two_queues(*many_kinds(), *small))] == [
        "small",
        "low-a",
    ]


@pytest.mark.parametrize("queue", ["one", "two"])
def test_many_kinds_of_jobs_do_not_keep_a_reservation_from_preemption(queue: str) -> None:
    node = [registered("c"), *running("low-c", 0, 1, 2, 3, node="c")]
    own = waiting("own", tenant="t", reservation="course", gpus=4, priority=70, queue=queue)
    state = two_queues(*node, COURSE, *many_kinds(), *own)
    assert [fact.job_id for fact in decisions(state)] == ["own", "low-c"]


def test_no_room_is_made_behind_the_first_job_of_a_reservation() -> None:
    node = [registered("c"), *busy("held", "c", 0, 1), *running("low-c", 2, 3, node="c")]
    first = waiting("first", tenant="t", reservation="course", gpus=4, priority=70)
    second = waiting("second", tenant="u", reservation="course", gpus=2, priority=60)
    assert decisions(given(*node, COURSE, first, second)) == []
    assert [fact.job_id for fact in decisions(given(*node, COURSE, second))] == ["second", "low-c"]


def test_preemption_scans_a_bounded_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    small = waiting("small", gpus=2, priority=80, queue="two")
    assert decisions(two_queues(*small))
    monkeypatch.setattr("services.scheduler.decide.placing.SCAN_MAX", 1)
    assert decisions(two_queues(*small)) == []
