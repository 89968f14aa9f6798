"""Memory pools in the ledger: a device pool lies inside the job's part, a host pool is host memory,
and a tenant's limit counts both.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.means import ENFORCED
from libs.common.messages import StopOrder
from libs.common.model import POOLS, JobId, NodeId, Serve, TenantId
from libs.common.state.cluster import Cluster, Job
from services.scheduler.decide.decide import decide
from services.scheduler.explain.explain import explain
from services.scheduler.orders.orders import NO_POOLS, start_orders
from services.scheduler.placement.forecast import UNKNOWN
from services.scheduler.queueing.backfill import HeadReservation, leaves_tenant_room
from services.scheduler.state.state import State
from tests.given import ended, given, member, placed, registered, spec, started, waiting

GIB = 1 << 30
J, A = JobId("j"), NodeId("a")
LIMIT = f.TenantSet(tenant=TenantId("default"), max_pool_bytes=10 * GIB)


def node(name: str = "a", gpus: int = 2, **fields: Any) -> f.NodeRegistered:
    known = {"isolation": {POOLS: ENFORCED}, "memory_bytes": 64 * GIB, "cpus_milli": 8_000}
    return registered(name, gpus, **known | fields)


def homes(*history: Any) -> list[str]:
    return [
        each.node_id
        for fact in decide(given(*history), 0)
        if isinstance(fact, f.JobPlaced)
        for each in fact.members
    ]


def why(*history: Any) -> dict[str, Any]:
    return explain(given(*history), J)


def test_a_pool_fits_only_where_the_job_s_part_contains_it() -> None:
    small = node("s")
    small = replace(small, gpus=tuple(replace(gpu, memory_bytes=40 * GIB) for gpu in small.gpus))
    job = waiting("j", gpu_share=50, pool_bytes=30 * GIB)
    assert homes(small, job) == []
    assert homes(small, node(), job) == ["a"]
    assert homes(small, waiting("j", pool_bytes=40 * GIB)) == ["s"]
    assert homes(small, waiting("j", gpu_memory_bytes=20 * GIB, pool_bytes=20 * GIB)) == ["s"]


def test_why_names_the_pool_and_a_change_that_starts_the_job() -> None:
    found = why(node(gpus=1), waiting("j", gpu_share=25, pool_bytes=30 * GIB))
    (blocker,) = found["blockers"]
    assert (
        blocker["what"] == "parts of GPUs too small for the pool: 30720 MiB each, at most 20480 "
        "MiB there"
    )
    assert any("--pool 19200MiB instead of 30720MiB" in what for what in found["changes"])
    assert "pool of 30720 MiB on each" in found["answer"]


def test_a_larger_part_of_the_gpu_is_a_remedy() -> None:
    found = why(node(gpus=1), waiting("j", gpu_share=1, pool_bytes=40 * GIB))
    assert any(
        "with 50 % of each GPU, which contains its pool" in what for what in found["changes"]
    )


def test_a_host_pool_is_host_memory() -> None:
    big = waiting("j", host_pool_bytes=40 * GIB, memory_bytes=20 * GIB)
    assert homes(node(), big) == ["a"]
    other = [*waiting("k", host_pool_bytes=8 * GIB), placed("k", member("a", 1))]
    assert homes(node(), other, big) == []
    found = why(node(), other, big)
    assert [each["what"] for each in found["blockers"]] == ["CPUs or memory in use"]
    assert homes(node(memory_bytes=0), waiting("j", host_pool_bytes=GIB)) == []


def test_a_node_whose_agent_is_older_than_pools_gets_no_job_with_one() -> None:
    old = replace(node(), isolation={})
    assert homes(old, waiting("j", pool_bytes=GIB)) == []
    assert homes(old, waiting("j")) == ["a"]
    assert why(old, waiting("j", pool_bytes=GIB))["blockers"][0]["what"] == (
        "--pool is not available there: the agent of this node is older than memory pools"
    )
    state = given(old, *waiting("j", pool_bytes=GIB), placed("j", member("a", 0))).cluster
    ((_, sent),) = start_orders(state, state.jobs[J], placed("j", member("a", 0)), 7)
    assert isinstance(sent, StopOrder)
    assert sent.reason == NO_POOLS


@pytest.mark.parametrize(
    ("held", "asked", "begins"),
    [
        ({"pool_bytes": 4 * GIB}, {"pool_bytes": 6 * GIB}, True),
        ({"pool_bytes": 4 * GIB}, {"pool_bytes": 6 * GIB + 1}, False),
        ({"host_pool_bytes": 4 * GIB}, {"host_pool_bytes": 7 * GIB}, False),
        ({"pool_bytes": 9 * GIB}, {}, True),
        ({}, {"pool_bytes": 11 * GIB}, False),
    ],
)
def test_a_tenant_s_limit_counts_the_pools_of_its_jobs(
    held: dict[str, int], asked: dict[str, int], begins: bool
) -> None:
    other = [*waiting("k", **held), placed("k", member("a", 1))]
    assert bool(homes(node(), LIMIT, other, waiting("j", **asked))) is begins
    assert homes(node(), other, waiting("j", **asked)) == ["a"]


def test_a_job_over_the_limit_blocks_none_behind_it() -> None:
    jobs = [*waiting("j", pool_bytes=11 * GIB), *waiting("k", pool_bytes=GIB)]
    (fact,) = decide(given(node(), LIMIT, jobs), 0)
    assert isinstance(fact, f.JobPlaced)
    assert fact.job_id == "k"


def test_why_names_the_tenant_s_limit_and_what_would_do() -> None:
    other = [*waiting("k", pool_bytes=4 * GIB), placed("k", member("a", 1))]
    found = why(node(), LIMIT, other, waiting("j", pool_bytes=8 * GIB))
    assert found["answer"] == (
        "tenant default has 4096 MiB of at most 10240 MiB of memory pools, and this job asks for "
        "8192 MiB more"
    )
    assert any("muster tenant set default --pool 12288MiB" in what for what in found["changes"])
    assert any("--pool 6144MiB instead of 8192MiB" in what for what in found["changes"])


def held(cluster: Cluster) -> tuple[int, dict[str, int]]:
    return cluster.tenants[TenantId("default")].use.held_pool_bytes, cluster.nodes[A].pools


def test_the_ledger_holds_pools_from_the_placement_to_the_release() -> None:
    job = waiting("j", gpus=2, pool_bytes=GIB, host_pool_bytes=GIB)
    history = [node(), *job, placed("j", member("a", 0, 1))]
    assert held(given(history).cluster) == (3 * GIB, {"j.1": 3 * GIB})
    assert held(given(history, started("j", "a")).cluster) == (3 * GIB, {"j.1": 3 * GIB})
    assert held(given(history, ended("j", "a")).cluster) == (0, {})


def test_the_loss_of_a_node_ends_the_pools_on_it() -> None:
    job = waiting("j", pool_bytes=GIB)
    history = [node(), *job, placed("j", member("a", 0)), started("j", "a")]
    lost = f.NodeLost(node_id=A, incarnation=1, reason="silent")
    assert held(given(history, lost).cluster) == (0, {})


def test_a_reserved_pool_counts_against_the_limit() -> None:
    kept = f.DevicesReserved(job_id=J, attempt=1, members=(member("a", 0),))
    jobs = [*waiting("j", pool_bytes=8 * GIB), *waiting("k", pool_bytes=4 * GIB)]
    state: State = given(node(), LIMIT, jobs, kept)
    assert state.reserved_pools[TenantId("default")] == 8 * GIB
    facts = decide(state, 0)
    assert [fact.job_id for fact in facts if isinstance(fact, f.JobPlaced)] == ["j"]


def test_a_backfilled_job_leaves_the_first_one_room_in_the_tenant_s_limit() -> None:
    """The first job waits for both GPUs; a short one with a pool would take its room."""
    state = given(
        node(),
        LIMIT,
        *waiting("k"),
        placed("k", member("a", 0)),
        *waiting("j", gpus=2, pool_bytes=4 * GIB),
    )
    reservation = HeadReservation(UNKNOWN, 1, TenantId("default"), 200, 8 * GIB)
    choice = [(A, member("a", 1).gpus)]
    for pool, leaves in ((2 * GIB, True), (3 * GIB, False), (0, True)):
        job = Job(JobId("short"), spec(pool_bytes=pool), TenantId("default"), "u", 9)
        assert leaves_tenant_room(state, reservation, job, choice) is leaves


def test_a_replica_is_told_no_other_pool_because_its_model_submits_it() -> None:
    job = waiting("j", pool_bytes=90 * GIB, serve=Serve("m", 1))
    changes = why(node(), job)["changes"]
    assert not any("--pool" in what or "contains its pool" in what for what in changes)
