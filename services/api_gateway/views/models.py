"""A model and its replicas as the API shows them.

Pure. The field names are the API's contract: the command line relies on them.
"""

from typing import Final

import msgspec

from libs.common.adapters import AdapterRules
from libs.common.batching import Batching
from libs.common.model import NodeId, TenantId
from libs.common.scaling_targets import ScalingTargets
from libs.common.state import model_crashes, model_view
from libs.common.state.cluster import Cluster, Endpoint, Job, Model, is_ready
from libs.common.state.rate_limits import RateLimits, at_model
from libs.common.state.tenant import Tenant
from services.api_gateway.serving.fairness import Flow
from services.api_gateway.serving.late_binding import LateBinding
from services.api_gateway.times import rfc3339

# The priorities of requests, by their band.
PRIORITIES: Final = ("normal", "low")


class ReplicaShown(msgspec.Struct):
    """A replica. Its job has the same `id`; /v1/jobs shows its output, history and explanation.

    `nodes` are all its nodes by rank; the first is `node_id`, which answers the requests.
    """

    id: str
    generation: int
    state: str
    ready: bool
    node_id: str
    address: str
    port: int
    started_at: str | None
    ready_at: str | None
    detail: str
    nodes: list[str]


class ModelShareShown(msgspec.Struct):
    """One tenant's requests of one priority.

    `tokens` are those of the last minute: input that no cache held, and output twice. `percent` is
    their part of the tokens of all tenants.
    """

    tenant: str
    priority: str
    weight: int
    waiting_requests: int
    waiting_tokens: int
    tokens: int
    percent: int


class ModelQueueShown(msgspec.Struct):
    """A model's requests in the gateway that answers.

    They wait for a replica with room. `shares` names only tenants that the principal may see.
    """

    waiting_requests: int
    waiting_tokens: int
    shares: list[ModelShareShown]


class ModelShown(msgspec.Struct):
    """A model with its replicas.

    `wanted` is the requested number of replicas; `ready` replicas, of any generation, serve now.
    With `scaling` the scheduler changes `wanted`, and `law` says why it did so last. Requests may
    name the model as `name`, as one of `aliases`, or as `served_name`, its name at its server.
    `shared_with` are the other tenants that may use it (`*`: all). `limits` are those of tenants at
    this model (`*`: of each guest without limits of its own). `adapter_names` are its LoRA
    adapters, `adapters` the rules for them. `last_crash` is empty before the first crash; after
    two in a row, the next replica begins at `next_try_at`. `queue` is set only where one model is
    shown.
    """

    name: str
    state: str
    tenant: str
    user: str
    generation: int
    wanted: int
    ready: int
    crashes: int
    last_crash: str
    last_crash_at: str | None
    deployed_at: str | None
    command: tuple[str, ...]
    workdir: str
    upload: str
    image: str
    nodes: int
    gpus: int
    gpu_share: int
    priority: int
    health_path: str
    startup_timeout_s: int
    spread: str
    health_interval_s: int
    health_timeout_s: int
    health_failures: int
    labels: dict[str, str]
    replicas: list[ReplicaShown]
    warnings: list[str] = []
    scaling: ScalingTargets | None = None
    batching: Batching | None = None
    law: str = ""
    queue: ModelQueueShown | None = None
    served_name: str = ""
    aliases: list[str] = []
    shared_with: list[str] = []
    limits: dict[str, RateLimits] = {}
    adapters: AdapterRules | None = None
    adapter_names: list[str] = []
    continues_streams: bool = False
    next_try_at: str | None = None


def model_shown(cluster: Cluster, model: Model) -> ModelShown:
    """Show the model as it is now."""
    spec = model.spec
    return ModelShown(
        name=model.name,
        state=model_view.state_of(cluster, model),
        tenant=model.tenant,
        user=model.user,
        generation=model.generation,
        wanted=model.wanted,
        ready=model_view.ready_count(cluster, model),
        crashes=model.crashes,
        last_crash=model_crashes.last_crash(cluster, model),
        last_crash_at=rfc3339(model.last_crash_ns),
        deployed_at=rfc3339(model.deployed_ns),
        command=spec.command,
        workdir=spec.workdir,
        upload=spec.upload,
        image=spec.image,
        nodes=spec.nodes,
        gpus=spec.gpus,
        gpu_share=spec.gpu_share,
        priority=spec.priority,
        health_path=spec.health_path,
        startup_timeout_s=spec.startup_timeout_s,
        spread=spec.spread,
        health_interval_s=spec.health_interval_s,
        health_timeout_s=spec.health_timeout_s,
        health_failures=spec.health_failures,
        labels=spec.labels,
        scaling=spec.scaling,
        batching=spec.batching,
        law=model.law if model.scaled_generation == model.generation else "",
        replicas=[_replica(cluster, model, job) for job in model_view.replicas(cluster, model)],
        served_name=spec.served_name,
        aliases=sorted(model.aliases),
        shared_with=sorted(model.guests),
        limits=dict(sorted(model.limits.items())),
        adapters=spec.adapters,
        adapter_names=sorted(model.adapters),
        continues_streams=spec.continues_streams,
        next_try_at=rfc3339(model_crashes.backoff_until_ns(model)),
    )


def guest_shown(cluster: Cluster, model: Model, tenant: str) -> ModelShown:
    """Show a model to a tenant that it is shared with: its names, its owner, its state and the
    tenant's own limits.

    The rest, such as the command and the replicas, is its owner's alone.
    """
    whole = model_shown(cluster, model)
    return ModelShown(
        name=whole.name,
        state=whole.state,
        tenant=whole.tenant,
        user="",
        generation=whole.generation,
        wanted=whole.wanted,
        ready=whole.ready,
        crashes=0,
        last_crash="",
        last_crash_at=None,
        deployed_at=whole.deployed_at,
        command=(),
        workdir="",
        upload="",
        image="",
        nodes=0,
        gpus=0,
        gpu_share=0,
        priority=0,
        health_path="",
        startup_timeout_s=0,
        spread="",
        health_interval_s=0,
        health_timeout_s=0,
        health_failures=0,
        labels={},
        replicas=[],
        served_name=whole.served_name,
        aliases=whole.aliases,
        limits=_limits_of(model, tenant),
        adapter_names=whole.adapter_names,
    )


def _limits_of(model: Model, tenant: str) -> dict[str, RateLimits]:
    """Return the limits of one guest."""
    found = at_model(model.limits, model.tenant, tenant)
    return {tenant: found} if found.some else {}


def queue_shown(
    cluster: Cluster, rules: LateBinding[Endpoint] | None, tenant: str | None
) -> ModelQueueShown:
    """Show a model's queue, None before the first request, with the shares of `tenant` alone or,
    for None, of all tenants.
    """
    if rules is None:
        return ModelQueueShown(0, 0, [])
    tokens = rules.shares.tokens()
    flows = sorted(tokens | rules.of_flow)
    total = sum(tokens.values())
    return ModelQueueShown(
        waiting_requests=rules.waiting_requests,
        waiting_tokens=rules.waiting_tokens,
        shares=[
            _share(cluster, rules, flow, tokens.get(flow, 0), total)
            for flow in flows
            if tenant is None or flow.tenant == tenant
        ],
    )


def _share(
    cluster: Cluster, rules: LateBinding[Endpoint], flow: Flow, tokens: int, total: int
) -> ModelShareShown:
    known = cluster.tenants.get(TenantId(flow.tenant), Tenant(TenantId(flow.tenant)))
    return ModelShareShown(
        tenant=flow.tenant,
        priority=PRIORITIES[flow.band],
        weight=known.weight,
        waiting_requests=len(rules.queues.get(flow, ())),
        waiting_tokens=rules.of_flow.get(flow, 0),
        tokens=tokens,
        percent=round(100 * tokens / total) if total else 0,
    )


def _replica(cluster: Cluster, model: Model, job: Job) -> ReplicaShown:
    member = next(iter(job.members.values()), None)
    node_id = member.node_id if member is not None else NodeId("")
    node = cluster.nodes.get(node_id)
    return ReplicaShown(
        id=job.job_id,
        generation=model.jobs[job.job_id],
        state=model_view.replica_state(job),
        ready=is_ready(job),
        node_id=node_id,
        address=node.address if node is not None else "",
        port=(member.port if member is not None else 0) or job.port,
        started_at=rfc3339(job.started_ns),
        ready_at=rfc3339(member.ready_ns if member is not None else 0),
        detail=member.detail if member is not None else "",
        nodes=list(job.members),
    )
