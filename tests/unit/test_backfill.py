"""Backfill past the first job that does not fit.

A job may pass if it ends in time or avoids the reserved nodes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import Allocation, JobId, NodeId, Serve, TenantId
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.placement.forecast import NEVER, UNKNOWN
from services.scheduler.queueing.backfill import reservation_for
from services.scheduler.state.outlook import KEPT_MAX
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given, member, placed, registered, tell, waiting

# An attempt with a limit of 80 s has ended 100 s after its placement, and not later.
LASTS_100: dict[str, Any] = {"time_limit_s": 80, "start_s": 10, "grace_s": 10}
BIG = waiting("big", gpus=4)


def lasting(seconds: int) -> dict[str, Any]:
    return LASTS_100 | {"time_limit_s": seconds - 20}


def begin(state: State, now_s: float = 1) -> list[tuple[str, str]]:
    """The jobs that are placed now, and where their first members are."""
    found = []
    while facts := decide(state, int(now_s * SECOND_NS)):
        state.apply_own(facts, int(now_s * SECOND_NS))
        found += [
            (str(fact.job_id), str(fact.members[0].node_id))
            for fact in facts
            if isinstance(fact, f.JobPlaced)
        ]
    return found


def comes_back(state: State, facts: Sequence[AnyFact], at_s: int) -> None:
    """The log took at that time what was decided before."""
    commit = f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subjects.SCHEDULER,
        number=1,
        epoch=state.epoch,
        at_ns=at_s * SECOND_NS,
        seen=state.seq,
        facts=tuple(facts),
    )
    state.skip_own(state.seq + 1, subjects.SCHEDULER, commit)


def running(job: str, node: str, *gpus: int, **fields: Any) -> list[AnyFact]:
    return [*waiting(job, gpus=len(gpus), **fields), placed(job, member(node, *gpus))]


def when_and_where(state: State, job: str) -> tuple[float, list[str]]:
    state.pass_time(state.wall_ns)
    reservation = reservation_for(state, state.cluster.jobs[JobId(job)])
    nodes = [
        node_id
        for index, node_id in enumerate(state.capacity.nodes)
        if reservation.nodes >> index & 1
    ]
    return (reservation.when_ns / SECOND_NS if reservation.when_ns < UNKNOWN else UNKNOWN), nodes


@pytest.mark.parametrize(("seconds", "passes"), [(99, [("j", "a")]), (100, [])])
def test_a_job_that_ends_before_the_head_reservation_is_backfilled(
    seconds: int, passes: list[tuple[str, str]]
) -> None:
    state = given(
        registered("a"), running("i", "a", 0, 1, **LASTS_100), BIG, waiting("j", **lasting(seconds))
    )
    assert begin(state, now_s=1) == passes


def test_a_limit_changed_during_the_run_moves_the_head_reservation() -> None:
    state = given(registered("a"), running("i", "a", 0, 1, **LASTS_100), BIG)
    name = "big"
    before, _ = when_and_where(state, name)
    state.refresh(tell(state.cluster, f.JobUpdated(job_id=JobId("i"), time_limit_s=1_000)))
    after, nodes = when_and_where(state, name)
    assert after > before + 500 and (after, nodes) == when_and_where(State(state.cluster), name)


def test_an_allocation_that_is_extended_moves_what_is_promised() -> None:
    """Its estimate is its first time, whatever was said since; and it is expected to end then, not
    sooner.
    """
    held = waiting("i", gpus=2, allocation=Allocation(100), estimate_s=100)
    began = placed("i", member("a", 0, 1))
    state = given(registered("a"), held, replace(began, expires_ns=100 * SECOND_NS), BIG)
    assert when_and_where(state, "big") == (100, ["a"])
    longer = f.AllocationExtended(job_id=JobId("i"), attempt=1, expires_ns=900 * SECOND_NS)
    state.refresh(tell(state.cluster, longer))
    assert (
        when_and_where(state, "big") == when_and_where(State(state.cluster), "big") == (900, ["a"])
    )
    state.pass_time(100 * SECOND_NS)
    assert when_and_where(state, "big") == (900, ["a"])
    state.pass_time(900 * SECOND_NS)
    assert when_and_where(state, "big")[0] >= UNKNOWN


def test_an_allocation_that_would_end_in_time_avoids_the_reserved_nodes() -> None:
    """The user of an allocation may extend it, so its end is not certain."""
    busy = running("i", "a", 0, 1, **LASTS_100)
    held = waiting("j", allocation=Allocation(10), estimate_s=10, **lasting(50))
    assert begin(given(registered("a"), busy, BIG, held)) == []


def test_a_job_without_a_limit_avoids_the_reserved_nodes() -> None:
    busy = running("i", "a", 0, 1, **LASTS_100)
    assert begin(given(registered("a"), busy, BIG, waiting("j"), waiting("k", estimate_s=1))) == []
    beside = given(registered("a"), registered("b", 2), busy, BIG, waiting("j"), waiting("k"))
    assert begin(beside) == [("j", "b"), ("k", "b")]


def test_behind_a_long_job_of_the_same_shape_a_short_one_still_passes() -> None:
    state = given(
        registered("a"),
        running("i", "a", 0, 1, **LASTS_100),
        BIG,
        waiting("j", **lasting(9_000)),
        waiting("k", **lasting(50)),
    )
    assert begin(state) == [("k", "a")]


def test_a_limit_that_is_lowered_lets_a_waiting_job_pass() -> None:
    state = given(
        registered("a"), running("i", "a", 0, 1, **LASTS_100), BIG, waiting("j", **lasting(9_000))
    )
    assert begin(state) == []
    state.refresh(tell(state.cluster, f.JobUpdated(job_id=JobId("j"), time_limit_s=5)))
    assert begin(state) == [("j", "a")]


def test_the_first_job_reserves_the_nodes_where_it_fits_first() -> None:
    busy = [
        *running("i", "a", 0, **lasting(300)),
        *running("k", "b", 0, 1, **lasting(200)),
        *running("l", "b", 2, **lasting(100)),
    ]
    state = given(
        registered("a"),
        registered("b"),
        busy,
        BIG,
        waiting("two", gpus=2),
        waiting("gang", gpus=4, nodes=2),
    )
    assert when_and_where(state, "big") == (200, ["b"])
    assert when_and_where(state, "two") == (0, ["a"])
    assert when_and_where(state, "gang") == (300, ["a", "b"])


def test_an_estimate_says_when_a_running_job_ends_until_it_has_passed() -> None:
    state = given(
        registered("a"),
        registered("b"),
        running("i", "a", 0, estimate_s=50),
        running("k", "b", 0, **lasting(200)),
        BIG,
    )
    assert when_and_where(state, "big") == (50, ["a"])
    state.pass_time(50 * SECOND_NS)
    assert when_and_where(state, "big") == (200, ["b"])


@pytest.mark.parametrize(
    "fields", [{"estimate_s": 50}, LASTS_100 | {"time_limit_s": 30}], ids=["estimate", "limit"]
)
def test_a_job_that_the_log_took_late_ends_as_much_later(fields: dict[str, Any]) -> None:
    state = given(
        registered("a"),
        registered("b"),
        waiting("i", gpus=4, **fields),
        running("k", "b", 0, **lasting(200)),
    )
    first = decide(state, SECOND_NS)
    state.apply_own(first, SECOND_NS)
    state.refresh(tell(state.cluster, BIG[0]))
    assert when_and_where(state, "big") == (51, ["a"])
    comes_back(state, first, 9)
    assert when_and_where(state, "big") == (59, ["a"])
    state.pass_time(55 * SECOND_NS)
    assert (
        when_and_where(state, "big") == when_and_where(State(state.cluster), "big") == (59, ["a"])
    )


def test_late_fact_of_an_ended_attempt_changes_no_later_attempt() -> None:
    state = given(registered("a"), waiting("i", gpus=4, estimate_s=50, retries=1))
    lost, first = Observations(silent=((NodeId("a"), 1),)), decide(state, SECOND_NS)
    state.apply_own(first, SECOND_NS)
    while facts := decide(state, 2 * SECOND_NS, lost):
        state.apply_own(facts, 2 * SECOND_NS)
    before = msgspec.to_builtins(state.cluster.jobs)
    comes_back(state, first, 9)
    assert (
        msgspec.to_builtins(state.cluster.jobs) == before
        and state.cluster.jobs[JobId("i")].attempt == 2
    )


def test_an_estimate_that_passes_on_a_lost_node_changes_nothing() -> None:
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1)
    state = given(
        registered("a"),
        running("i", "a", 0, estimate_s=50, on_control_loss="continue"),
        lost,
        waiting("j"),
    )
    state.pass_time(50 * SECOND_NS)
    assert when_and_where(state, "j") == (UNKNOWN, [])


def test_without_a_known_end_the_nodes_with_the_fewest_jobs_in_the_way_are_reserved() -> None:
    busy = [
        *running("i", "a", 0),
        *running("k", "a", 1),
        *running("l", "b", 0),
        *running("m", "b", 1, **lasting(100)),
    ]
    state = given(
        registered("a"),
        registered("b"),
        busy,
        BIG,
        waiting("short", **lasting(50)),
        waiting("long"),
    )
    assert when_and_where(state, "big") == (UNKNOWN, ["b"])
    assert begin(state) == [("short", "a"), ("long", "a")]


def test_a_replica_is_not_waited_for_where_a_job_may_end() -> None:
    replica = running("r", "a", 0, serve=Serve("m", 1))
    state = given(
        registered("a"), registered("b"), replica, running("i", "b", 0), running("k", "b", 1), BIG
    )
    assert when_and_where(state, "big") == (UNKNOWN, ["b"])
    alone = given(registered("a"), replica, BIG)
    assert when_and_where(alone, "big") == (UNKNOWN, ["a"])
    assert reservation_for(alone, alone.cluster.jobs[JobId("big")]).when_ns == NEVER


def test_a_gang_reserves_nodes_that_may_be_together() -> None:
    racks = [registered("a", rack="r"), registered("b", rack="s"), registered("c", rack="s")]
    busy = [*running("i", "b", 0, **lasting(100)), *running("k", "c", 0, **lasting(300))]
    state = given(
        *racks,
        busy,
        waiting("gang", gpus=4, nodes=2, rack="required"),
        waiting("loose", gpus=4, nodes=2),
    )
    assert when_and_where(state, "gang") == (300, ["b", "c"])
    assert when_and_where(state, "loose") == (100, ["a", "b"])


def test_jobs_of_anti_affinity_delay_the_head_reservation() -> None:
    state = given(
        registered("a"),
        running("i", "a", 0, **(LASTS_100 | {"labels": {"app": "x"}})),
        waiting("j", anti_affinity={"app": "x"}),
    )
    assert when_and_where(state, "j") == (100, ["a"])


def test_a_job_that_no_node_can_serve_gets_no_head_reservation() -> None:
    assert when_and_where(given(registered("a"), waiting("huge", gpus=9)), "huge") == (UNKNOWN, [])


def test_a_backfilled_job_leaves_the_tenant_limit_of_the_first_job() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=500)
    busy = running("i", "a", 0, 1, **LASTS_100)
    history = [
        registered("a"),
        registered("b"),
        *running("l", "b", 0),
        limit,
        *busy,
        *waiting("big", gpus=4, tenant="t"),
    ]
    assert begin(given(history, waiting("j", gpus=2, tenant="t"), waiting("k", tenant="t"))) == [
        ("k", "b")
    ]
    assert begin(given(history, waiting("j", gpus=2, tenant="u"))) == [("j", "b")]


@pytest.mark.parametrize(
    ("policy", "backfill", "passes"),
    [("fifo", None, False), ("fifo", True, True), ("las", None, True), ("las", False, False)],
)
def test_a_queue_says_whether_its_first_job_may_be_passed(
    policy: str, backfill: bool | None, passes: bool
) -> None:
    queue = f.QueueSet(queue="default", policy=policy, backfill=backfill)
    state = given(
        registered("a"),
        queue,
        running("i", "a", 0, 1, **LASTS_100),
        BIG,
        waiting("j", **lasting(50)),
    )
    assert begin(state) == ([("j", "a")] if passes else [])


def test_another_job_that_may_not_be_passed_ends_the_search() -> None:
    night = f.QueueSet(queue="night", policy="fifo")
    busy = [*running("i", "a", 0, 1, **LASTS_100), *running("k", "b", 0, 1, 2, queue="night")]
    history = [registered("a"), registered("b"), night, *busy, *BIG]
    assert (
        begin(given(history, waiting("n", queue="night", gpus=2), waiting("o", queue="night")))
        == []
    )
    assert begin(given(history, waiting("n", queue="night"), waiting("o", queue="night"))) == [
        ("n", "b")
    ]


def test_a_head_reservation_is_used_when_its_time_comes() -> None:
    state = given(
        registered("a"), running("i", "a", 0, 1, **LASTS_100), BIG, waiting("j", **lasting(60))
    )
    assert begin(state) == [("j", "a")]
    for job in ("i", "j"):
        for fact in (f.JobStarted, f.JobReleased):
            ended = fact(job_id=JobId(job), attempt=1, node_id=state.capacity.nodes[0])
            if fact is f.JobReleased:
                state.refresh(
                    tell(
                        state.cluster,
                        f.JobFinished(
                            job_id=JobId(job), attempt=1, node_id=ended.node_id, exit_code=0
                        ),
                    )
                )
            state.refresh(tell(state.cluster, ended))
    assert ("big", "a") in begin(state, now_s=100)


def test_unused_forecasts_are_dropped() -> None:
    state = given(registered("a", 64), waiting("j"))
    for gpus in range(1, KEPT_MAX + 5):
        when_and_where(given_more(state, gpus), f"j{gpus}")
    assert len(state.outlook.forecasts) == KEPT_MAX


def given_more(state: State, gpus: int) -> State:
    for fact in waiting(f"j{gpus}", gpus=gpus):
        state.refresh(tell(state.cluster, fact))
    return state


def test_backfill_scans_a_bounded_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of another shape, none of which fits; the last one would."""
    busy = running("i", "a", 0, 1, **LASTS_100)
    behind = [fact for gpus in (3, 4) for fact in waiting(f"big-{gpus}", gpus=gpus)]
    history = (registered("a"), registered("b", 2), busy, behind, waiting("small"))
    assert begin(given(*history)) == [("small", "b")]
    monkeypatch.setattr("services.scheduler.decide.placing.SCAN_MAX", 2)
    monkeypatch.setattr("services.scheduler.decide.placing.PART_LEAST", 1)
    assert begin(given(*history)) == []
