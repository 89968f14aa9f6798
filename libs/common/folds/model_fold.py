"""How each fact about a model or its replicas changes them: one function per kind, named after the
kind.

Pure and total, called by `fold.apply` and `job_fold` alone. What the scheduler says of replicas
depends on nothing that a gateway may say meanwhile: their place in the queue is the model's first,
and crashes count only for the generation that is deployed.
"""

from typing import Final

from libs.common import facts as f
from libs.common import reasons
from libs.common.change import IGNORED, Change, Stamp
from libs.common.life import job_life
from libs.common.model import JobId, NodeId, Replica
from libs.common.state.cluster import Cancel, Cluster, Job, MemberView, Model, tenant_of

# A replica that was ready for so long before it died begins a new count.
STEADY_NS: Final = 60_000_000_000


def deployed(cluster: Cluster, fact: f.ModelDeployed, stamp: Stamp) -> Change:
    """A living model is its tenant's; the name of an undeployed one is free for any.

    A request that was repeated is one.
    """
    model = cluster.models.get(fact.name)
    if model is None:
        tenant_of(cluster, fact.tenant)
        model = Model(
            fact.name,
            fact.tenant,
            fact.user,
            fact.spec,
            stamp.seq,
            fact.spec.replicas,
            deployed_ns=stamp.at_ns,
        )
        model.request = fact.request
        cluster.models[fact.name] = model
        return Change((), (), (fact.name,))
    if model.deployed and (
        model.tenant != fact.tenant or (fact.request and fact.request == model.request)
    ):
        return IGNORED
    tenant_of(cluster, fact.tenant)
    model.tenant, model.user, model.spec, model.replicas = (
        fact.tenant,
        fact.user,
        fact.spec,
        fact.spec.replicas,
    )
    model.deployed, model.deployed_ns, model.generation = True, stamp.at_ns, model.generation + 1
    model.crashes, model.last_crash_ns, model.last_crash, model.request = 0, 0, "", fact.request
    return Change((), (), (fact.name,))


def scaled(cluster: Cluster, fact: f.ModelScaled, stamp: Stamp) -> Change:
    model = cluster.models.get(fact.name)
    if model is None or not model.deployed or fact.replicas < 0:
        return IGNORED
    model.replicas = fact.replicas
    return Change((), (), (fact.name,))


def undeployed(cluster: Cluster, fact: f.ModelUndeployed, stamp: Stamp) -> Change:
    model = cluster.models.get(fact.name)
    if model is None or not model.deployed:
        return IGNORED
    model.deployed, model.replicas = False, 0
    return Change((), (), (fact.name,))


def replicas_scaled(cluster: Cluster, fact: f.ReplicasScaled, stamp: Stamp) -> Change:
    model = cluster.models.get(fact.model)
    if model is None:
        return IGNORED
    touched = [
        replica.job_id for replica in fact.add if _begin(cluster, model, fact, replica, stamp)
    ]
    touched += [job_id for job_id in fact.retire if _retire(cluster, model, fact, job_id)]
    return Change(tuple(touched), (), (fact.model,))


def _begin(
    cluster: Cluster, model: Model, fact: f.ReplicasScaled, replica: Replica, stamp: Stamp
) -> bool:
    """A job that nobody submitted: admitted and in the queue from the start."""
    job_id = replica.job_id
    ordinal = ordinal_of(model.name, job_id)
    if ordinal < model.next_ordinal or job_id in cluster.jobs:
        return False
    model.next_ordinal = ordinal + 1
    model.jobs[job_id] = fact.generation
    job = Job(
        job_id,
        replica.spec,
        fact.tenant,
        fact.user,
        model.seq,
        job_life.JOB_LIFE["", "replicas.scaled"],
        admitted=True,
    )
    job.submitted_ns = job.queued_ns = stamp.at_ns
    cluster.jobs[job_id] = job
    tenant_of(cluster, fact.tenant).waiting += 1
    return True


def _retire(cluster: Cluster, model: Model, fact: f.ReplicasScaled, job_id: JobId) -> bool:
    """A replica that a user cancelled too is stopped at once, whichever of both came first."""
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
    """The replica's number; -1 when the id is not one of this model."""
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
    """The running member of a replica; None when there is none of this attempt."""
    job = cluster.jobs.get(job_id)
    if job is None or job.spec.serve is None or job.attempt != attempt:
        return None
    member = job.members.get(node_id)
    return member if member is not None and member.state == job_life.STARTED else None


def closed(cluster: Cluster, job: Job, fact: f.JobClosed, stamp: Stamp) -> tuple[str, ...]:
    """A replica has ended: the model has one fewer, and one crash more if nobody asked for it.

    Gives the model's name.
    """
    serve = job.spec.serve
    model = cluster.models.get(serve.model) if serve is not None else None
    if model is None or serve is None or model.jobs.pop(job.job_id, None) is None:
        return ()
    if fact.outcome != job_life.CANCELLED and fact.reason not in reasons.BY_THE_MACHINE:
        _crashed(model, job, serve.generation, fact, stamp)
    return (model.name,)


def _crashed(model: Model, job: Job, generation: int, fact: f.JobClosed, stamp: Stamp) -> None:
    """Replicas that began before the last crash was counted are of its wave, and count no more."""
    next_wave = ordinal_of(model.name, job.job_id) >= model.wave
    if next_wave:
        model.wave = model.next_ordinal
    if generation != model.generation:
        return
    model.crashes = 1 if _was_steady(job) else model.crashes + int(next_wave)
    model.last_crash_ns = stamp.at_ns
    code = f"exit code {fact.exit_code}" if fact.exit_code is not None else ""
    model.last_crash = ", ".join(
        word for word in (fact.reason or fact.outcome, code, job.job_id) if word
    )


def _was_steady(job: Job) -> bool:
    """Both times are of the node's clock, so that whoever folds ahead of the log finds the same."""
    return any(
        member.ready_ns and member.ended_ns - member.ready_ns >= STEADY_NS
        for member in job.members.values()
    )
