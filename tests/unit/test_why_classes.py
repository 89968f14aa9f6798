"""Reasons that rule nodes out, in plain words.

Some tests compare the whole answer: where a limit or the topology of a gang decides.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact
from libs.common.facts.fact import Ignored
from libs.common.model import GpuHold, JobId, JobSpec, Member, NodeId, TenantId
from services.scheduler.explain.explain import explain
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from tests.given import given, member, placed, registered, started, waiting

J = JobId("j")
MIG_CARD = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def node(name: str, models: tuple[str, ...], **fields: Any) -> f.NodeRegistered:
    """A node with these devices, in pairs of a NUMA node."""
    plain = registered(name, len(models), sockets=(0, 1), **fields)
    return replace(
        plain,
        gpus=tuple(
            replace(gpu, model=model, numa=gpu.index // 2)
            for gpu, model in zip(plain.gpus, models, strict=True)
        ),
    )


def answer(*history: Any) -> dict[str, Any]:
    return explain(given(*history), J)


def whats(*history: Any) -> list[str]:
    return [each["what"] for each in answer(*history)["blockers"]]


def part(job: str, gpu: int, isolation: str, **fields: Any) -> list[AnyFact]:
    hold = replace(member("a", gpu, share=50).gpus[0], isolation=isolation)
    return [
        *waiting(job, gpu_share=50, isolation=isolation, **fields),
        placed(job, Member(member("a").node_id, 1, 0, (hold,))),
    ]


def test_a_node_with_several_models_is_named_by_all_of_them() -> None:
    mixed = node("a", ("H100", "H100", "A100", "A100"))
    (blocker,) = answer(mixed, waiting("j", gpus=3))["blockers"]
    assert (blocker["build"], blocker["what"]) == (
        "2 x H100 + 2 x A100",
        "free GPUs of different models: needs 3 of one",
    )


def test_devices_that_are_free_on_two_numa_nodes_are_not_together() -> None:
    anti_affinity = [*waiting("i", gpus=2), placed("i", member("a", 0, 2))]
    assert whats(
        node("a", ("H100",) * 4), anti_affinity, waiting("j", gpus=2, allow_cross_numa=False)
    ) == ["enough free GPUs, but not together as required (numa)"]


def test_parts_of_one_device_are_kept_apart_in_one_way() -> None:
    assert whats(
        registered("a", 1), part("i", 0, "mps"), waiting("j", gpu_share=50, isolation="time_slice")
    ) == ["GPUs whose fractions are isolated in another way"]


def test_an_instance_needs_a_legal_place() -> None:
    card = replace(
        registered("a", 1),
        gpus=tuple(replace(gpu, mig_profiles=MIG_CARD) for gpu in registered("a", 1).gpus),
    )
    held: list[AnyFact] = []
    for at in (2, 5):
        hold = GpuHold(
            uuid=card.gpus[0].uuid,
            share=12,
            isolation="mig",
            mig_profile="1g.10gb",
            mig_slices=1 << at,
        )
        held += [
            *waiting(f"i{at}", mig_profile="1g.10gb"),
            placed(f"i{at}", Member(card.node_id, 1, 0, (hold,))),
        ]
    assert whats(card, held, waiting("j", mig_profile="3g.40gb")) == [
        "no free place for the MIG instance"
    ]


def test_a_card_in_mig_mode_is_no_whole_device() -> None:
    gpus = tuple(replace(gpu, mig_profiles=MIG_CARD, mig=True) for gpu in registered("a", 1).gpus)
    assert whats(replace(registered("a", 1), gpus=gpus), waiting("j")) == [
        "GPUs in MIG mode, of which only instances can be used"
    ]


def test_devices_that_are_kept_for_a_job_are_that_job_s_and_its_end_frees_them() -> None:
    low = [
        *waiting("low", gpus=2, preemptible=True),
        placed("low", member("a", 0, 1)),
        started("low", "a"),
    ]
    first = [
        *waiting("first", gpus=4, priority=60),
        f.DevicesReserved(job_id=JobId("first"), attempt=1, members=(member("a", 0, 1, 2, 3),)),
    ]
    found = answer(registered("a"), low, first, waiting("j"))
    assert [each["what"] for each in found["blockers"]] == ["GPUs reserved for first"]
    assert "cancel first, which has GPUs reserved" in found["changes"]
    assert whats(registered("a"), low, first, waiting("j", gpus=3)) == [
        "GPUs in use: needs 3, at most 0 free"
    ]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"cpus_milli": 9_000}, "too few CPUs or too little memory"),
        ({"cpus_milli": 5_000}, "CPUs or memory in use"),
        ({"node_labels": {"x": "y"}}, "labels differ from the request"),
        ({"anti_affinity": {"team": "x"}}, "runs a job with a label of the anti-affinity"),
        ({"vendor": "amd"}, "GPUs of another kind than requested"),
    ],
)
def test_the_host_and_its_jobs_rule_it_out_too(asked: dict[str, Any], what: str) -> None:
    busy = [*waiting("i", cpus_milli=4_000, labels={"team": "x"}), placed("i", member("a", 0))]
    assert whats(registered("a", cpus_milli=8_000), busy, waiting("j", **asked)) == [what]


def test_a_gang_hears_how_many_nodes_could_serve_it() -> None:
    busy = [*waiting("i"), placed("i", member("a", 0))]
    found = answer(registered("a", 1), registered("b", 1), busy, waiting("j", nodes=2))
    assert found["answer"] == "it needs 2 nodes with 1 GPU, and 1 node could take a member now"
    none = answer(
        registered("a", 1),
        registered("b", 1),
        busy,
        waiting("k"),
        placed("k", member("b", 0)),
        waiting("j", nodes=2),
    )
    assert none["answer"] == "it needs 2 nodes with 1 GPU, and no node could take a member now"


def test_a_gang_whose_nodes_are_in_two_racks_hears_that() -> None:
    racks = [registered(name, 1, rack=rack) for name, rack in (("a", "r"), ("b", "r"), ("c", "s"))]
    busy = [*waiting("i"), placed("i", member("a", 0))]
    found = answer(*racks, busy, waiting("j", nodes=2, rack="required"))
    assert found["answer"].endswith(
        "2 nodes could take a member now, but too few of them are together as required"
    )
    assert found["blockers"][0] == {
        "what": "nodes not together as required",
        "count": 2,
        "detail": "rack",
        "build": "",
    }
    assert found["remedy"] == "submit it again on 1 node instead of 2"
    kinds = [node("a", ("H100",)), node("b", ("H100",)), node("c", ("A100",))]
    assert (
        answer(*kinds, busy, waiting("j", nodes=2))["blockers"][0]["detail"]
        == "one model on all of them"
    )


def test_a_limit_counts_the_share_that_a_memory_request_takes_of_the_card() -> None:
    limit = f.TenantSet(tenant=TenantId("t"), max_gpu_share=25)
    found = answer(registered("a"), limit, waiting("j", tenant="t", gpu_memory_bytes=40 << 30))
    assert (
        found["answer"]
        == "tenant t holds 0 of at most 0.25 GPUs, and this job asks for at least 0.5 more"
    )
    assert (
        found["remedy"]
        == "raise the limit of tenant t to 1 GPU (an administrator: muster tenant set t --gpus 1)"
    )
    full = [*waiting("i", tenant="t", gpu_share=25), placed("i", member("a", 0, share=25))]
    found = answer(
        registered("a"), limit, full, waiting("j", tenant="t", gpu_memory_bytes=40 << 30)
    )
    assert (
        found["answer"]
        == "tenant t holds 0.25 of at most 0.25 GPUs, and this job asks for at least 0.5 more"
    )


def test_a_job_that_would_be_rejected_is_told_so() -> None:
    spec = JobSpec(command=("true",), gpus=9, reject_if_impossible=True)
    found = what_if(given(registered("a")), WhatIfAsk(spec, TenantId("t")))
    assert not found["would_start"] and found["answer"].startswith(
        "it has ended: rejected (impossible"
    )


def test_a_job_for_an_instance_hears_which_device_could_be_partitioned() -> None:
    plain = node("a", ("NVIDIA A30", "NVIDIA H100"))
    text = answer(plain, waiting("j", mig_profile="1g.10gb"))["answer"]
    assert text.endswith(
        "GPU a-gpu1 of a can be partitioned in MIG mode: muster gpu mig on --gpu-id a-gpu1"
    )
    assert (
        "partitioned"
        not in answer(node("a", ("L4",)), waiting("j", mig_profile="1g.10gb"))["answer"]
    )
    assert "partitioned" not in answer(plain, waiting("j", nodes=2))["answer"]


def test_a_node_that_takes_no_work_is_named_with_the_reason() -> None:
    revoked = f.NodeRevoked(node_id=NodeId("a"), reason="it wrote too much")
    drained = f.NodeDrained(node_id=NodeId("a"), test="t", evidence="{400} of 900 MB/s")
    assert whats(registered("a"), revoked, waiting("j")) == [
        "node revoked: the servers refuse its key"
    ]
    assert whats(registered("a"), drained, waiting("j")) == [
        "node drained by the scheduler: {400} of 900 MB/s"
    ]


def test_a_node_whose_commit_was_ignored_is_named_as_distrusted() -> None:
    state = given(registered("a"), waiting("j"))
    stamp = Stamp(seq=9, at_ns=0, epoch=1, writer=subjects.NODE_KIND, writer_id="a")
    ignored = Ignored(name="", raw=b"", reason="it is not a commit")
    state.refresh(fold.apply(state.cluster, ignored, stamp))
    assert [each["what"] for each in explain(state, J)["blockers"]] == [
        "node distrusted, until its agent starts again"
    ]
