"""The scheduler's rules about waiting jobs: each acts, refuses and does nothing."""

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from services.scheduler.decide.decide import decide
from tests.given import (
    given,
    member,
    placed,
    registered,
    waiting,
)
from tests.unit.scheduler_decisions import decisions


def test_an_admitted_job_is_queued_and_placed_at_once() -> None:
    state = given(registered("a"), waiting("j", gpus=2)[:2])
    assert decisions(state) == [f.JobQueued(job_id=JobId("j")), placed("j", member("a", 0, 1))]


def test_a_job_that_is_not_admitted_is_not_queued() -> None:
    assert decisions(given(registered("a"), waiting("j")[:1])) == []


def test_a_scheduler_decides_nothing_outside_its_own_term() -> None:
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


def test_the_node_with_the_tightest_fit_is_chosen() -> None:
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


def test_no_job_passes_a_first_job_that_does_not_fit_now() -> None:
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


def test_an_impossible_job_is_rejected_if_it_requests_that() -> None:
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


def test_a_tenant_with_an_exhausted_month_continues_in_the_next_month() -> None:
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


def test_tenants_share_a_device_if_both_allow_it() -> None:
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


def test_a_permission_to_share_applies_to_jobs_that_already_wait() -> None:
    words = [f.TenantSet(tenant=TenantId(name), shares_devices=True) for name in ("t", "u")]
    busy = [
        *waiting("i", tenant="t", gpu_share=30),
        placed("i", member("a", 0, share=30)),
        *waiting("j", tenant="u", gpu_share=30),
    ]
    state = given(registered("a", gpus=1), words[:1], busy)
    assert decide(state, 0) == ()
    commit = f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer="facts.gateway.a",
        number=1,
        epoch=0,
        at_ns=0,
        seen=0,
        facts=(words[1],),
    )
    state.apply_entry(state.seq + 1, "facts.gateway.a", commit)
    assert [type(fact) for fact in decide(state, 0)] == [f.JobPlaced]


def test_clusters_on_one_machine_start_with_different_ports() -> None:
    ports = []
    for name in ("east", "west"):
        (fact,) = decisions(
            given(f.ClusterConfigured(cluster_id=name), registered("a"), waiting("j"))
        )
        assert isinstance(fact, f.JobPlaced)
        ports.append(fact.port)
    assert ports[0] != ports[1] and all(29_500 <= port < 32_768 for port in ports)
