"""Metrics of the cluster's state: what each one counts, and the bounds on the number of series."""

from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import GpuFaulted
from libs.common.life.job_life import QUEUED
from libs.common.model import Allocation, GpuHold, GpuId, Member, NodeId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster, tenant_of
from services.api_gateway.metrics import cluster_rows as rows
from services.api_gateway.metrics import declared as d
from services.api_gateway.metrics.cluster_rows import Row, tenant_rows
from services.api_gateway.metrics.declared import Declared
from tests.given import given, member, placed, registered, started, waiting

NS = 1_000_000_000
HOUR_SHARE_MS = 100 * 3_600 * 1_000
INSTANCE = GpuHold(GpuId("a-gpu1"), 14, "mig", "1g.10gb", 1)
HISTORY = [
    registered("a", 4),
    *waiting("whole"),
    *waiting("half"),
    *waiting("small"),
    placed("whole", member("a", 0)),
    placed("half", member("a", 2, share=50)),
    placed("small", Member(NodeId("a"), 1, 0, (INSTANCE,))),
    started("whole", "a"),
    GpuFaulted(node_id=NodeId("a"), uuid=GpuId("a-gpu3"), health="offline", reason="lost"),
]


def cluster() -> Cluster:
    return given(HISTORY).cluster


def values(found: Iterable[Row], metric: Declared) -> dict[tuple[str, ...], float]:
    return {row.labels: row.value for row in found if row.metric == metric}


def told(state: Cluster, metric: Declared) -> dict[tuple[str, ...], float]:
    jobs: Mapping[str, int] = {QUEUED: 3, "completed": 7}
    heard = {NodeId("a"): 40 * NS}
    return values(rows.cluster_rows(state, jobs, heard, 42 * NS), metric)


def test_devices_are_counted_by_what_jobs_can_use_of_them() -> None:
    state = cluster()
    ((model, _), *_) = told(state, d.GPUS)
    assert told(state, d.GPUS) == {
        (model, "allocated"): 1,
        (model, "shared"): 2,
        (model, "out_of_use"): 1,
    }
    assert told(state, d.GPUS_HELD) == {(model,): 1.64}
    assert told(state, d.INSTANCES)[model, "mig", "1g.10gb"] == 1
    assert told(given([registered("a", 1)]).cluster, d.GPUS) == {(model, "available"): 1}


def test_gpu_models_beyond_the_number_of_series_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "GPU_MODELS_MAX", 1)
    monkeypatch.setattr(rows, "PROFILES_MAX", 0)
    state = cluster()
    for uuid in ("a-gpu1", "a-gpu2"):
        view = state.gpus[GpuId(uuid)]
        view.gpu = replace(view.gpu, model=uuid)
    assert told(state, d.GPUS)["other", "shared"] == 2
    assert told(state, d.INSTANCES)["other", "", ""] >= 1


def test_only_jobs_that_have_not_ended_are_counted() -> None:
    found = told(cluster(), d.JOBS)
    assert found[QUEUED,] == 3 and ("completed",) not in found and found["running",] == 0


def test_a_node_says_whether_it_is_usable_and_when_it_was_heard_and_lost() -> None:
    state = cluster()
    assert told(state, d.NODE_UP) == {("a",): 1} == told(state, d.NODE_WORKS)
    assert told(state, d.NODE_HEARD) == {("a",): 2}
    assert told(state, d.NODE_LOST) == {}
    assert told(state, d.NODES)["degraded",] == 1
    node = state.nodes[NodeId("a")]
    node.losses_ns, node.held_until_ns = (5 * NS, 9 * NS), 1
    assert told(state, d.NODE_LOST) == {("a",): 9}
    assert told(state, d.NODE_HELD) == {("a",): 1}
    node.state = "removed"
    assert told(state, d.NODE_UP) == {}
    assert values(rows.cluster_rows(cluster(), {}, {}, 0), d.NODE_HEARD) == {}


def test_nodes_beyond_the_number_of_series_are_only_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "NODES_MAX", 1)
    state = given([registered("a", 1), registered("b", 1)]).cluster
    assert len(told(state, d.NODE_UP)) == 1 and told(state, d.NODES)["healthy",] == 2


def deployed(*names: str) -> Cluster:
    return given(
        [
            f.ModelDeployed(name=name, spec=ModelSpec(command=("serve",), replicas=2))
            for name in names
        ]
    ).cluster


def test_a_model_says_how_many_replicas_are_ready_and_whether_they_crash() -> None:
    state = deployed("m")
    assert told(state, d.REPLICAS_READY) == {("m",): 0}
    assert told(state, d.REPLICAS_WANTED) == {("m",): 2}
    assert told(state, d.CRASH_LOOP) == {("m",): 0}
    state.models["m"].crashes = 3
    assert told(state, d.CRASHES) == {("m",): 3} and told(state, d.CRASH_LOOP) == {("m",): 1}
    state.models["m"].deployed = False
    assert told(state, d.CRASHES) == {}


def test_models_beyond_the_number_of_series_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MODELS_MAX", 1)
    assert told(deployed("m", "n", "o"), d.REPLICAS_WANTED) == {("m",): 2, ("other",): 4}


def test_a_tenant_without_limits_has_no_series_of_limits() -> None:
    state = cluster()
    found = list(tenant_rows(state))
    assert values(found, d.TENANT_HELD) == {("default",): 1.64}
    assert values(found, d.TENANT_WAITING) == {("default",): 0}
    for metric in (d.TENANT_MAX, d.TENANT_BUDGET, d.TENANT_LEFT, d.TENANT_SPENT):
        assert values(found, metric) == {}


def test_a_budget_counts_charges_and_the_whole_time_of_allocations() -> None:
    history = [
        registered("a", 1),
        *waiting("held", allocation=Allocation(expires_s=3_600)),
        placed("held", member("a", 0)),
    ]
    state = given(history).cluster
    tenant = tenant_of(state, TenantId("default"))
    tenant.max_gpu_share, tenant.gpu_hours, tenant.used_share_ms = 200, 4, HOUR_SHARE_MS
    (job,) = state.jobs.values()
    job.placed_ns, job.expires_ns = 0, 3_600 * NS
    found = list(tenant_rows(state))
    assert values(found, d.TENANT_MAX) == {("default",): 2}
    assert values(found, d.TENANT_USED) == {("default",): 3_600}
    assert values(found, d.TENANT_BUDGET) == {("default",): 4 * 3_600}
    assert values(found, d.TENANT_LEFT) == {("default",): 2 * 3_600}
    assert values(found, d.TENANT_SPENT) == {("default",): 0}


def test_tenants_beyond_the_number_of_series_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "TENANTS_MAX", 1)
    state = Cluster()
    for name in ("one", "two", "three", "gone"):
        tenant_of(state, TenantId(name)).waiting = 2
    state.tenants[TenantId("gone")].removed = True
    assert values(tenant_rows(state), d.TENANT_WAITING) == {("one",): 2, ("other",): 4}


def test_every_metric_has_its_unit_and_kind_in_its_name() -> None:
    for metric in (*d.PUBLIC, *d.OF_TENANTS):
        assert metric.name.startswith("muster_")
        assert metric.name.endswith("_total") == (metric.kind == d.COUNTER), metric
