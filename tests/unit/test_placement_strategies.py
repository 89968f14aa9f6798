"""Where each strategy puts a job, and what rules a node out."""

from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import MIG, MPS, Gpu, GpuHold, GpuId, JobSpec, Member, NodeId
from services.scheduler.explain.explain import explain
from services.scheduler.placement import capacity, hardware, ranking
from services.scheduler.placement.choose import NO_PLACEMENT, choose
from services.scheduler.placement.strategies import STRATEGIES
from services.scheduler.state.state import State
from tests.given import JobId, given, member, placed, registered, spec, waiting

GIB = 1 << 30
A100_40 = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.5gb+me")


def node(
    name: str, gpus: int = 4, model: str = "NVIDIA H100 80GB HBM3", gib: int = 80, **fields: Any
) -> f.NodeRegistered:
    device = {
        k: fields.pop(k) for k in ("compute_capability", "mig_profiles", "mig") if k in fields
    }
    devices = tuple(
        Gpu(
            uuid=GpuId(f"{name}-gpu{i}"),
            index=i,
            vendor="nvidia",
            model=model,
            memory_bytes=gib * GIB,
            **device,
        )
        for i in range(gpus)
    )
    return f.NodeRegistered(
        node_id=NodeId(name), incarnation=1, address="127.0.0.1", gpus=devices, **fields
    )


def where(state: State, asked: JobSpec) -> list[str]:
    return [str(node_id) for node_id, _ in choose(state.capacity, asked, "default")]


def busy(name: str, on: str, *gpus: int, share: int = 100) -> list[AnyFact]:
    return [
        *waiting(name, gpus=len(gpus), gpu_share=share),
        placed(name, member(on, *gpus, share=share)),
    ]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("first_fit", "a"),
        ("best_fit", "b"),
        ("worst_fit", "c"),
        ("least_loaded", "c"),
        ("load_balanced", "c"),
        ("round_robin", "c"),
        ("fragmentation", "b"),
        ("topology", "b"),
    ],
)
def test_a_strategy_takes_its_node(strategy: str, expected: str) -> None:
    """Three of 4 are free on a, 1 on b, all on c; the last job went to b."""
    state = given(
        registered("a"),
        registered("b"),
        registered("c"),
        busy("i", "a", 0),
        busy("j", "b", 0, 1, 2),
    )
    assert where(state, spec(placement=strategy)) == [expected]
    assert where(state, spec(placement="nobody_knows_it")) == ["b"]


def test_every_strategy_is_held() -> None:
    assert set(STRATEGIES) == {
        "first_fit",
        "best_fit",
        "worst_fit",
        "round_robin",
        "least_loaded",
        "load_balanced",
        "fragmentation",
        "topology",
    }


@pytest.mark.parametrize(
    ("asked", "serves", "other"),
    [
        ({"model": ("H100",)}, {}, {"model": "NVIDIA A100-SXM4-80GB"}),
        ({"model": ("A10",)}, {"model": "NVIDIA A10"}, {"model": "NVIDIA A100"}),
        ({"memory_total_min_bytes": 80 * GIB}, {}, {"gib": 40}),
        (
            {"compute_capability_min": (8, 9)},
            {"compute_capability": (9, 0)},
            {"compute_capability": (8, 6)},
        ),
        ({"compute_capability_min": (8, 9)}, {"compute_capability": (9, 0)}, {}),
        ({"cpus_milli": 4_000}, {"cpus_milli": 4_000}, {"cpus_milli": 3_999}),
        ({"cpus_milli": 4_000}, {"cpus_milli": 4_000}, {}),
        ({"memory_bytes": GIB}, {"memory_bytes": GIB}, {"memory_bytes": GIB - 1}),
        (
            {"node_labels": {"disk": "ssd"}},
            {"labels": {"disk": "ssd"}},
            {"labels": {"disk": "hdd"}},
        ),
        ({"gpu_memory_bytes": 60 * GIB}, {}, {"gib": 40}),
        ({"mig_profile": "3g.20gb"}, {"mig_profiles": A100_40}, {}),
        ({"mig_profile": "3g.20gb"}, {"mig_profiles": A100_40, "mig": True}, {}),
        ({}, {"mig_profiles": A100_40}, {"mig_profiles": A100_40, "mig": True}),
        ({"gpu_share": 50, "isolation": "mps"}, {}, {"mig_profiles": A100_40, "mig": True}),
        ({"gpu_memory_bytes": GIB}, {}, {"mig_profiles": A100_40, "mig": True}),
    ],
)
def test_a_node_that_is_not_what_the_job_asks_for_is_passed_by(
    asked: dict[str, Any], serves: dict[str, Any], other: dict[str, Any]
) -> None:
    state = given(node("a", **other), node("b", **serves))
    assert where(state, spec(**asked)) == ["b"]
    alone = given(node("a", **other), waiting("j", **asked))
    assert choose(alone.capacity, spec(**asked), "default") is NO_PLACEMENT
    assert explain(alone, JobId("j"))["blockers"] != []


def test_a_job_runs_on_its_own_list_of_nodes_and_devices() -> None:
    state = given(node("a"), node("b"))
    assert where(state, spec(node_list=(NodeId("b"),))) == ["b"]
    assert choose(state.capacity, spec(gpu_uuids=(GpuId("b-gpu2"),)), "") == [
        ("b", (GpuHold(GpuId("b-gpu2")),))
    ]


def test_a_job_keeps_away_from_jobs_of_a_label() -> None:
    state = given(
        node("a"), node("b"), waiting("i", labels={"app": "db"}), placed("i", member("a", 0))
    )
    assert where(state, spec(anti_affinity={"app": "db"})) == ["b"]
    assert where(state, spec(anti_affinity={"app": "web"})) == ["a"]


def test_cpus_and_memory_of_a_host_are_given_once() -> None:
    first = [*waiting("i", cpus_milli=3_000), placed("i", member("a", 0))]
    state = given(node("a", cpus_milli=4_000), first)
    assert where(state, spec(cpus_milli=1_000)) == ["a"]
    assert where(state, spec(cpus_milli=1_001)) == []
    assert where(state, spec(gpus=0, cpus_milli=1_000)) == ["a"]


def test_a_memory_request_is_another_share_of_each_card() -> None:
    state = given(node("a", gib=40), busy("i", "a", 0, 1, 2, 3), node("b", gib=80))
    ((on, holds),) = choose(state.capacity, spec(gpu_memory_bytes=20 * GIB), "default")
    assert (on, [hold.share for hold in holds]) == ("b", [25])
    small = given(node("a", gib=40))
    assert [
        hold.share
        for hold in choose(small.capacity, spec(gpu_memory_bytes=20 * GIB), "default")[0][1]
    ] == [50]


def test_mig_instances_begin_where_the_card_lets_them() -> None:
    def cut(name: str, profile: str, share: int, slices: int) -> list[AnyFact]:
        hold = GpuHold(
            uuid=GpuId("a-gpu0"), share=share, isolation=MIG, mig_profile=profile, mig_slices=slices
        )
        return [
            *waiting(name, mig_profile=profile),
            placed(name, member("a", 0).__class__(NodeId("a"), 1, 0, (hold,))),
        ]

    machine = node("a", gpus=1, gib=40, mig_profiles=A100_40)
    one = given(machine, cut("i", "3g.20gb", 50, 0b1111))
    ((_, (hold,)),) = choose(one.capacity, spec(mig_profile="3g.20gb"), "default")
    assert (hold.isolation, hold.mig_profile, hold.mig_slices, hold.share) == (
        MIG,
        "3g.20gb",
        0b1111_0000,
        50,
    )
    assert choose(one.capacity, spec(mig_profile="4g.20gb"), "default") is NO_PLACEMENT
    media = given(machine, cut("i", "1g.5gb+me", 12, 0b1))
    assert choose(media.capacity, spec(mig_profile="1g.5gb+me"), "default") is NO_PLACEMENT
    assert choose(media.capacity, spec(mig_profile="1g.5gb"), "default") is not NO_PLACEMENT


@pytest.mark.parametrize(("isolation", "fits"), [(MPS, True), ("", False), ("time_slice", False)])
def test_parts_of_a_device_are_kept_apart_in_one_way(isolation: str, fits: bool) -> None:
    hold = GpuHold(GpuId("a-gpu0"), 30, MPS)
    shared = [
        *waiting("i", gpu_share=30, isolation=MPS),
        placed("i", member("a", 0).__class__(NodeId("a"), 1, 0, (hold,))),
    ]
    state = given(node("a", gpus=1), shared)
    assert (
        choose(state.capacity, spec(gpu_share=30, isolation=isolation), "default")
        is not NO_PLACEMENT
    ) == fits


def test_a_gang_is_of_one_model_unless_it_takes_any() -> None:
    state = given(node("a"), node("b", model="NVIDIA A100-SXM4-80GB"), node("c"))
    assert where(state, spec(nodes=2)) == ["a", "c"]
    assert where(state, spec(nodes=3)) == []
    assert where(state, spec(nodes=3, mixed=True)) == ["a", "b", "c"]


def test_mig_instances_on_several_devices_are_all_alike_and_on_cut_cards_first() -> None:
    cards = [
        Gpu(
            uuid=GpuId(f"a-gpu{i}"),
            index=i,
            vendor="nvidia",
            model="A100",
            memory_bytes=40 * GIB,
            mig_profiles=A100_40,
        )
        for i in range(3)
    ]
    machine = f.NodeRegistered(
        node_id=NodeId("a"), incarnation=1, address="127.0.0.1", gpus=tuple(cards)
    )
    cut = GpuHold(
        uuid=GpuId("a-gpu1"), share=12, isolation=MIG, mig_profile="1g.5gb", mig_slices=0b1
    )
    busy = [*waiting("i", mig_profile="1g.5gb"), placed("i", Member(NodeId("a"), 1, 0, (cut,)))]
    ((_, holds),) = choose(
        given(machine, busy).capacity, spec(gpus=2, mig_profile="3g.20gb"), "default"
    )
    assert [(hold.uuid, hold.mig_slices) for hold in holds] == [
        ("a-gpu1", 0b1111_0000),
        ("a-gpu0", 0b1111),
    ]
    assert (
        choose(given(machine, busy).capacity, spec(gpus=3, mig_profile="7g.40gb"), "default")
        is NO_PLACEMENT
    )
    larger = msgspec.structs.replace(
        cards[1], memory_bytes=80 * GIB, mig_profiles=("1g.10gb", "7g.80gb")
    )
    unlike = given(msgspec.structs.replace(machine, gpus=(cards[0], larger)))
    assert (
        choose(unlike.capacity, spec(gpus=1, mig_profile="1g.10gb"), "default") is not NO_PLACEMENT
    )
    assert (
        choose(unlike.capacity, spec(gpus=2, mig_profile="1g.10gb"), "default") is NO_PLACEMENT
    ), "a quarter of one card, an eighth of the other"


def test_dropped_cache_entries_are_computed_again_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every memory of the placement is bounded."""
    nodes = [
        node("a"),
        node("b", gpus=8),
        node("c", gpus=2),
        *busy("i", "a", 0),
        *busy("j", "b", 0, 1, 2),
    ]
    requests = [spec(gpus=gpus, cpus_milli=cpus) for gpus in (1, 2, 3) for cpus in (0, 1)] * 2
    expected = [choose(given(nodes).capacity, asked, "") for asked in requests]
    for module, bound in (
        (capacity, "RANKINGS_MAX"),
        (capacity, "REQUESTS_MAX"),
        (ranking, "KEPT_MAX"),
        (hardware, "PICKS_MAX"),
    ):
        monkeypatch.setattr(module, bound, 1)
    forgetful = given(nodes).capacity
    assert [choose(forgetful, asked, "") for asked in requests] == expected
    assert len(forgetful._rankings) == len(forgetful._used) == 1
