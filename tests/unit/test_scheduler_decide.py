"""The scheduler's rules: each acts, refuses, and stays quiet."""

from collections.abc import Sequence

import msgspec

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, Member, NodeId, TenantId
from services.scheduler.decide.decide import Observations, decide
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
    started,
    tell,
    waiting,
)


def decisions(
    state: State, now_s: float = 1, silent: Sequence[tuple[NodeId, int]] = ()
) -> list[AnyFact]:
    """All that the rules say, each decision folded before the next is asked."""
    said: list[AnyFact] = []
    for _ in range(100):
        facts = decide(state, int(now_s * SECOND_NS), Observations(tuple(silent)))
        if not facts:
            return said
        said.extend(facts)
        state.apply_own(facts, int(now_s * SECOND_NS))
    raise AssertionError(f"it never ends: {said[-3:]}")


def test_an_admitted_job_is_queued_and_placed_at_once() -> None:
    state = given(registered("a"), waiting("j", gpus=2)[:2])
    assert decisions(state) == [f.JobQueued(job_id=JobId("j")), placed("j", member("a", 0, 1))]


def test_a_job_that_was_not_admitted_is_left_alone() -> None:
    assert decisions(given(registered("a"), waiting("j")[:1])) == []


def test_nothing_is_decided_outside_of_the_own_term() -> None:
    state = given(registered("a"), waiting("j"))
    state.epoch = 7
    assert decisions(state) == []
    state.epoch = 0
    assert decisions(state) == []


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    both = given(registered("a"), registered("b"), waiting("j", nodes=2, gpus=3))
    assert decisions(both) == [placed("j", member("a", 0, 1, 2), member("b", 0, 1, 2, rank=1))]
    one = given(
        registered("a"),
        registered("b"),
        waiting("i", gpus=2),
        placed("i", member("b", 0, 1)),
        waiting("j", nodes=2, gpus=3),
    )
    assert decisions(one) == []


def test_the_tightest_node_is_taken() -> None:
    state = given(
        registered("a"),
        registered("b"),
        waiting("i", gpus=3),
        placed("i", member("b", 0, 1, 2)),
        waiting("j"),
    )
    assert decisions(state) == [placed("j", member("b", 3), port=29_501)]


def test_shares_of_a_device_are_filled_before_a_whole_one_is_opened() -> None:
    state = given(
        registered("a"),
        waiting("i", gpu_share=50),
        placed("i", member("a", 2, share=50)),
        waiting("j", gpu_share=50),
    )
    assert decisions(state) == [placed("j", member("a", 2, share=50), port=29_501)]


def test_a_share_that_does_not_fit_opens_a_whole_device() -> None:
    state = given(
        registered("a"),
        waiting("i", gpu_share=60),
        placed("i", member("a", 0, share=60)),
        waiting("j", gpu_share=50),
    )
    assert decisions(state) == [placed("j", member("a", 1, share=50), port=29_501)]


def test_the_higher_priority_goes_first_then_the_first_submitted() -> None:
    jobs = [*waiting("low", gpus=4, priority=10), *waiting("high", gpus=4, priority=90)]
    assert decisions(given(registered("a"), jobs)) == [placed("high", member("a", 0, 1, 2, 3))]


def test_a_head_that_does_not_fit_now_is_not_passed_by_others() -> None:
    state = given(
        registered("a"),
        waiting("i", gpus=2),
        placed("i", member("a", 0, 1)),
        waiting("big", gpus=4),
        waiting("small"),
    )
    assert decisions(state) == []


def test_a_job_that_can_never_fit_lets_others_pass() -> None:
    state = given(registered("a"), waiting("huge", gpus=9), waiting("small"))
    assert decisions(state) == [placed("small", member("a", 0))]


def test_an_impossible_job_is_rejected_if_it_asked_for_that() -> None:
    state = given(registered("a"), waiting("huge", gpus=9, reject_if_impossible=True)[:2])
    queued, closed = decisions(state)
    assert queued == f.JobQueued(job_id=JobId("huge"))
    assert (
        isinstance(closed, f.JobClosed)
        and closed.outcome == "rejected"
        and "9 GPUs" in closed.reason
    )


def test_a_tenant_at_its_limit_lets_others_pass() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=100)
    running = [*waiting("i", tenant="t"), placed("i", member("a", 0))]
    state = given(registered("a"), limit, running, waiting("j", tenant="t"), waiting("k"))
    assert decisions(state) == [placed("k", member("a", 1), port=29_501)]


def test_a_tenant_whose_budget_is_used_up_lets_others_pass_until_it_is_raised() -> None:
    spent = [
        f.TenantSet(tenant=TenantId("t"), gpu_hours=3),
        f.BudgetExhausted(tenant=TenantId("t"), gpu_hours=3, used_share_ms=1),
    ]
    waits = [*waiting("j", tenant="t"), *waiting("k")]
    assert decisions(given(registered("a"), spent, waits)) == [placed("k", member("a", 0))]
    raised = f.TenantSet(tenant=TenantId("t"), gpu_hours=4)
    assert decisions(given(registered("a"), spent, waits, raised))[0] == placed("j", member("a", 0))


def test_a_tenant_whose_month_s_budget_is_used_up_goes_on_in_the_next() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), gpu_hours=3, gpu_hours_per="month")
    spent = [
        f.BudgetRenewed(tenant=limit.tenant, month=202_611),
        f.BudgetExhausted(limit.tenant, 3, 1, 202_611),
    ]
    waits = [*waiting("j", tenant="t"), *waiting("k")]
    assert decisions(given(registered("a"), limit, spent, waits)) == [placed("k", member("a", 0))]
    december = f.BudgetRenewed(tenant=limit.tenant, month=202_612)
    assert decisions(given(registered("a"), limit, spent, waits, december))[0] == placed(
        "j", member("a", 0)
    )


def test_parts_of_one_device_go_to_one_tenant_at_a_time() -> None:
    busy = [*waiting("i", tenant="t", gpu_share=30), placed("i", member("a", 0, share=30))]
    theirs = given(registered("a", gpus=1), busy, waiting("j", tenant="u", gpu_share=30))
    assert decisions(theirs) == []
    own = given(registered("a", gpus=1), busy, waiting("j", tenant="t", gpu_share=30))
    assert decisions(own) == [placed("j", member("a", 0, share=30), port=29_501)]


def test_tenants_share_a_device_when_both_may() -> None:
    words = [f.TenantSet(tenant=TenantId(name), shares_devices=True) for name in ("t", "u")]
    busy = [
        *waiting("i", tenant="t", gpu_share=30),
        placed("i", member("a", 0, share=30)),
        *waiting("j", tenant="u", gpu_share=30),
    ]
    assert decisions(given(registered("a", gpus=1), words[:1], busy)) == []
    assert decisions(given(registered("a", gpus=1), words, busy)) == [
        placed("j", member("a", 0, share=30), port=29_501)
    ]


def test_a_word_that_comes_while_a_job_waits_opens_the_device_to_it() -> None:
    words = [f.TenantSet(tenant=TenantId(name), shares_devices=True) for name in ("t", "u")]
    busy = [
        *waiting("i", tenant="t", gpu_share=30),
        placed("i", member("a", 0, share=30)),
        *waiting("j", tenant="u", gpu_share=30),
    ]
    state = given(registered("a", gpus=1), words[:1], busy)
    assert decide(state, 0) == ()
    commit = f.Commit(f.VERSION, f.VERSION, "facts.gateway.a", 1, 0, 0, 0, (words[1],))
    state.apply_entry(state.seq + 1, "facts.gateway.a", commit)
    assert [type(fact) for fact in decide(state, 0)] == [f.JobPlaced]


def test_a_job_whose_members_all_exited_with_0_is_completed() -> None:
    state = given(registered("a"), waiting("j"), placed("j", member("a", 0)), ended("j", "a"))
    assert decisions(state) == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="completed", exit_code=0)
    ]


def test_a_job_is_not_over_until_its_devices_are_released() -> None:
    state = given(
        registered("a"),
        waiting("j"),
        placed("j", member("a", 0)),
        started("j", "a"),
        finished("j", "a"),
    )
    assert decisions(state) == []


def test_a_failed_attempt_uses_up_a_retry_and_then_the_job_fails() -> None:
    first = [*waiting("j", retries=1), placed("j", member("a", 0)), *ended("j", "a", 3)]
    again = f.JobRequeued(job_id=JobId("j"), attempt=1, reason="failed", counted=True)
    state = given(registered("a"), first)
    assert decisions(state) == [again, placed("j", member("a", 0), attempt=2, port=29_501)]
    second = given(
        registered("a"),
        first,
        again,
        placed("j", member("a", 0), attempt=2),
        ended("j", "a", 3, attempt=2),
    )
    assert decisions(second) == [
        f.JobClosed(job_id=JobId("j"), attempt=2, outcome="failed", reason="failed", exit_code=3)
    ]


def test_an_attempt_lost_with_its_node_is_placed_again_without_using_a_retry() -> None:
    history = [*waiting("j"), placed("j", member("a", 0)), started("j", "a")]
    state = given(registered("a"), registered("b"), history)
    assert decisions(state, silent=[(NodeId("a"), 1)]) == [
        f.NodeLost(node_id=NodeId("a"), incarnation=1),
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False),
        placed("j", member("b", 0), attempt=2, port=29_501),
    ]


def test_a_job_that_must_not_run_again_fails_with_its_node() -> None:
    history = [*waiting("j", requeue=False), placed("j", member("a", 0)), started("j", "a")]
    state = given(registered("a"), registered("b"), history)
    assert decisions(state, silent=[(NodeId("a"), 1)])[1:] == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="failed", reason="node_lost")
    ]


def test_a_gang_waits_for_every_node_of_its_attempt_before_it_goes_elsewhere() -> None:
    gang = [
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "a"),
        started("j", "b"),
    ]
    state = given(registered("a"), registered("b"), registered("c"), gang)
    said = decisions(state, silent=[(NodeId("a"), 1)])
    assert [type(fact) for fact in said] == [f.NodeLost, f.JobStopOrdered, f.DevicesReserved]
    assert said[1] == f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="gang_hurt", signal=15, grace_ms=10_000
    )


def test_a_silent_node_of_an_older_incarnation_is_not_lost() -> None:
    assert decisions(given(registered("a", incarnation=2)), silent=[(NodeId("a"), 1)]) == []


def test_a_lost_node_returns_when_it_registered_again_and_accounts_for_nothing() -> None:
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1)
    state = given(registered("a"), lost, registered("a", incarnation=2))
    assert decisions(state) == [f.NodeReturned(node_id=NodeId("a"), incarnation=2)]
    assert decisions(given(registered("a"), lost)) == []


def test_a_node_that_was_replaced_is_given_nothing_until_the_incarnation_before_it_is_lost() -> (
    None
):
    began = [
        registered("a", directory="one"),
        *waiting("j", nodes=1),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    history = [*began, registered("a", incarnation=2, directory="other"), *waiting("next")]
    assert decisions(given(history)) == []
    assert decisions(given(history), silent=[(NodeId("a"), 2)]) == []
    assert decisions(given(history), silent=[(NodeId("a"), 1)])[:3] == [
        f.NodeLost(node_id=NodeId("a"), incarnation=1, reason="replaced"),
        f.JobRequeued(job_id=JobId("j"), attempt=1, reason="node_lost", counted=False),
        f.NodeReturned(node_id=NodeId("a"), incarnation=2),
    ]


def test_a_lost_node_that_still_accounts_for_an_attempt_does_not_return_yet() -> None:
    history = [registered("a"), *waiting("j"), placed("j", member("a", 0)), started("j", "a")]
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1)
    ref = given(history).cluster.jobs[JobId("j")].ref
    state = given(history, lost, registered("a", incarnation=2, attempts=(ref,)))
    assert not any(isinstance(fact, f.NodeReturned) for fact in decisions(state))
    back = given(history, lost, registered("a", incarnation=2, attempts=(ref,)), released("j", "a"))
    assert f.NodeReturned(node_id=NodeId("a"), incarnation=2) in decisions(back)


def test_a_cancelled_job_that_waits_ends_at_once() -> None:
    state = given(waiting("j"), f.CancelRequested(job_id=JobId("j")))
    assert decisions(state) == [
        f.JobClosed(job_id=JobId("j"), attempt=1, outcome="cancelled", reason="cancelled")
    ]


def test_a_cancelled_job_that_runs_is_ordered_to_stop_once_and_sooner_when_asked_again() -> None:
    running = [registered("a"), *waiting("j"), placed("j", member("a", 0)), started("j", "a")]
    order = f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="cancelled", signal=2, grace_ms=5_000
    )
    assert decisions(given(running, f.CancelRequested(job_id=JobId("j"), signal=2, grace_s=5))) == [
        order
    ]
    killed = given(
        running,
        f.CancelRequested(job_id=JobId("j"), signal=2, grace_s=5),
        order,
        f.CancelRequested(job_id=JobId("j"), grace_s=0),
    )
    assert decisions(killed) == [
        f.JobStopOrdered(job_id=JobId("j"), attempt=1, reason="cancelled", signal=15, grace_ms=0)
    ]


def test_a_job_that_its_node_ended_at_its_time_limit_has_failed_and_is_not_tried_again() -> None:
    running = [
        registered("a"),
        *waiting("j", time_limit_s=60, retries=3),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    over = given(
        running, finished("j", "a", None, signal=15, reason="time_limit"), released("j", "a")
    )
    assert decisions(over) == [
        f.JobClosed(
            job_id=JobId("j"), attempt=1, outcome="failed", reason="time_limit", exit_code=143
        )
    ]


def test_a_gang_of_which_one_member_is_at_its_time_limit_has_failed_for_that() -> None:
    gang = [
        *waiting("j", nodes=2, time_limit_s=60),
        placed("j", member("a", 0), member("b", 0, rank=1)),
    ]
    running = [registered("a"), registered("b"), *gang, started("j", "a"), started("j", "b")]
    order = f.JobStopOrdered(
        job_id=JobId("j"), attempt=1, reason="gang_hurt", signal=15, grace_ms=10_000
    )
    limited = [finished("j", "a", None, signal=15, reason="time_limit"), released("j", "a")]
    assert decisions(given(running, limited)) == [order]
    over = given(
        running,
        limited,
        order,
        finished("j", "b", None, signal=15, reason="stopped"),
        released("j", "b"),
    )
    assert decisions(over) == [
        f.JobClosed(
            job_id=JobId("j"), attempt=1, outcome="failed", reason="time_limit", exit_code=143
        )
    ]


def test_the_scheduler_ends_no_job_by_its_own_clock() -> None:
    running = [
        registered("a"),
        *waiting("j", time_limit_s=60),
        placed("j", member("a", 0)),
        started("j", "a"),
    ]
    assert decisions(given(running), now_s=1_000_000) == []


def test_a_new_term_counts_the_start_limit_from_its_own_beginning() -> None:
    state = given(registered("a"), waiting("j", start_s=30), placed("j", member("a", 0)))
    state.start_limits.limits.clear()
    state.begin(state.epoch, 1_000 * SECOND_NS)
    assert decisions(state, now_s=1_029) == []
    assert [getattr(fact, "reason", "") for fact in decisions(state, now_s=1_030)] == [
        "start_timeout"
    ]


def test_an_attempt_that_does_not_start_in_time_is_stopped() -> None:
    state = given(registered("a"), waiting("j", start_s=30), placed("j", member("a", 0)))
    assert decisions(state, now_s=29) == []
    assert [getattr(fact, "reason", "") for fact in decisions(state, now_s=30)] == ["start_timeout"]


def test_a_refusal_of_one_member_stops_the_gang_and_requeues_it() -> None:
    gang = [
        *waiting("j", nodes=2),
        placed("j", member("a", 0), member("b", 0, rank=1)),
        started("j", "a"),
    ]
    refused = f.JobRefused(job_id=JobId("j"), attempt=1, node_id=NodeId("b"), reason="no lease")
    state = given(registered("a"), registered("b"), gang, refused)
    assert [getattr(fact, "reason", "") for fact in decisions(state)] == ["gang_hurt"]
    over = [finished("j", "a", None, signal=15, reason="stopped"), released("j", "a")]
    for fact in over:
        tell(state.cluster, fact)
    again = State(state.cluster)
    again.epoch = state.epoch
    (requeued,) = decisions(again)
    assert isinstance(requeued, f.JobRequeued) and (requeued.reason, requeued.counted) == (
        "refused",
        False,
    )


def test_a_device_that_another_node_reports_now_is_free_there_when_its_hold_is_given_back() -> None:
    """The member is released by the node on which it ran; what it held stands at the other."""
    state = given(registered("a", gpus=1), waiting("j"), placed("j", member("a", 0)), waiting("k"))
    moved = msgspec.structs.replace(registered("a", gpus=1), node_id=NodeId("b"))
    without = msgspec.structs.replace(
        registered("a", gpus=0, incarnation=2), attempts=(AttemptRef(JobId("j"), 1),)
    )
    for fact in (without, moved, *ended("j", "a")):
        state.refresh(tell(state.cluster, fact))
    assert decisions(state)[-1] == placed(
        "k", Member(NodeId("b"), 1, 0, (GpuHold(GpuId("a-gpu0")),)), port=29_501
    )


def test_clusters_on_one_machine_begin_with_different_ports() -> None:
    ports = []
    for name in ("east", "west"):
        (fact,) = decisions(
            given(f.ClusterConfigured(cluster_id=name), registered("a"), waiting("j"))
        )
        assert isinstance(fact, f.JobPlaced)
        ports.append(fact.port)
    assert ports[0] != ports[1] and all(29_500 <= port < 32_768 for port in ports)
