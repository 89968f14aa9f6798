"""`why`: the answer names what is in the way, and nothing else."""

import pytest

from libs.common import facts as f
from libs.common.model import GpuId, JobId, NodeId, TenantId
from services.scheduler.explain import explain
from tests.given import given, member, placed, registered, started, waiting

J = JobId("j")


def test_an_unknown_job_is_said_to_be_unknown() -> None:
    assert explain(given(), J)["state"] == "unknown"


def test_a_job_that_ended_or_runs_says_so() -> None:
    running = given(registered("a"), waiting("j"), placed("j", member("a", 0)), started("j", "a"))
    assert explain(running, J)["answer"] == "it is running and waits for its processes to end on a"
    ended = given(waiting("j"), f.JobClosed(job_id=J, attempt=1, outcome="cancelled", reason="cancelled"))
    assert explain(ended, J)["answer"] == "it has ended: cancelled"
    assert explain(given(waiting("j")[:1]), J)["answer"] == "it is pending and waits for quota to admit or reject it"


@pytest.mark.parametrize(
    ("wish", "remedy"),
    [
        ({"gpus": 5}, "ask for at most 4 GPUs a node, or add 1 node with at least 5 GPUs"),
        ({"nodes": 4, "gpus": 2}, "add 2 nodes with at least 2 GPUs, or ask for 2 nodes"),
    ],
)
def test_an_impossible_job_is_told_the_cheapest_change(wish: dict[str, int], remedy: str) -> None:
    answer = explain(given(registered("a"), registered("b"), waiting("j", **wish)), J)
    assert answer["answer"].startswith("this cluster could never hold it")
    assert answer["remedy"] == remedy


def test_blockers_are_counted_by_what_rules_each_node_out() -> None:
    faults = [f.GpuFaulted(node_id=NodeId("c"), uuid=GpuId(f"c-gpu{i}"), health="offline", reason="xid") for i in range(4)]
    history = [registered("a"), registered("b", gpus=1), registered("c"), registered("d"), faults]
    busy = [*waiting("i", gpus=4), placed("i", member("a", 0, 1, 2, 3)), f.NodeLost(node_id=NodeId("d"), incarnation=1)]
    answer = explain(given(*history, busy, waiting("j", gpus=2)), J)
    assert {blocker["what"]: blocker["detail"] for blocker in answer["blockers"]} == {
        "devices in use": "a",
        "has fewer than 2 GPUs": "b",
        "devices not healthy": "c",
        "node unreachable": "d",
    }
    assert answer["answer"] == "it needs 1 node with 2 GPUs, and not enough is free now"


def test_a_node_that_is_to_be_removed_is_named_as_such() -> None:
    history = [registered("a"), registered("b"), f.NodeRemovalRequested(node_id=NodeId("a"))]
    answer = explain(given(history, waiting("j", nodes=2)), J)
    assert answer["blockers"] == [{"what": "node is to be removed", "count": 1, "detail": "a"}]


def test_a_share_is_named_as_such() -> None:
    busy = [*waiting("i", gpu_share=60), placed("i", member("a", 0, share=60))]
    answer = explain(given(registered("a", gpus=1), busy, waiting("j", gpu_share=50)), J)
    assert answer["answer"] == "it needs 1 node with 1 GPUs (50 % of each), and not enough is free now"


def test_a_tenant_at_its_limit_is_named() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=150)
    answer = explain(given(registered("a"), limit, waiting("j", gpus=2, tenant="t")), J)
    assert answer["answer"] == "tenant t holds 0 of at most 1.5 GPUs, and this job asks for 2 more"


def test_a_tenant_whose_budget_is_used_up_is_named() -> None:
    spent = [f.TenantSet(tenant=TenantId("t"), gpu_hours=3), f.BudgetExhausted(tenant=TenantId("t"), gpu_hours=3, used_share_ms=1)]
    answer = explain(given(registered("a"), spent, waiting("j", tenant="t")), J)
    assert answer["answer"] == "tenant t has used up its budget of 3 GPU hours: nothing more of it starts"


def test_a_month_s_budget_that_is_used_up_is_named_with_its_end() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), gpu_hours=3, gpu_hours_per="month")
    spent = [f.BudgetRenewed(tenant=limit.tenant, month=202_611), f.BudgetExhausted(limit.tenant, 3, 1, 202_611)]
    answer = explain(given(registered("a"), limit, spent, waiting("j", tenant="t")), J)
    assert answer["answer"] == "tenant t has used up its budget of 3 GPU hours for this month: nothing more of it starts"
    assert answer["remedy"].startswith("wait for the next month (UTC), or")


def test_a_device_that_is_another_tenant_s_is_named() -> None:
    busy = [*waiting("i", tenant="t", gpu_share=30), placed("i", member("a", 0, share=30))]
    answer = explain(given(registered("a", gpus=1), busy, waiting("j", gpu_share=50)), J)
    assert answer["blockers"] == [{"what": "devices with another tenant's jobs", "count": 1, "detail": "a"}]


def test_a_job_behind_another_is_told_which() -> None:
    busy = [*waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    answer = explain(given(registered("a"), busy, waiting("big", gpus=4), waiting("j")), J)
    assert answer["answer"] == "it would fit, but big is before it in the queue and waits for devices"


def test_a_job_that_stands_aside_is_in_nobody_s_way() -> None:
    """`huge` can never fit and `capped` may not: the placement passes them over, and so does the answer."""
    limit = f.TenantSet(tenant=TenantId("capped"), max_gpu_share=50)
    aside = [*waiting("huge", gpus=9), *waiting("capped", tenant="capped")]
    assert explain(given(registered("a"), limit, aside, waiting("j")), J)["answer"] == "it fits, and is about to be placed"
    busy = [*waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    answer = explain(given(registered("a"), limit, busy, aside, waiting("big", gpus=4), waiting("j")), J)
    assert answer["answer"] == "it would fit, but big is before it in the queue and waits for devices"
    assert answer["blockers"][0] == {"what": "queue order", "count": 1, "detail": "big goes first by the order of its queue"}


def test_a_job_that_does_not_fit_now_hears_how_many_come_before_it() -> None:
    busy = [*waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    before = [*waiting("first", gpus=4), *waiting("second", gpus=4)]
    answer = explain(given(registered("a"), busy, before, waiting("j", gpus=4)), J)
    assert answer["answer"] == "it needs 1 node with 4 GPUs, and not enough is free now; first is before it in the queue"
    assert [(blocker["what"], blocker["count"]) for blocker in answer["blockers"]] == [("queue order", 2), ("devices in use", 1)]


def test_a_job_that_is_about_to_be_placed_is_told_so() -> None:
    assert explain(given(registered("a"), waiting("j")), J)["answer"] == "it fits, and is about to be placed"


def test_a_job_that_may_go_on_on_a_silent_node_names_it_and_the_way_out() -> None:
    history = [registered("a"), *waiting("j", on_control_loss="continue"), placed("j", member("a", 0)), started("j", "a")]
    assert explain(given(history), J)["remedy"] is None
    answer = explain(given(history, f.NodeLost(node_id=NodeId("a"), incarnation=1)), J)
    assert answer["answer"].endswith(
        "its node a is silent and it may go on there: it starts nowhere else until its node answers or is declared dead"
    )
    assert answer["remedy"] == "wait for a, or, when nothing of it is running any more: muster node dead a"
