"""`why`: the answer names what is in the way, and nothing else."""

from typing import Any

import pytest
from msgspec import structs

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Gpu, GpuHold, GpuId, JobId, Member, NodeId, TenantId
from services.scheduler.decide.placing import place
from services.scheduler.explain.explain import explain
from tests.given import given, member, placed, registered, started, waiting

J = JobId("j")
SECOND_NS = 100_000_000_000


def blocked(answer: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(each["what"], each["count"], each["detail"]) for each in answer["blockers"]]


def test_an_unknown_job_is_said_to_be_unknown() -> None:
    assert explain(given(), J)["state"] == "unknown"


def test_a_job_that_ended_or_runs_says_so() -> None:
    running = given(registered("a"), waiting("j"), placed("j", member("a", 0)), started("j", "a"))
    assert explain(running, J)["answer"] == "it runs on a and does not wait"
    ended = given(
        waiting("j"), f.JobClosed(job_id=J, attempt=1, outcome="cancelled", reason="cancelled")
    )
    assert explain(ended, J)["answer"] == "it has ended: cancelled"
    absent = f.JobFinished(
        job_id=J,
        attempt=1,
        node_id=NodeId("a"),
        exit_code=127,
        reason="exec_failed",
        detail="the command x was not found in PATH=/bin",
    )
    failed = given(
        registered("a"),
        waiting("j"),
        placed("j", member("a", 0)),
        absent,
        f.JobReleased(job_id=J, attempt=1, node_id=NodeId("a")),
        f.JobClosed(job_id=J, attempt=1, outcome="failed", reason="failed", exit_code=127),
    )
    assert explain(failed, J)["answer"] == (
        "it has ended: failed, because the command x was not found on a (exit code 127)"
    )
    assert (
        explain(given(waiting("j")[:1]), J)["answer"]
        == "it is pending and waits for quota to admit or reject it"
    )


def test_a_job_that_others_make_room_for_names_them() -> None:
    low = [
        *waiting("low", gpus=4, priority=1, preemptible=True),
        placed("low", member("a", 0, 1, 2, 3)),
        started("low", "a"),
    ]
    reserved = f.DevicesReserved(job_id=J, attempt=1, members=(member("a", 0, 1, 2, 3),))
    answer = explain(given(registered("a"), low, waiting("j", gpus=4), reserved), J)
    assert (
        answer["answer"].startswith("devices are reserved for it on a")
        and "held by low" in answer["answer"]
    )
    assert blocked(answer) == [("devices being freed", 4, "low")]
    assert (
        answer["estimate"]["basis"]
        == "none: as soon as the jobs that make room for it have saved their work and ended"
    )


@pytest.mark.parametrize(
    ("asked", "remedy", "last"),
    [
        (
            {"gpus": 5},
            "submit it again with 4 GPUs a node instead of 5",
            "add 1 node of 5 x Simulated H100",
        ),
        (
            {"nodes": 4, "gpus": 2},
            "submit it again on 2 nodes instead of 4",
            "add 2 nodes of 4 x Simulated H100",
        ),
    ],
)
def test_an_impossible_job_is_told_the_cheapest_change(
    asked: dict[str, int], remedy: str, last: str
) -> None:
    answer = explain(given(registered("a"), registered("b"), waiting("j", **asked)), J)
    assert answer["answer"].startswith("this cluster could never hold it")
    assert answer["remedy"] == answer["changes"][0] == remedy
    assert answer["changes"][-1] == last


def test_blockers_are_counted_by_build_and_by_what_rules_each_node_out() -> None:
    faults = [
        f.GpuFaulted(node_id=NodeId("c"), uuid=GpuId(f"c-gpu{i}"), health="offline", reason="xid")
        for i in range(4)
    ]
    history = [
        registered("a"),
        registered("b", gpus=1),
        registered("c"),
        registered("d"),
        registered("e"),
        faults,
    ]
    busy = [
        *waiting("i", gpus=4),
        placed("i", member("a", 0, 1, 2, 3)),
        *waiting("k", gpus=3),
        placed("k", member("e", 0, 1, 2)),
    ]
    answer = explain(
        given(*history, busy, f.NodeLost(node_id=NodeId("d"), incarnation=1), waiting("j", gpus=2)),
        J,
    )
    assert [
        (each["count"], each["build"], each["what"], each["detail"]) for each in answer["blockers"]
    ] == [
        (2, "4 x Simulated H100", "GPUs in use: needs 2, at most 1 free", "a, e"),
        (1, "1 x Simulated H100", "fewer than 2 GPUs", "b"),
        (1, "4 x Simulated H100", "GPUs unavailable (xid): needs 2, at most 0 there", "c"),
        (1, "4 x Simulated H100", "node unreachable", "d"),
    ]
    assert answer["answer"] == "it needs 1 node with 2 GPUs, and no node has that free now"


def holding(*parts: GpuHold, **asked: Any) -> list[AnyFact]:
    """A job that runs on these parts of node a."""
    return [*waiting("i", **asked), placed("i", Member(NodeId("a"), 1, 0, parts))]


@pytest.mark.parametrize(
    ("asked", "busy", "what"),
    [
        ({"node_list": (NodeId("b"),)}, [], "not in the job's list of nodes"),
        (
            {"anti_affinity": {"app": "db"}},
            holding(gpus=0, labels={"app": "db"}),
            "runs a job with a label of the anti-affinity",
        ),
        (
            {"gpus": 2, "numa": "required"},
            [],
            "enough free GPUs, but not together as required (numa)",
        ),
        (
            {"gpu_share": 50, "gpus": 2, "isolation": "mps"},
            holding(GpuHold(GpuId("a-gpu0"), 30), gpu_share=30),
            "GPUs whose fractions are isolated in another way",
        ),
        (
            {"mig_profile": "4g.40gb", "gpus": 2},
            holding(
                GpuHold(
                    uuid=GpuId("a-gpu0"),
                    share=12,
                    isolation="mig",
                    mig_profile="1g.10gb",
                    mig_slices=1,
                ),
                mig_profile="1g.10gb",
            ),
            "no free place for the MIG instance",
        ),
    ],
)
def test_constraint_of_the_job_is_named_when_it_rules_a_node_out(
    asked: dict[str, Any], busy: list[AnyFact], what: str
) -> None:
    """The two devices of a have nothing in common; b would serve and is full."""
    cards = ("1g.10gb", "4g.40gb")
    gpus = tuple(
        Gpu(
            uuid=GpuId(f"a-gpu{i}"),
            index=i,
            vendor="nvidia",
            model="H100",
            memory_bytes=80 << 30,
            mig_profiles=cards,
            numa=i,
        )
        for i in range(2)
    )
    nodes = [f.NodeRegistered(NodeId("a"), 1, "127.0.0.1", gpus), registered("b", gpus=1)]
    full = [*waiting("k"), placed("k", member("b", 0))]
    blockers = explain(given(nodes, busy, full, waiting("j", **asked)), J)["blockers"]
    assert {blocker["what"]: blocker["detail"] for blocker in blockers}[what] == "a"


def test_nodes_that_serve_but_are_not_together_are_no_reason_to_add_any() -> None:
    """Their racks are not known, nor would those of others be; and another job is before it, so
    that asking for less does not help now.
    """
    fifo = f.QueueSet(queue="default", policy="fifo", backfill=False)
    busy = [
        *waiting("i", nodes=2),
        placed("i", member("a", 0), member("b", 0, rank=1)),
        *waiting("first", gpus=4),
    ]
    answer = explain(
        given(registered("a"), registered("b"), fifo, busy, waiting("j", nodes=2, rack="required")),
        J,
    )
    assert answer["answer"].startswith("this cluster could never hold it")
    assert answer["remedy"] == (
        "2 nodes could serve it, but fewer than 2 are together as required: relax that requirement"
    )


def test_a_part_that_only_a_large_card_makes_too_much_for_the_tenant_is_told_so() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=20)
    answer = explain(
        given(registered("a"), limit, waiting("j", tenant="t", gpu_memory_bytes=40 << 30)), J
    )
    assert (
        answer["answer"]
        == "tenant t holds 0 of at most 0.2 GPUs, and this job asks for at least 0.5 more"
    )


def test_a_part_that_is_within_the_limit_only_on_a_larger_card_waits_for_that_card() -> None:
    small = registered("small", 1)
    cards = tuple(structs.replace(gpu, memory_bytes=40 << 30) for gpu in small.gpus)
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=50)
    busy = [*waiting("i"), placed("i", member("large", 0))]
    asking = waiting("j", tenant="t", gpu_memory_bytes=40 << 30)
    history = [registered("large", 1), structs.replace(small, gpus=cards), *busy]
    assert [type(fact) for fact in place(given(*history, asking))] == [f.JobPlaced]
    state = given(*history, limit, asking)
    assert place(state) == ()
    answer = explain(state, J)
    assert answer["answer"] == "tenant t holds 0 of at most 0.5 GPUs, and this job asks for 1 more"
    assert blocked(answer)[0][0] == "tenant limit"


def test_a_job_that_waits_for_others_names_them_and_the_first_one_s_state() -> None:
    jobs = [fact for name in "abcd" for fact in waiting(name)]
    after = [("afterok", JobId(name)) for name in "abcd"]
    answer = explain(given(jobs, waiting("j", after=tuple(after))), J)
    assert answer["answer"] == "it begins after a, b, c and others; a is queued"
    assert (blocked(answer), answer["remedy"]) == (
        [("dependency", 4, "a is queued")],
        "muster why a",
    )


def test_a_node_that_is_to_be_removed_is_named_as_such() -> None:
    history = [registered("a"), registered("b"), f.NodeRemovalRequested(node_id=NodeId("a"))]
    answer = explain(given(history, waiting("j", nodes=2)), J)
    assert blocked(answer) == [("node is to be removed", 1, "a")]


def test_a_share_is_named_as_such() -> None:
    busy = [*waiting("i", gpu_share=60), placed("i", member("a", 0, share=60))]
    answer = explain(given(registered("a", gpus=1), busy, waiting("j", gpu_share=50)), J)
    assert (
        answer["answer"]
        == "it needs 1 node with 1 GPU (50 % of each), and no node has that free now"
    )


def test_a_tenant_at_its_limit_is_named() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=150)
    answer = explain(given(registered("a"), limit, waiting("j", gpus=2, tenant="t")), J)
    assert answer["answer"] == "tenant t holds 0 of at most 1.5 GPUs, and this job asks for 2 more"


def test_a_tenant_that_is_at_its_limit_by_what_is_reserved_for_it_is_told_so() -> None:
    low = [
        *waiting("low", gpus=4, priority=1, preemptible=True),
        placed("low", member("a", 0, 1, 2, 3)),
        started("low", "a"),
    ]
    high = [
        *waiting("high", gpus=4, tenant="t"),
        f.DevicesReserved(job_id=JobId("high"), attempt=1, members=(member("a", 0, 1, 2, 3),)),
    ]
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=400)
    answer = explain(
        given(registered("a"), registered("b", gpus=1), limit, low, high, waiting("j", tenant="t")),
        J,
    )
    assert (
        answer["answer"]
        == "tenant t holds 0 and has 4 reserved of at most 4 GPUs, and this job asks for 1 more"
    )
    assert answer["remedy"].startswith("raise the limit of tenant t to 5 GPUs")


def test_a_tenant_whose_budget_is_used_up_is_named() -> None:
    spent = [
        f.TenantSet(tenant=TenantId("t"), gpu_hours=3),
        f.BudgetExhausted(tenant=TenantId("t"), gpu_hours=3, used_share_ms=1),
    ]
    answer = explain(given(registered("a"), spent, waiting("j", tenant="t")), J)
    assert (
        answer["answer"]
        == "tenant t has used up its budget of 3 GPU hours: no more of its jobs start"
    )


def test_a_month_s_budget_that_is_used_up_is_named_with_its_end() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), gpu_hours=3, gpu_hours_per="month")
    spent = [
        f.BudgetRenewed(tenant=limit.tenant, month=202_611),
        f.BudgetExhausted(limit.tenant, 3, 1, 202_611),
    ]
    answer = explain(given(registered("a"), limit, spent, waiting("j", tenant="t")), J)
    assert answer["answer"] == (
        "tenant t has used up its budget of 3 GPU hours for this month: no more of its jobs start"
    )
    assert (
        answer["remedy"] == "raise the budget of tenant t to 4 GPU hours "
        "(an administrator: muster tenant set t --gpu-hours 4)"
    )


def test_a_device_that_is_another_tenant_s_is_named() -> None:
    busy = [*waiting("i", tenant="t", gpu_share=30), placed("i", member("a", 0, share=30))]
    answer = explain(given(registered("a", gpus=1), busy, waiting("j", gpu_share=50)), J)
    assert blocked(answer) == [("GPUs with another tenant's jobs", 1, "a")]


def test_a_job_behind_another_is_told_which() -> None:
    busy = [*waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    answer = explain(given(registered("a"), busy, waiting("big", gpus=4), waiting("j")), J)
    assert (
        answer["answer"] == "it would fit, but big is before it in the queue and waits for devices"
    )


def test_a_blocked_job_blocks_no_other_job() -> None:
    """`huge` can never fit and `capped` may not: the placement passes them over, and so does the
    answer.
    """
    limit = f.TenantSet(tenant=TenantId("capped"), max_gpu_share=50)
    aside = [*waiting("huge", gpus=9), *waiting("capped", tenant="capped")]
    assert (
        explain(given(registered("a"), limit, aside, waiting("j")), J)["answer"]
        == "it fits, and is about to be placed on a"
    )
    busy = [*waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    answer = explain(
        given(registered("a"), limit, busy, aside, waiting("big", gpus=4), waiting("j")), J
    )
    assert (
        answer["answer"] == "it would fit, but big is before it in the queue and waits for devices"
    )
    assert blocked(answer)[0] == ("queue order", 1, "by the order of its queue (priority)")
    assert answer["before"] == [{"job_id": "big", "why": "was submitted first"}]


def test_a_job_that_does_not_fit_now_hears_how_many_come_before_it() -> None:
    busy = [*waiting("i", gpus=2), placed("i", member("a", 0, 1))]
    before = [*waiting("first", gpus=4), *waiting("second", gpus=4)]
    answer = explain(given(registered("a"), busy, before, waiting("j", gpus=4)), J)
    assert answer["answer"] == (
        "it needs 1 node with 4 GPUs, and no node has that free now; first is before it in "
        "the queue"
    )
    assert [what for what, _, _ in blocked(answer)] == [
        "queue order",
        "GPUs in use: needs 4, at most 2 free",
    ]


def test_a_job_that_is_about_to_be_placed_is_told_so() -> None:
    assert (
        explain(given(registered("a"), waiting("j")), J)["answer"]
        == "it fits, and is about to be placed on a"
    )
