"""Random facts with values that make sense or not: no fold may fail on them."""

from random import Random

from msgspec.structs import replace

from libs.common import arrays
from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.folds import model_fold
from libs.common.life import job_life, node_life
from libs.common.model import (
    CONTINUE,
    AttemptRef,
    Gpu,
    GpuHold,
    GpuId,
    JobId,
    JobSpec,
    Member,
    NodeId,
    Serve,
    TenantId,
)
from libs.common.model_spec import ModelSpec, Replica
from libs.common.state.cluster import Cluster
from libs.common.timing import Timing
from tests.property import (
    facts_of_batches,
    facts_of_devices,
    facts_of_fabric,
    facts_of_kept,
    facts_of_locks,
    facts_of_use,
)
from tests.property.fact_values import (
    GPUS,
    JOBS,
    MODELS,
    NODES,
    TENANTS,
    order_fields,
)


def wild(chance: Random) -> AnyFact:
    """Any fact at all, of numbers and words that make sense or not."""
    job_id, node_id, uuid = (
        chance.choice(JOBS),
        chance.choice((*NODES, NodeId("nowhere"))),
        chance.choice((*GPUS, GpuId("nothing"))),
    )
    attempt, incarnation = chance.randrange(-1, 4), chance.randrange(-1, 4)
    word = chance.choice(("", "degraded", "completed", "rejected", "cancelled", "failed", "x"))
    number = chance.choice((-(1 << 62), -1, 0, 1, 100, 1 << 62))
    members = tuple(_wild_member(chance, rank) for rank in range(chance.randrange(4)))
    attempts = tuple(
        AttemptRef(chance.choice(JOBS), chance.randrange(3)) for _ in range(chance.randrange(3))
    )
    model = chance.choice((*MODELS, "unknown"))
    ids = (job_id, JobId(f"{model}-{number}"), model_fold.replica_id(model, chance.randrange(9)))
    replicas = tuple(
        Replica(chance.choice(ids), JobSpec(command=(), serve=Serve(model, number)))
        for _ in range(chance.randrange(3))
    )
    gpus = tuple(
        Gpu(
            uuid=chance.choice(GPUS),
            index=chance.randrange(3),
            vendor=word,
            model=word,
            memory_bytes=number,
        )
        for _ in range(chance.randrange(4))
    )
    spec = JobSpec(
        command=(),
        gpus=number,
        nodes=number,
        on_control_loss=chance.choice((word, CONTINUE)),
        **order_fields(chance),
    )
    made: tuple[AnyFact, ...] = (
        f.JobSubmitted(job_id=job_id, spec=spec, tenant=chance.choice(TENANTS)),
        f.CancelRequested(job_id=job_id, signal=number, grace_s=number, user=word),
        f.NodeDeclaredDead(
            node_id=node_id, incarnation=incarnation, lost=chance.randrange(-1, 4), user=word
        ),
        f.TenantSet(
            tenant=chance.choice(TENANTS),
            max_gpu_share=number,
            max_waiting=number,
            weight=number,
            gpu_hours=number,
        ),
        f.KeyCreated(
            key_id=word,
            secret_hash=word,
            tenant=chance.choice(TENANTS),
            user=word,
            role=word,
            expires_ns=number,
        ),
        *(
            f.KeyRotated(key_id=word, secret_hash=word, old_until_ns=number),
            f.KeyRevoked(key_id=word),
            f.KeyLimitsSet(key_id=word, requests_per_minute=number, tokens_per_minute=number),
            f.ModelLimitsSet(name=model, guest=word, requests_per_minute=number),
        ),
        f.AccessRecorded(entries=b"?", count=number, dropped=number),
        f.SecretSet(tenant=chance.choice(TENANTS), name=word, version=number, user=word),
        f.SecretRemoved(tenant=chance.choice(TENANTS), name=word),
        f.NotificationSet(
            tenant=chance.choice(TENANTS),
            name=word,
            form=word,
            shown=word,
            kinds=(word,),
            version=number,
            address_id=word,
        ),
        f.NotificationRemoved(tenant=chance.choice(TENANTS), name=word),
        f.ModelDeployed(
            name=model, spec=ModelSpec(command=(), replicas=number), tenant=chance.choice(TENANTS)
        ),
        *(f.ModelScaled(name=model, replicas=number), f.ModelUndeployed(name=model)),
        *_wild_words_of_operators(node_id, word, number),
        f.NodeRemovalRequested(node_id=node_id, wait=chance.random() < 0.5),
        f.NodeRemoved(node_id=node_id),
        f.NodeRevoked(node_id=node_id, reason=word),
        f.JobUpdated(
            job_id=job_id,
            priority=number,
            time_limit_s=number,
            held=chance.choice((None, True, False)),
            user=word,
        ),
        f.RequeueRequested(job_id=job_id, attempt=attempt, user=word),
        *(
            kind(job_id=job_id, attempt=attempt, expires_ns=number)
            for kind in (f.AllocationExtended, f.AllocationWarned)
        ),
        *(f.JobAdmitted(job_id=job_id), f.JobRejected(job_id=job_id, reason=word)),
        f.UsageCharged(
            job_id=job_id, attempt=attempt, tenant=chance.choice(TENANTS), share_ms=number
        ),
        f.BudgetExhausted(tenant=chance.choice(TENANTS), gpu_hours=number, used_share_ms=number),
        f.BudgetRenewed(tenant=chance.choice(TENANTS), month=number),
        *(
            f.TermBegan(instance=word, scores={word: word}),
            f.QuotaTermBegan(instance=word),
            f.PluginDisabled(extends=word, name=word, version=word, reason=word),
            f.StateHashed(seq=number, schema=word, parts={word: b""}),
        ),
        f.ClusterConfigured(cluster_id=word, timing=Timing(number, number, number, number)),
        f.LeaseExtended(duration_ms=number),
        f.ClusterRestored(life=number, backup=word, restore_id=word),
        f.RestoreSettled(life=number),
        f.JobQueued(job_id=job_id),
        _wild_element(job_id, attempt, number),
        f.JobPlaced(job_id=job_id, attempt=attempt, members=members, port=number),
        f.JobStopOrdered(
            job_id=job_id, attempt=attempt, reason=word, signal=number, grace_ms=number
        ),
        f.JobRequeued(job_id=job_id, attempt=attempt, reason=word, counted=chance.random() < 0.5),
        f.JobClosed(job_id=job_id, attempt=attempt, outcome=word, exit_code=number),
        f.ModelAutoscaled(name=model, generation=number, replicas=number, law=word),
        f.ReplicasScaled(
            model=model,
            generation=number,
            add=replicas,
            retire=(job_id,),
            tenant=chance.choice(TENANTS),
            recovered=chance.random() < 0.5,
        ),
        f.NodeLost(
            node_id=node_id,
            incarnation=incarnation,
            reason=chance.choice((word, node_life.DECLARED_DEAD)),
            over=(job_id,) if chance.random() < 0.5 else (),
        ),
        f.NodeReturned(node_id=node_id, incarnation=incarnation),
        f.NodeRegistered(
            node_id=node_id,
            incarnation=incarnation,
            address=word,
            gpus=gpus,
            attempts=attempts,
            directory=word,
        ),
        f.JobStarted(job_id=job_id, attempt=attempt, node_id=node_id, pid=number),
        f.JobFinished(
            job_id=job_id, attempt=attempt, node_id=node_id, exit_code=number, signal=number
        ),
        f.JobRefused(job_id=job_id, attempt=attempt, node_id=node_id, reason=word),
        f.JobReleased(job_id=job_id, attempt=attempt, node_id=node_id, checks={word: word}),
        f.ReplicaReady(job_id=job_id, attempt=attempt, node_id=node_id),
        f.ReplicaUnready(job_id=job_id, attempt=attempt, node_id=node_id, reason=word),
        facts_of_fabric.wild(chance, node_id, chance.choice(NODES), number),
        *facts_of_kept.wild(
            chance,
            model=model,
            node_id=node_id,
            uuid=uuid,
            job_id=job_id,
            word=word,
            number=number,
        ),
        *facts_of_devices.wild(
            chance=chance, node_id=node_id, uuid=uuid, word=word, number=number, jobs=attempts
        ),
    )
    return chance.choice(
        (
            *made,
            *facts_of_use.wild(word, number, job_id, node_id),
            *facts_of_batches.wild(chance.choice(JOBS), number, job_id, node_id),
            *_wild_preemption(
                job_id=job_id, attempt=attempt, node_id=node_id, members=members, number=number
            ),
        )
    )


def _wild_preemption(
    job_id: JobId, attempt: int, node_id: NodeId, members: tuple[Member, ...], number: int
) -> tuple[AnyFact, ...]:
    return (
        f.JobPreempted(
            job_id=job_id,
            attempt=attempt,
            by=job_id,
            signal=number,
            grace_ms=number,
            lost_share_ms=number,
        ),
        f.DevicesReserved(job_id=job_id, attempt=attempt, members=members),
        f.JobCheckpointed(job_id=job_id, attempt=attempt, node_id=node_id, asked=number > 0),
        f.JobOverShare(
            job_id=job_id,
            attempt=attempt,
            node_id=node_id,
            uuid=GpuId("g"),
            used_bytes=2,
            share_bytes=1,
            grace_s=number,
        ),
    )


def _wild_element(array: JobId, number: int, priority: int) -> AnyFact:
    name = arrays.element_id(array, number)
    return f.ElementBegun(
        job_id=name, array=array, number=number, tenant=TENANTS[0], priority=priority
    )


def _wild_words_of_operators(node_id: NodeId, word: str, number: int) -> tuple[AnyFact, ...]:
    return (
        f.NodeInvited(node_id=node_id, secret_hash=word, expires_ns=number),
        f.NodeJoined(node_id=node_id, secret_hash=word, public_key=word),
        f.QueueSet(queue=word, policy=word, weight=number, ageing_s=number),
        f.ReservationSet(
            reservation=word,
            nodes=(node_id,),
            start_ns=number,
            end_ns=number,
            tenants=(TenantId(word),),
            users=(word,),
        ),
        f.ReservationCleared(reservation=word),
        *facts_of_locks.wild(word, number),
    )


def wild_placement(cluster: Cluster, chance: Random) -> AnyFact | None:
    """Return a placement of a queued job on arbitrary devices; None when no job is queued."""
    queued = [
        job
        for job in cluster.jobs.values()
        if job.state == job_life.QUEUED and job.elements is None
    ]
    if not queued:
        return None
    job = chance.choice(queued)
    members = [_wild_member(chance, rank) for rank in range(chance.randrange(1, 3))]
    living = [
        replace(member, incarnation=cluster.nodes[member.node_id].incarnation)
        for member in members
        if member.node_id in cluster.nodes
    ]
    return f.JobPlaced(job_id=job.job_id, attempt=job.attempt, members=tuple(living))


def _wild_member(chance: Random, rank: int) -> Member:
    shares = (-100, -1, 0, 1, 33, 50, 99, 100, 101)
    holds = tuple(
        GpuHold(chance.choice(GPUS), chance.choice(shares)) for _ in range(chance.randrange(3))
    )
    return Member(chance.choice(NODES), chance.randrange(3), rank, holds)
