"""Apply facts about models and their replicas: one function per kind.

Pure and total, called by `fold.apply` and `job_fold` only. Facts of the scheduler about replicas
commute with facts of the gateways: the place of replicas in the queue is the one of the model's
first deployment, and crashes count only for the deployed generation.
"""

from typing import Final

from libs.common import facts as f
from libs.common import reasons
from libs.common.adapters import Adapter
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import former_fold
from libs.common.life import job_life
from libs.common.model import JobId, NodeId, TenantId
from libs.common.model_spec import Replica
from libs.common.state.cluster import (
    Cancel,
    Cluster,
    Job,
    MemberView,
    Model,
    is_tenant_removed,
    tenant_of,
)
from libs.common.state.rate_limits import RateLimits

# If a replica was ready for this long before it crashed, the count of crashes starts again at 1.
STEADY_NS: Final = 60_000_000_000


def deployed(cluster: Cluster, fact: f.ModelDeployed, stamp: Stamp) -> Change:
    """Deploy or redeploy a model.

    A deployed model belongs to its tenant. The name of an undeployed model is free for all tenants.
    A repeated request counts once. A removed tenant deploys nothing, because another gateway can
    record this while the tenant is removed. Models that were undeployed long ago leave the state.
    """
    if is_tenant_removed(cluster, fact.tenant):
        return IGNORED
    model = cluster.models.get(fact.name)
    if model is None:
        tenant_of(cluster, fact.tenant)
        cluster.models[fact.name] = former_fold.first_deployment(cluster, fact, stamp)
        cluster.names_changes += 1
        former_fold.forget(cluster, stamp.at_ns)
        return Change((), (), (fact.name,))
    if model.deployed and (
        model.tenant != fact.tenant or (fact.request and fact.request == model.request)
    ):
        return IGNORED
    tenant_of(cluster, fact.tenant)
    cluster.names_changes += 1
    if not model.deployed or model.spec.served_name != fact.spec.served_name:
        model.served_seq = stamp.seq
    if model.tenant != fact.tenant:
        model.owner_seq = stamp.seq
    model.tenant, model.user, model.spec, model.replicas = (
        fact.tenant,
        fact.user,
        fact.spec,
        fact.spec.replicas,
    )
    model.deployed, model.deployed_ns, model.generation = True, stamp.at_ns, model.generation + 1
    model.crashes, model.last_crash_ns, model.last_crash, model.request = 0, 0, "", fact.request
    former_fold.forget(cluster, stamp.at_ns)
    return Change((), (), (fact.name,))


def scaled(cluster: Cluster, fact: f.ModelScaled, stamp: Stamp) -> Change:
    model = _owned(cluster, fact.name, fact.tenant)
    if model is None or fact.replicas < 0:
        return IGNORED
    model.replicas = fact.replicas
    return Change((), (), (fact.name,))


def autoscaled(cluster: Cluster, fact: f.ModelAutoscaled, stamp: Stamp) -> Change:
    """Store the scheduler's number of replicas.

    It is kept beside the user's, with its generation, so the order of this fact and of those of the
    gateways does not matter.
    """
    model = cluster.models.get(fact.name)
    if model is None or fact.replicas < 0:
        return IGNORED
    model.autoscaled, model.scaled_generation = fact.replicas, fact.generation
    model.law = fact.law
    return Change((), (), (fact.name,))


def undeployed(cluster: Cluster, fact: f.ModelUndeployed, stamp: Stamp) -> Change:
    model = _owned(cluster, fact.name, fact.tenant)
    if model is None:
        return IGNORED
    _undeploy(cluster, model, stamp)
    return Change((), (), (fact.name,))


def tenant_removed(cluster: Cluster, tenant: TenantId, stamp: Stamp) -> tuple[str, ...]:
    """Undeploy all models of a tenant and return their names."""
    own = [each for each in cluster.models.values() if each.deployed and each.tenant == tenant]
    for model in own:
        _undeploy(cluster, model, stamp)
    return tuple(model.name for model in own)


def _undeploy(cluster: Cluster, model: Model, stamp: Stamp) -> None:
    model.deployed, model.replicas, model.aliases, model.guests = False, 0, {}, {}
    model.limits, model.undeployed_ns = {}, stamp.at_ns
    model.adapters, model.adapters_dropped = {}, False
    cluster.names_changes += 1


def alias_set(cluster: Cluster, fact: f.ModelAliasSet, stamp: Stamp) -> Change:
    model = _owned(cluster, fact.name, fact.tenant)
    return _set(cluster, model, key=fact.alias, removed=fact.removed, stamp=stamp, shares=False)


def share_set(cluster: Cluster, fact: f.ModelShareSet, stamp: Stamp) -> Change:
    model = _owned(cluster, fact.name, fact.tenant)
    change = _set(cluster, model, key=fact.guest, removed=fact.removed, stamp=stamp, shares=True)
    if model is not None and fact.removed and change is not IGNORED:
        model.limits.pop(fact.guest, None)
    return change


def limits_set(cluster: Cluster, fact: f.ModelLimitsSet, stamp: Stamp) -> Change:
    """Set the limits of a tenant at a deployed model. They end with its share."""
    model = _owned(cluster, fact.name, fact.tenant)
    if model is None:
        return IGNORED
    limits = RateLimits(fact.requests_per_minute, fact.tokens_per_minute)
    if limits.some:
        model.limits[fact.guest] = limits
    elif model.limits.pop(fact.guest, None) is None:
        return IGNORED
    return Change((), (), (fact.name,))


def _owned(cluster: Cluster, name: str, tenant: TenantId) -> Model | None:
    """Return a deployed model unless it belongs to another tenant than the fact was about."""
    model = cluster.models.get(name)
    if model is None or not model.deployed or (tenant and tenant != model.tenant):
        return None
    return model


def _set(
    cluster: Cluster, model: Model | None, key: str, removed: bool, stamp: Stamp, shares: bool
) -> Change:
    """Add an alias or a guest of a deployed model, or remove it."""
    if model is None:
        return IGNORED
    entries = model.guests if shares else model.aliases
    if removed:
        if entries.pop(key, None) is None:
            return IGNORED
    else:
        entries.setdefault(key, stamp.seq)
    cluster.names_changes += 1
    return Change((), (), (model.name,))


def adapter_set(cluster: Cluster, fact: f.ModelAdapterSet, stamp: Stamp) -> Change:
    """Add an adapter of a deployed model, change its path, or remove it."""
    model = _owned(cluster, fact.name, fact.tenant)
    if model is None:
        return IGNORED
    known = model.adapters.get(fact.adapter)
    if known is None if fact.removed else known is not None and known.path == fact.path:
        return IGNORED
    model.adapters_dropped |= known is not None
    if fact.removed:
        del model.adapters[fact.adapter]
    else:
        model.adapters[fact.adapter] = Adapter(fact.path, stamp.seq, stamp.at_ns, fact.user)
    cluster.names_changes += 1
    return Change((), (), (model.name,))


def replicas_scaled(cluster: Cluster, fact: f.ReplicasScaled, stamp: Stamp) -> Change:
    model = cluster.models.get(fact.model)
    if model is None:
        return IGNORED
    touched = [
        replica.job_id
        for replica in fact.add
        if _begin(cluster, model, fact=fact, replica=replica, stamp=stamp)
    ]
    touched += [job_id for job_id in fact.retire if _retire(cluster, model, fact, job_id)]
    if fact.recovered and fact.generation == model.generation:
        model.crashes = 0
    return Change(tuple(touched), (), (fact.model,))


def _begin(
    cluster: Cluster, model: Model, fact: f.ReplicasScaled, replica: Replica, stamp: Stamp
) -> bool:
    """Create a replica's job, admitted and queued from the start. Return False if it exists."""
    job_id = replica.job_id
    ordinal = ordinal_of(model.name, job_id)
    if ordinal < model.next_ordinal or job_id in cluster.jobs:
        return False
    model.next_ordinal = ordinal + 1
    model.jobs[job_id] = fact.generation
    job = Job(
        job_id=job_id,
        spec=replica.spec,
        tenant=fact.tenant,
        user=fact.user,
        seq=model.seq,
        state=job_life.JOB_LIFE["", "replicas.scaled"],
        admitted=True,
    )
    job.submitted_ns = job.queued_ns = stamp.at_ns
    cluster.jobs[job_id] = job
    tenant_of(cluster, fact.tenant).waiting += 1
    return True


def _retire(cluster: Cluster, model: Model, fact: f.ReplicasScaled, job_id: JobId) -> bool:
    """Retire a replica. If a user cancelled it too, it is stopped at once."""
    if job_id not in model.jobs:
        return False
    job = cluster.jobs[job_id]
    cancel = Cancel(job.spec.grace_s if fact.grace_s is None else fact.grace_s, 15)
    if job.cancel is None:
        job.drain_until_ns = fact.drain_until_ns
    job.cancel = cancel if job.cancel is None else min(job.cancel, cancel)
    return True


def replica_id(model: str, ordinal: int) -> JobId:
    return JobId(f"{model}-{ordinal}")


def ordinal_of(model: str, job_id: JobId) -> int:
    """Return the replica's number; -1 if the id does not belong to this model."""
    name, _, number = job_id.rpartition("-")
    return (
        int(number)
        if name == model and number.isascii() and number.isdigit() and len(number) < 10
        else -1
    )


def ready(cluster: Cluster, fact: f.ReplicaReady, stamp: Stamp) -> Change:
    member = _serving(cluster, fact.job_id, fact.attempt, fact.node_id)
    if member is None:
        return IGNORED
    member.ready, member.ready_ns, member.detail = True, member.ready_ns or stamp.at_ns, ""
    return Change((fact.job_id,))


def unready(cluster: Cluster, fact: f.ReplicaUnready, stamp: Stamp) -> Change:
    member = _serving(cluster, fact.job_id, fact.attempt, fact.node_id)
    if member is None:
        return IGNORED
    member.ready, member.detail = False, fact.reason
    return Change((fact.job_id,))


def _serving(cluster: Cluster, job_id: JobId, attempt: int, node_id: NodeId) -> MemberView | None:
    """Return the running member of a replica's attempt; None if there is none."""
    job = cluster.jobs.get(job_id)
    if job is None or job.spec.serve is None or job.attempt != attempt:
        return None
    member = job.members.get(node_id)
    return member if member is not None and member.state == job_life.STARTED else None


def closed(cluster: Cluster, job: Job, fact: f.JobClosed, stamp: Stamp) -> tuple[str, ...]:
    """Note the end of a replica, and a crash if it was not requested. Return the model's name."""
    serve = job.spec.serve
    model = cluster.models.get(serve.model) if serve is not None else None
    if model is None or serve is None or model.jobs.pop(job.job_id, None) is None:
        return ()
    model.last_ended_ns = stamp.at_ns
    if fact.outcome != job_life.CANCELLED and fact.reason not in reasons.BY_THE_MACHINE:
        _crashed(model, job, generation=serve.generation, fact=fact, stamp=stamp)
    return (model.name,)


def dated(cluster: Cluster, fact: f.JobClosed, stamp: Stamp) -> None:
    """Set the time of a replica's end that was folded ahead of the log and is now acknowledged."""
    job = cluster.jobs.get(fact.job_id)
    serve = job.spec.serve if job is not None else None
    model = cluster.models.get(serve.model) if serve is not None else None
    if model is not None:
        model.last_ended_ns = stamp.at_ns


def _crashed(model: Model, job: Job, generation: int, fact: f.JobClosed, stamp: Stamp) -> None:
    """Count a crash. Replicas that existed at the last counted crash belong to its wave."""
    next_wave = ordinal_of(model.name, job.job_id) >= model.wave
    if next_wave:
        model.wave = model.next_ordinal
    if generation != model.generation:
        return
    model.crashes = 1 if was_steady(job) else model.crashes + int(next_wave)
    model.last_crash_ns = stamp.at_ns
    code = f"exit code {fact.exit_code}" if fact.exit_code is not None else ""
    model.last_crash = ", ".join(
        word for word in (fact.reason or fact.outcome, code, job.job_id) if word
    )


def was_steady(job: Job) -> bool:
    """Return whether the replica was ready for STEADY_NS before it ended.

    Both times are of the node's clock, so a scheduler that works ahead of the log gets the same
    result.
    """
    return any(
        member.ready_ns and member.ended_ns - member.ready_ns >= STEADY_NS
        for member in job.members.values()
    )
