"""The values of the metrics of nodes, devices, jobs, models and tenants.

Pure: read from the cluster's state at each scrape. Bounds keep the number of series small: what
lies beyond a bound is summed under `other`. Tests: tests/unit/test_cluster_metrics.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from libs.common.life import job_life, node_life
from libs.common.model import WHOLE_GPU, NodeId
from libs.common.state.budget import left_share_ms
from libs.common.state.cluster import Cluster, GpuView, Job, Model, Node, Tenant
from libs.common.state.model_view import CRASH_LOOPING, ready_count, state_of
from services.api_gateway.metrics import declared as d
from services.api_gateway.metrics.declared import Declared

NS: Final = 1_000_000_000
# A whole GPU for a second, in hundredths of a GPU times milliseconds.
SHARE_MS: Final = WHOLE_GPU * 1_000
# Nodes beyond this number are only counted; GPU models, models and tenants beyond theirs share one
# series.
NODES_MAX: Final = 2_048
GPU_MODELS_MAX: Final = 64
PROFILES_MAX: Final = 256
MODELS_MAX: Final = 256
TENANTS_MAX: Final = 1_000
OTHER: Final = "other"


class Row(NamedTuple):
    """One value of a metric, with the values of its labels."""

    metric: Declared
    labels: tuple[str, ...]
    value: float


def cluster_rows(
    cluster: Cluster, jobs: Mapping[str, int], heard_ns: Mapping[NodeId, int], now_ns: int
) -> Iterator[Row]:
    """Yield the values of everything but tenants.

    `jobs` are the numbers of jobs by state, `heard_ns` the times at which the scheduler last heard
    each node.
    """
    yield Row(d.FACTS, (), cluster.facts)
    yield Row(d.IGNORED, (), cluster.ignored)
    yield Row(d.TERM, (), cluster.epoch)
    for state in job_life.LIVE:
        yield Row(d.JOBS, (state,), jobs.get(state, 0))
    yield from _node_rows(cluster, heard_ns, now_ns)
    yield from _gpu_rows(cluster.gpus.values())
    yield from _model_rows(cluster)


def _node_rows(cluster: Cluster, heard_ns: Mapping[NodeId, int], now_ns: int) -> Iterator[Row]:
    states = Counter(node.state for node in cluster.nodes.values())
    for state in node_life.STATES:
        yield Row(d.NODES, (state,), states[state])
    present = (node for node in cluster.nodes.values() if node.state != node_life.REMOVED)
    for node in islice(present, NODES_MAX):
        yield from _node(node, heard_ns.get(node.node_id, 0), now_ns)


def _node(node: Node, heard_ns: int, now_ns: int) -> Iterator[Row]:
    name = (str(node.node_id),)
    yield Row(d.NODE_UP, name, int(node.usable))
    yield Row(d.NODE_WORKS, name, int(node.takes_work))
    yield Row(d.NODE_HELD, name, int(node.is_held))
    if heard_ns:
        yield Row(d.NODE_HEARD, name, max(0, now_ns - heard_ns) / NS)
    if node.losses_ns:
        yield Row(d.NODE_LOST, name, node.losses_ns[-1] / NS)


def _gpu_rows(gpus: Iterable[GpuView]) -> Iterator[Row]:
    counts: Counter[tuple[str, str]] = Counter()
    held: Counter[str] = Counter()
    parts: Counter[tuple[str, ...]] = Counter()
    for gpu in gpus:
        model = gpu.gpu.model if gpu.gpu.model in held or len(held) < GPU_MODELS_MAX else OTHER
        counts[model, _state(gpu)] += 1
        held[model] += gpu.held
        for part in gpu.parts.values():
            key = (model, part.isolation, part.mig_profile)
            parts[key if key in parts or len(parts) < PROFILES_MAX else (OTHER, "", "")] += 1
    for where, count in counts.items():
        yield Row(d.GPUS, where, count)
    for model, share in held.items():
        yield Row(d.GPUS_HELD, (model,), share / WHOLE_GPU)
    for place, count in parts.items():
        yield Row(d.INSTANCES, place, count)


def _state(gpu: GpuView) -> str:
    if not gpu.takes_work:
        return "out_of_use"
    if gpu.held >= WHOLE_GPU:
        return "allocated"
    return "shared" if gpu.held else "available"


def _model_rows(cluster: Cluster) -> Iterator[Row]:
    ready: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    crashes: Counter[str] = Counter()
    looping: dict[str, int] = {}
    for model in cluster.models.values():
        if not model.deployed and not model.jobs:
            continue
        label = model.name if len(looping) < MODELS_MAX else OTHER
        ready[label] += ready_count(cluster, model)
        wanted[label] += model.wanted if model.deployed else 0
        crashes[label] += model.crashes
        looping[label] = max(looping.get(label, 0), _is_looping(cluster, model))
    for label, value in looping.items():
        yield Row(d.REPLICAS_READY, (label,), ready[label])
        yield Row(d.REPLICAS_WANTED, (label,), wanted[label])
        yield Row(d.CRASHES, (label,), crashes[label])
        yield Row(d.CRASH_LOOP, (label,), value)


def _is_looping(cluster: Cluster, model: Model) -> int:
    return int(state_of(cluster, model) == CRASH_LOOPING)


def tenant_rows(cluster: Cluster) -> Iterator[Row]:
    """Yield the values of each tenant. They name tenants: operators only."""
    allocations = list(_allocations(cluster))
    present = (tenant for tenant in cluster.tenants.values() if not tenant.removed)
    for tenant in islice(present, TENANTS_MAX):
        yield from _tenant(cluster, tenant, allocations)
    rest = list(present)
    if rest:
        yield Row(d.TENANT_HELD, (OTHER,), sum(one.held_share for one in rest) / WHOLE_GPU)
        yield Row(d.TENANT_WAITING, (OTHER,), sum(one.waiting for one in rest))
        yield Row(d.TENANT_USED, (OTHER,), sum(one.used_share_ms for one in rest) / SHARE_MS)


def _tenant(cluster: Cluster, tenant: Tenant, allocations: list[Job]) -> Iterator[Row]:
    name = (str(tenant.tenant),)
    yield Row(d.TENANT_HELD, name, tenant.held_share / WHOLE_GPU)
    yield Row(d.TENANT_WAITING, name, tenant.waiting)
    yield Row(d.TENANT_USED, name, tenant.used_share_ms / SHARE_MS)
    if tenant.max_gpu_share:
        yield Row(d.TENANT_MAX, name, tenant.max_gpu_share / WHOLE_GPU)
    if tenant.gpu_hours:
        yield Row(d.TENANT_BUDGET, name, tenant.gpu_hours * 3_600)
        left = left_share_ms(cluster, tenant, allocations)
        yield Row(d.TENANT_LEFT, name, left / SHARE_MS)
        yield Row(d.TENANT_SPENT, name, int(tenant.exhausted))


def _allocations(cluster: Cluster) -> Iterator[Job]:
    """Yield the allocations that are on nodes; one on several nodes once."""
    found = dict.fromkeys(job_id for node in cluster.nodes.values() for job_id in node.members)
    for job_id in found:
        job = cluster.jobs[job_id]
        if job.spec.allocation is not None:
            yield job
