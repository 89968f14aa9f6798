"""A model and its replicas as the API shows them.

Pure. The field names are the API's contract: the command line relies on them.
"""

import msgspec

from libs.common.model import NodeId
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Job, Model, is_ready
from services.api_gateway.times import rfc3339


class ReplicaShown(msgspec.Struct):
    """A replica. Its job has the same `id`; /v1/jobs shows its output, history and explanation."""

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


class ModelShown(msgspec.Struct):
    """A model with its replicas.

    `wanted` is the requested number of replicas; `ready` replicas, of any generation, serve now.
    `last_crash` is empty before the first crash.
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


def model_shown(cluster: Cluster, model: Model) -> ModelShown:
    """Show the model as it is now."""
    spec = model.spec
    return ModelShown(
        name=model.name,
        state=model_view.state_of(cluster, model),
        tenant=model.tenant,
        user=model.user,
        generation=model.generation,
        wanted=model.replicas,
        ready=model_view.ready_count(cluster, model),
        crashes=model.crashes,
        last_crash=model.last_crash,
        last_crash_at=rfc3339(model.last_crash_ns),
        deployed_at=rfc3339(model.deployed_ns),
        command=spec.command,
        workdir=spec.workdir,
        upload=spec.upload,
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
        replicas=[_replica(cluster, model, job) for job in model_view.replicas(cluster, model)],
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
    )
