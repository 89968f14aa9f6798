"""Changes that would start a waiting job.

Each kind of change is named where it helps, and not named where it does not.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Array, JobId, NodeId, TenantId
from libs.common.model_spec import ModelSpec
from services.scheduler.decide.decide import decide
from services.scheduler.explain import devices_back, limits
from services.scheduler.explain.explain import explain
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import ended, given, member, placed, registered, spec, started, waiting

J = JobId("j")
GIB = 1 << 30


def node(name: str, gpus: int = 4, **fields: Any) -> f.NodeRegistered:
    """One that says what its host has; GPUs in pairs of a NUMA node."""
    plain = registered(
        name, gpus, cpus_milli=8_000, memory_bytes=32 * GIB, sockets=(0, 1), **fields
    )
    return replace(plain, gpus=tuple(replace(gpu, numa=gpu.index // 2) for gpu in plain.gpus))


def running(job: str, *members: Any, **fields: Any) -> list[AnyFact]:
    where = [
        waiting(job, gpus=len(members[0].gpus), nodes=len(members), **fields),
        [placed(job, *members)],
    ]
    return [fact for part in where for fact in part] + [
        started(job, each.node_id) for each in members
    ]


def named(*history: Any) -> list[str]:
    return [*explain(given(*history), J)["changes"]]


def test_a_held_job_is_released_and_one_that_would_wait_all_the_same_is_told_of_nothing() -> None:
    assert named(registered("a"), waiting("j", hold=True)) == ["release it (muster release j)"]
    answer = explain(given(registered("a", gpus=0), waiting("j", hold=True)), J)
    assert (answer["changes"], answer["remedy"]) == ([], "muster release j")
    assert answer["estimate"]["basis"].startswith("none: ")


def test_a_job_that_waits_for_another_may_be_submitted_without_that() -> None:
    before = running("i", member("a", 0))
    assert named(registered("a"), before, waiting("j", after=(("afterok", "i"),))) == [
        "submit it again without --after and --singleton"
    ]


def test_a_limit_is_raised_as_far_as_the_job_or_those_before_it_need() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=100)
    one = named(registered("a"), limit, waiting("j", gpus=2, tenant="t"))
    assert one[:2] == [
        "raise the limit of tenant t to 2 GPUs (an administrator: muster tenant set t --gpus 2)",
        "submit it again with 1 GPU a node instead of 2",
    ]
    more = named(
        registered("a"),
        limit,
        waiting("first", gpus=2, tenant="t"),
        waiting("j", gpus=2, tenant="t"),
    )
    assert (
        more[0]
        == "raise the limit of tenant t to 4 GPUs (an administrator: muster tenant set t --gpus 4)"
    )


def test_a_limit_that_is_not_in_the_way_is_not_raised() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=800)
    assert not [
        each
        for each in named(registered("a"), limit, waiting("j", gpus=9, tenant="t"))
        if "limit" in each
    ]


def test_suggested_cancel_is_of_the_tenant_at_its_limit() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=100)
    found = named(
        registered("a"), limit, running("i", member("a", 0), tenant="t"), waiting("j", tenant="t")
    )
    assert "cancel i, which has 1 GPU" in found


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ({"gpus": 3}, "submit it again with 2 GPUs a node instead of 3"),
        ({"gpus": 2, "nodes": 2}, "submit it again on 1 node instead of 2"),
        ({"gpus": 20}, "submit it again with 2 GPUs a node instead of 20"),
        (
            {"gpus": 1, "nodes": 2, "gpu_memory_bytes": 80 * GIB},
            "submit it again on 1 node instead of 2",
        ),
        ({"cpus_milli": 16_000}, "submit it again with 8 CPUs a node instead of 16"),
        (
            {"memory_bytes": 64 * GIB},
            "submit it again with 32 GiB of host memory instead of 64 GiB",
        ),
        ({"model": ("A100", "B200")}, "submit it again without --gpu-model A100,B200"),
        ({"vendor": "amd"}, "submit it again without --vendor amd"),
        ({"memory_total_min_bytes": 90 * GIB}, "submit it again without --gpu-memory-min 90 GiB"),
        ({"compute_capability_min": (9, 0)}, "submit it again without --compute-capability 9.0"),
        ({"node_labels": {"disk": "nvme"}}, "submit it again without --node-label disk=nvme"),
        ({"anti_affinity": {"team": "x"}}, "submit it again without --anti-affinity team=x"),
        ({"node_list": (NodeId("z"),)}, "submit it again without --nodelist z"),
    ],
)
def test_suggested_change_gives_up_the_least_that_helps(asked: dict[str, Any], change: str) -> None:
    assert (
        named(
            node("a"),
            running("i", member("a", 0, 1), labels={"team": "x"}),
            waiting("j", **asked),
        )[0]
        == change
    )


def test_a_part_of_each_device_is_the_largest_that_is_free() -> None:
    parts = [*waiting("i", gpu_share=40), placed("i", member("a", 0, share=40))]
    assert (
        named(registered("a", gpus=1), parts, waiting("j"))[0]
        == "submit it again with 50 % of each GPU instead of all of it"
    )
    assert (
        named(registered("a", gpus=1), parts, waiting("j", gpu_share=70))[0]
        == "submit it again with 50 % of each GPU instead of 70 %"
    )
    memory = named(registered("a", gpus=1), parts, waiting("j", gpu_memory_bytes=64 * GIB))
    assert memory[0] == "submit it again with 48 GiB of each GPU's memory"


def test_one_constraint_is_dropped_and_not_two() -> None:
    anti_affinity = [*waiting("i", gpus=2), placed("i", member("a", 0, 2))]
    assert "submit it again without --no-cross-numa" in named(
        node("a"), anti_affinity, waiting("j", gpus=2, allow_cross_numa=False)
    )
    assert "submit it again without --numa required" in named(
        node("a"), anti_affinity, waiting("j", gpus=2, numa="required")
    )
    both = named(
        node("a"), anti_affinity, waiting("j", gpus=2, numa="required", allow_cross_numa=False)
    )
    assert not [each for each in both if "numa" in each]


def test_a_gang_may_be_mixed() -> None:
    other = registered("b", gpus=1)
    other = replace(other, gpus=tuple(replace(gpu, model="A100") for gpu in other.gpus))
    change = "submit it again without GPUs of one model on all nodes (add --mixed)"
    assert change in named(registered("a", gpus=1), other, waiting("j", nodes=2))


def test_a_job_behind_another_is_raised_above_it_or_that_one_is_cancelled() -> None:
    busy = running("i", member("a", 0, 1))
    found = named(
        registered("a"), busy, waiting("big", gpus=4, name="large", priority=55), waiting("j")
    )
    assert found[:2] == [
        "raise its priority from 50 to 60 (muster update j --priority 60)",
        "cancel large (big), which waits before it",
    ]
    assert not [
        each
        for each in named(registered("a"), busy, waiting("j", gpus=3, priority=100))
        if "priority" in each
    ]


def test_a_short_enough_time_limit_lets_a_job_be_backfilled_where_backfill_is_allowed() -> None:
    busy = running("i", member("a", 0, 1), time_limit_s=3_000)
    behind = (registered("a"), busy, waiting("big", gpus=4), waiting("j", time_limit_s=7_200))
    assert named(*behind)[0] == "give it a time limit of 30m (muster update j --time 30m)"
    strict = f.QueueSet(queue="default", policy="priority", backfill=False)
    assert not [each for each in named(strict, *behind) if "limit" in each]


def test_a_higher_priority_takes_the_place_of_jobs_that_may_be_preempted() -> None:
    low = running("low", member("a", 0, 1, 2, 3), priority=50, preemptible=True)
    assert (
        named(registered("a"), low, waiting("j", gpus=4))[0]
        == "raise its priority from 50 to 51 (muster update j --priority 51)"
    )
    firm = running("firm", member("a", 0, 1, 2, 3), priority=50)
    assert not [
        each for each in named(registered("a"), firm, waiting("j", gpus=4)) if "priority" in each
    ]


def test_the_smallest_job_whose_cancel_helps_is_named() -> None:
    busy = [
        *running("small", member("a", 0)),
        *running("two", member("a", 1, 2)),
        *running("all", member("b", 0, 1, 2, 3)),
    ]
    assert (
        named(registered("a"), registered("b"), busy, waiting("j", gpus=3))[-2]
        == "cancel two, which has 2 GPUs"
    )


def test_a_job_that_is_on_its_way_out_already_is_no_change() -> None:
    busy = [*running("i", member("a", 0)), f.CancelRequested(job_id=JobId("i"))]
    assert not [
        each for each in named(registered("a", gpus=1), busy, waiting("j")) if "cancel" in each
    ]


def test_suggested_cancel_may_have_ended_members_and_lost_nodes() -> None:
    gang = [
        *running("i", member("a", 0), member("b", 0, rank=1), member("c", 0, rank=2)),
        *ended("i", "a")[1:],
    ]
    half = f.JobFinished(job_id=JobId("i"), attempt=1, node_id=NodeId("b"), exit_code=0)
    found = named(
        registered("a", 1),
        registered("b", 1),
        registered("c", 1),
        gang,
        half,
        waiting("j", nodes=2),
    )
    assert "cancel i, which has 3 GPUs" in found


def test_the_end_of_a_job_on_a_node_that_leaves_frees_nothing() -> None:
    leaving = f.NodeRemovalRequested(node_id=NodeId("a"), wait=True)
    assert named(registered("a"), running("i", member("a", 0)), leaving, waiting("j", gpus=4)) == [
        "add 1 node of 4 x Simulated H100"
    ]


def test_a_node_that_is_away_comes_back_and_one_that_leaves_does_not() -> None:
    lost = f.NodeLost(node_id=NodeId("a"), incarnation=1)
    assert "bring node a (unreachable) back" in named(registered("a"), lost, waiting("j"))
    leaving = f.NodeRemovalRequested(node_id=NodeId("a"))
    assert not [
        each for each in named(registered("a"), lost, leaving, waiting("j")) if "bring" in each
    ]
    assert not [
        each for each in named(registered("a"), lost, waiting("j", gpus=5)) if "bring" in each
    ]


def test_devices_that_are_away_come_back() -> None:
    fault = f.GpuFaulted(
        node_id=NodeId("a"),
        uuid=registered("a").gpus[0].uuid,
        health="offline",
        reason="quarantined",
    )
    found = named(registered("a", gpus=1), fault, waiting("j"))
    assert found[0] == "bring the unavailable GPUs of node a (quarantined) back"


def test_new_nodes_are_built_like_those_that_serve() -> None:
    assert (
        named(registered("a"), registered("b", 2), waiting("j", gpus=5))[-1]
        == "add 1 node of 5 x Simulated H100"
    )
    assert named(registered("a", 0), waiting("j", cpus_milli=1_000, gpus=0)) == []
    assert not [each for each in named(registered("a"), waiting("j", gpus=65)) if "add" in each]
    racks = registered("a", rack="r", spine="s")
    assert (
        named(racks, waiting("j", nodes=3, gpus=4, rack="required"))[-1]
        == "add 3 nodes of 4 x Simulated H100"
    )


def test_no_change_is_named_when_none_helps() -> None:
    answer = explain(
        given(
            registered("a", 0), waiting("j", reject_if_impossible=False, model=("X",), vendor="y")
        ),
        J,
    )
    assert (answer["changes"], answer["remedy"]) == (
        [],
        "add 1 node that can serve the request, or request less: the blockers name what is missing",
    )


def test_only_so_many_ends_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_back, "TRIED_MAX", 1)
    busy = [*running("x", member("a", 0)), *running("y", member("b", 0))]
    state: State = given(registered("a", 1), registered("b", 1), busy, waiting("j"))
    assert len(list(devices_back.ended(state, state.cluster.jobs[J]))) == 1


def test_a_replica_cannot_be_submitted_again() -> None:
    model = f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve", "{port}"), gpus=2))
    state = given(registered("a", gpus=1), model)
    while found := decide(state, 0):
        state.apply_own(found, 0)
    answer = explain(state, JobId("chat-1"))
    assert (answer["state"], answer["changes"]) == ("queued", ["add 1 node of 2 x Simulated H100"])


def test_whatif_starts_the_next_element_of_an_array() -> None:
    pair = Array(((0, 3, 1),), 1)
    assert (
        explain(given(registered("a", 1), waiting("j", array=pair)), J)["answer"]
        == "it fits, and is about to be placed on a"
    )
    busy = running("i", member("a", 0), time_limit_s=60)
    answer = explain(given(registered("a", 1), busy, waiting("j", array=pair)), J)
    assert (
        answer["changes"][-1] == "add 1 node of 1 x Simulated H100"
        and answer["estimate"]["in_s"] == 60
    )
    found = what_if(given(registered("a", 1)), WhatIfAsk(spec(array=pair), TenantId("t")))
    assert found["would_start"] and found["placement"][0]["node_id"] == "a"


def test_an_array_with_as_many_elements_as_may_live_waits_for_one_of_them() -> None:
    state = given(registered("a", 2), waiting("j", array=Array(((0, 3, 1),), 1)))
    while found := decide(state, 0):
        state.apply_own(found, 0)
    answer = explain(state, J)
    assert answer["answer"] == "1 of its elements have not ended, as many as may be alive at a time"
    assert (answer["remedy"], answer["changes"]) == ("muster why j_0", [])


def test_a_limit_that_would_not_grow_is_no_change() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=800)
    state = given(registered("a"), limit, waiting("j", gpus=2, tenant="t"))
    assert list(limits.raised(state, state.cluster.jobs[J])) == []
