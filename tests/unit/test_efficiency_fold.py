"""Prices in the state, and what the charge of an ended attempt says about its devices."""

from typing import Any

from libs.common import facts as f
from libs.common import prices
from libs.common.change import IGNORED
from libs.common.facts import ChargePart, DeviceUse
from libs.common.folds import efficiency_fold
from libs.common.model import Gpu, GpuHold, GpuId, JobId, Member, NodeId
from libs.common.prices import Price
from libs.common.state.cluster import Charge, Cluster
from services.quota.decide import charge
from services.quota.state import State
from tests.given import (
    SECOND_NS,
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

J = JobId("j")
USE = DeviceUse(
    devices=2, used=1, sampled_ms=1_000, busy_ms=250, peak_percent=80, energy_mj=40, simulated=True
)


def price(micros: int, name: str = "h100", removed: bool = False) -> f.PriceSet:
    return f.PriceSet(name=name, micros_per_hour=micros, currency="EUR", removed=removed)


def run(*uses: DeviceUse | None, share: int = 100) -> Cluster:
    """A job on one node for each use, with two devices there, that ran for one second."""
    nodes = [f"n{at}" for at in range(len(uses))]
    cluster = given(
        *(registered(node) for node in nodes),
        waiting("j", nodes=len(nodes), gpus=2),
        placed("j", *(member(node, 0, 1, rank=at, share=share) for at, node in enumerate(nodes))),
        *(started("j", node) for node in nodes),
    ).cluster
    for node, use in zip(nodes, uses, strict=True):
        tell(cluster, finished("j", node, run_ms=1_000, use=use), at_s=1)
        tell(cluster, released("j", node), at_s=1)
    tell(cluster, f.JobClosed(job_id=J, attempt=1, outcome="completed"), at_s=2)
    return cluster


def charge_of(cluster: Cluster) -> Charge:
    (found,) = cluster.uncharged.values()
    return found


def test_a_charge_says_what_was_busy_and_idle_and_on_which_model() -> None:
    cluster = run(USE, None)
    found = charge_of(cluster)
    assert (found.share_ms, found.gpus) == (400_000, 4)
    # Half of the time of the first node's devices was measured, and nothing of the second node's.
    assert (found.busy_share_ms, found.idle_share_ms) == (25_000, 75_000)
    assert found.models == (("Simulated H100", 400_000),) and found.use == USE
    assert (found.began_ns, found.ended_ns) == (0, 2 * SECOND_NS)
    assert cluster.jobs[J].use == USE


def test_quota_charges_the_cost_by_the_price_list() -> None:
    cluster = run(USE)
    tell(cluster, price(3_600_000))
    (fact,) = charge(State(cluster), 0)
    assert isinstance(fact, f.UsageCharged)
    assert fact.parts == (ChargePart("Simulated H100", 200_000, 3_600_000, 2_000, "EUR"),)
    assert (fact.gpus, fact.use, fact.busy_share_ms) == (2, USE, 25_000)


def test_models_beyond_the_bound_count_together(monkeypatch: Any) -> None:
    monkeypatch.setattr(efficiency_fold, "MODELS_MAX", 1)
    gpus = tuple(
        Gpu(uuid=GpuId(name), index=at, vendor="v", model=name, memory_bytes=1)
        for at, name in enumerate(("a", "b", "c"))
    )
    node = f.NodeRegistered(node_id=NodeId("n"), incarnation=1, address="", gpus=gpus)
    holds = tuple(GpuHold(gpu.uuid) for gpu in gpus)
    cluster = given(node, waiting("j"), placed("j", Member(NodeId("n"), 1, 0, holds))).cluster
    for fact in (started("j", "n"), finished("j", "n", run_ms=5), released("j", "n")):
        tell(cluster, fact)
    tell(cluster, f.JobClosed(job_id=J, attempt=1, outcome="completed"))
    assert charge_of(cluster).models == (("a", 500), ("other", 1_000))


def test_a_price_counts_from_its_moment_on_and_moments_never_go_backwards() -> None:
    cluster = given().cluster
    for at_s, fact in ((5, price(1)), (3, price(2)), (9, price(0, removed=True))):
        tell(cluster, fact, at_s=at_s)
    assert cluster.prices == {
        "h100": [
            Price(5 * SECOND_NS, 1, "EUR"),
            Price(5 * SECOND_NS, 2, "EUR"),
            Price(9 * SECOND_NS, 0, ""),
        ]
    }


def test_the_price_list_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(prices, "NAMES_MAX", 1)
    cluster = given().cluster
    assert tell(cluster, price(1, removed=True)) is IGNORED
    for micros in range(prices.KEPT_MAX + 1):
        tell(cluster, price(micros), at_s=micros)
    assert tell(cluster, price(1, "a100")) is IGNORED
    assert [each.micros_per_hour for each in cluster.prices["h100"]] == list(
        range(1, prices.KEPT_MAX + 1)
    )
