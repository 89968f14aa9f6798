"""Facts by chance, in a small world: what right writers could say in a state, and what nobody
should ever say.

`moves` is the definition of "without a causal link" for tests/property/test_commute.py: two facts
have none when both could be recorded in one and the same state, each by a writer that has not seen
the other.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from libs.common import arrays
from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.folds import model_fold
from libs.common.life import gpu_life, job_life, node_life
from libs.common.model import (
    CONTINUE,
    PER_LIFE,
    PER_MONTH,
    STOP,
    WHOLE_GPU,
    Allocation,
    Array,
    AttemptRef,
    Gpu,
    GpuHold,
    GpuId,
    JobId,
    JobSpec,
    Member,
    ModelSpec,
    NodeId,
    Replica,
    Serve,
    TenantId,
    Timing,
)
from libs.common.state.cluster import Cluster, Job, Model, Node, all_over, owes_nothing
from libs.common.state.ordering import AFTER, POLICIES
from services.scheduler.leases.renewals import is_empty
from tests.property import facts_of_devices

NODES: Final = tuple(NodeId(name) for name in ("n1", "n2", "n3"))
GPUS: Final = tuple(GpuId(f"g{number}") for number in range(1, 6))
JOBS: Final = tuple(JobId(f"j{number}") for number in range(1, 7))
MODELS: Final = ("m1", "m2")
# A state directory's name; empty in what was recorded before there were any.
DIRECTORIES: Final = ("", "one", "one", "other")
KEYS: Final = ("k1", "k2")
TENANTS: Final = tuple(TenantId(name) for name in ("default", "physics"))
SHARES: Final = (25, 50, WHOLE_GPU)
OUTCOMES: Final = (job_life.COMPLETED, job_life.FAILED, job_life.CANCELLED)


def moves(cluster: Cluster, chance: Random) -> list[AnyFact]:
    """What each writer could rightly record now, one of each form."""
    return [
        *by_gateways(cluster, chance),
        *by_quota(cluster, chance),
        *by_scheduler(cluster, chance),
        *by_nodes(cluster, chance),
    ]


def by_gateways(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for job_id in JOBS:
        if job_id not in cluster.jobs:
            spec = JobSpec(
                command=("true",), on_control_loss=chance.choice((STOP, CONTINUE)), **_order(chance)
            )
            yield f.JobSubmitted(job_id=job_id, spec=spec, tenant=chance.choice(TENANTS))
    for job in cluster.jobs.values():
        if job.state not in job_life.ENDED:
            yield f.CancelRequested(job_id=job.job_id, grace_s=chance.randrange(3), user="ada")
            if job.elements is not None:
                yield f.CancelRequested(
                    job_id=arrays.element_id(job.job_id, chance.randrange(3)),
                    grace_s=chance.randrange(3),
                )
    for job in cluster.jobs.values():
        yield f.JobUpdated(
            job_id=job.job_id,
            priority=chance.choice((None, 0, 99)),
            held=chance.choice((None, True, False)),
        )
        if job.state in job_life.ON_NODES:
            yield f.RequeueRequested(job_id=job.job_id, attempt=job.attempt)
            if job.spec.allocation is not None:
                yield f.AllocationExtended(
                    job_id=job.job_id, attempt=job.attempt, expires_ns=chance.randrange(9)
                )
    yield f.QueueSet(
        queue=chance.choice(("default", "night")),
        policy=chance.choice(POLICIES),
        time_slice_s=chance.choice((0, 0, 60)),
    )
    start_ns, window = chance.randrange(200) * 1_000_000_000, chance.choice(("course", "night"))
    tenants = (chance.choice(TENANTS),) if chance.random() < 0.5 else ()
    nodes = tuple(chance.sample(NODES, chance.randint(1, 2)))
    yield f.ReservationSet(
        reservation=window,
        nodes=nodes,
        start_ns=start_ns,
        end_ns=start_ns + chance.randrange(99) * 1_000_000_000,
        tenants=tenants,
    )
    yield f.ReservationCleared(reservation=window)
    yield f.TenantSet(
        tenant=chance.choice(TENANTS),
        max_waiting=chance.randrange(3),
        gpu_hours=chance.randrange(3),
        gpu_hours_per=chance.choice((PER_LIFE, PER_MONTH)),
        removed=chance.random() < 0.1,
    )
    yield f.KeyCreated(
        key_id=chance.choice(KEYS),
        secret_hash="h",
        tenant=chance.choice(TENANTS),
        user="ada",
        role="member",
    )
    yield f.KeyRotated(key_id=chance.choice(KEYS), secret_hash="g")
    yield f.KeyRevoked(key_id=chance.choice(KEYS))
    yield f.AccessRecorded(entries=b"", count=0)
    yield f.SecretSet(tenant=chance.choice(TENANTS), name="s")
    if cluster.secrets:
        yield f.SecretRemoved(tenant=chance.choice(TENANTS), name="s")
    for name in MODELS:
        yield f.ModelDeployed(
            name=name, spec=ModelSpec(command=("serve",)), tenant=chance.choice(TENANTS)
        )
        yield f.ModelScaled(name=name, replicas=chance.randrange(4))
        yield f.ModelUndeployed(name=name)
    yield from facts_of_devices.by_gateways(cluster, chance)
    for node in cluster.nodes.values():
        if not node.usable:
            yield f.NodeDeclaredDead(
                node_id=node.node_id, incarnation=node.incarnation, lost=node.lost
            )
    yield from _memberships(cluster, chance)


def _order(chance: Random) -> dict[str, Any]:
    """Of few jobs a dependency on another, which may be over or unknown."""
    array = (
        Array(((0, chance.randrange(3), 1),), chance.randrange(3))
        if chance.random() < 0.25
        else None
    )
    after = tuple(
        (chance.choice(AFTER), chance.choice(JOBS)) for _ in range(chance.choice((0, 0, 1, 2)))
    )
    allocation = chance.choice((None, None, None, Allocation(9, 3), Allocation(9, 3)))
    return {
        "allocation": allocation,
        "after": after,
        "singleton": chance.random() < 0.3,
        "hold": chance.random() < 0.1,
        "cpus_milli": chance.choice((0, 500)),
        "array": array if allocation is None else None,
    }


def _memberships(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    node_id = chance.choice(NODES)
    member = cluster.memberships.get(node_id)
    if member is None or not member.public_key:
        yield f.NodeInvited(
            node_id=node_id, secret_hash=chance.choice("ab"), expires_ns=chance.randrange(9)
        )
    if member is not None and member.secret_hash and not member.public_key:
        yield f.NodeJoined(
            node_id=node_id, secret_hash=member.secret_hash, public_key=chance.choice("UV")
        )
    if chance.random() < 0.15:
        yield f.NodeRemovalRequested(node_id=node_id, wait=chance.random() < 0.5)
        yield f.NodeRevoked(node_id=node_id, reason=chance.choice(("", "it wrote too much")))


def by_quota(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for job in cluster.jobs.values():
        if job.state == job_life.PENDING and not job.admitted:
            yield f.JobAdmitted(job_id=job.job_id)
            yield f.JobRejected(job_id=job.job_id, reason="too many wait")
    for due in cluster.uncharged.values():
        share_ms, hour = chance.randrange(100), chance.randrange(9)
        yield f.UsageCharged(
            job_id=due.job_id, attempt=due.attempt, tenant=due.tenant, share_ms=share_ms, hour=hour
        )
    for tenant in cluster.tenants.values():
        if tenant.gpu_hours and not tenant.exhausted:
            month = tenant.month if tenant.monthly else 0
            yield f.BudgetExhausted(
                tenant=tenant.tenant, gpu_hours=tenant.gpu_hours, used_share_ms=0, month=month
            )
        if tenant.monthly:
            yield f.BudgetRenewed(tenant=tenant.tenant, month=tenant.month + chance.randrange(2))


def by_scheduler(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    yield f.TermBegan(
        instance=chance.choice("ab"),
        orders={"mine": chance.choice("12")} if chance.random() < 0.5 else {},
    )
    yield f.PluginDisabled(
        extends="order", name="mine", version=chance.choice("12"), reason="it raised"
    )
    yield f.ClusterConfigured(cluster_id="test", timing=Timing(lease_ms=chance.randrange(5)))
    yield f.LeaseExtended(duration_ms=chance.randrange(1_000))
    for job in cluster.jobs.values():
        yield from _of_job(cluster, job, chance)
    for model in cluster.models.values():
        yield _of_model(model, chance)
    for node in cluster.nodes.values():
        if node.state in node_life.USABLE:
            yield f.NodeLost(node_id=node.node_id, incarnation=node.incarnation)
            continue
        if chance.random() < 0.5:
            yield f.NodeLost(
                node_id=node.node_id, incarnation=node.incarnation, reason=node_life.DECLARED_DEAD
            )
        if node.replaced:
            yield f.NodeLost(node_id=node.node_id, incarnation=node.replaced[-1], reason="replaced")
        elif node.incarnation > node.lost and owes_nothing(cluster, node):
            yield f.NodeReturned(node_id=node.node_id, incarnation=node.incarnation)
    for member in cluster.memberships.values():
        if member.leaving and not member.removed and is_empty(cluster, member.node_id):
            yield f.NodeRemoved(node_id=member.node_id)


def _of_model(model: Model, chance: Random) -> AnyFact:
    """What was decided some gateways' facts ago may be of an earlier generation, or of another
    tenant.
    """
    generation = chance.choice((model.generation, max(1, model.generation - 1)))
    spec = JobSpec(command=("serve",), requeue=False, serve=Serve(model.name, generation))
    ordinals = range(model.next_ordinal, model.next_ordinal + chance.randrange(3))
    return f.ReplicasScaled(
        model=model.name,
        generation=generation,
        add=tuple(
            Replica(model_fold.replica_id(model.name, ordinal), spec) for ordinal in ordinals
        ),
        retire=tuple(job_id for job_id in model.jobs if chance.random() < 0.3),
        tenant=model.tenant,
    )


def _of_job(cluster: Cluster, job: Job, chance: Random) -> Iterator[AnyFact]:
    if job.state == job_life.PENDING and job.admitted:
        yield f.JobQueued(job_id=job.job_id)
    if job.state == job_life.QUEUED and job.elements is not None:
        yield from _next_element(job, chance)
    elif job.state == job_life.QUEUED:
        yield from _placements(cluster, job, chance)
        yield f.DevicesReserved(
            job_id=job.job_id, attempt=job.attempt, members=_reservation(cluster, chance)
        )
    if job.state == job_life.BEGUN and all_over(job):
        yield f.JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=chance.choice(OUTCOMES))
    if (
        job.state == job_life.QUEUED
        and all_over(job)
        and (job.cancel is not None or chance.random() < 0.05)
    ):
        yield f.JobClosed(
            job_id=job.job_id,
            attempt=job.attempt,
            outcome=chance.choice((job_life.CANCELLED, job_life.REJECTED)),
        )
    if job.state in job_life.ON_NODES:
        yield f.JobStopOrdered(
            job_id=job.job_id,
            attempt=job.attempt,
            reason=chance.choice(("time_limit", "gang_hurt")),
        )
        if job.spec.allocation is not None and job.warned_ns < job.expires_ns:
            yield f.AllocationWarned(
                job_id=job.job_id, attempt=job.attempt, expires_ns=job.expires_ns
            )
        by, sliced = chance.choice(JOBS), chance.random() < 0.3
        yield f.JobPreempted(
            job_id=job.job_id,
            attempt=job.attempt,
            by=by,
            grace_ms=chance.randrange(3),
            sliced=sliced,
        )
        yield f.DevicesReserved(
            job_id=job.job_id, attempt=job.attempt + 1, members=_reservation(cluster, chance)
        )
    if job.state == job_life.RELEASING and all_over(job):
        yield f.JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=chance.choice(OUTCOMES), exit_code=0
        )
        yield f.JobRequeued(
            job_id=job.job_id,
            attempt=job.attempt,
            reason="node_lost",
            counted=chance.random() < 0.5,
        )


def _next_element(job: Job, chance: Random) -> Iterator[AnyFact]:
    """The array may have been given another priority since this was decided."""
    assert job.spec.array is not None and job.elements is not None
    number = arrays.number_at(job.spec.array, job.elements.begun)
    if job.has_room:
        name = arrays.element_id(job.job_id, number)
        yield f.ElementBegun(
            job_id=name,
            array=job.job_id,
            number=number,
            tenant=job.tenant,
            priority=chance.choice((0, job.spec.priority)),
        )


def _placements(cluster: Cluster, job: Job, chance: Random) -> Iterator[AnyFact]:
    """On one node, and on all that have room."""
    share = chance.choice(SHARES)
    members = [
        _member(cluster, node, share, rank)
        for rank, node in enumerate(cluster.nodes.values())
        if node.usable
    ]
    found = [member for member in members if member.gpus]
    if found:
        expires_ns = chance.randrange(1, 9) if job.spec.allocation is not None else 0
        yield f.JobPlaced(
            job_id=job.job_id,
            attempt=job.attempt,
            members=(chance.choice(found),),
            port=29_500,
            expires_ns=expires_ns,
        )
        yield f.JobPlaced(job_id=job.job_id, attempt=job.attempt, members=tuple(found))


def _reservation(cluster: Cluster, chance: Random) -> tuple[Member, ...]:
    """Some of the nodes, held or free."""
    nodes = [node for node in cluster.nodes.values() if chance.random() < 0.5]
    return tuple(
        Member(node.node_id, node.incarnation, rank, tuple(map(GpuHold, node.gpus[:1])))
        for rank, node in enumerate(nodes)
    )


def _member(cluster: Cluster, node: Node, share: int, rank: int) -> Member:
    free = [
        uuid
        for uuid in node.gpus
        if WHOLE_GPU - cluster.gpus[uuid].held >= share
        and cluster.gpus[uuid].health in gpu_life.USABLE
    ]
    return Member(
        node.node_id, node.incarnation, rank, tuple(GpuHold(uuid, share) for uuid in free[:2])
    )


def by_nodes(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    """An agent knows of an attempt from its order, and tells what became of it whatever the log
    says meanwhile.
    """
    for node_id in NODES:
        yield _registration(cluster, node_id, chance)
    yield from facts_of_devices.by_nodes(cluster, chance)
    for job in cluster.jobs.values():
        for node_id in job.members:
            yield from _of_member(job.job_id, job.attempt, node_id, chance)
            if job.attempt > 1:
                yield f.JobReleased(job_id=job.job_id, attempt=job.attempt - 1, node_id=node_id)
    for node in cluster.nodes.values():
        for ref in node.accounted.values():
            yield f.JobReleased(job_id=ref.job_id, attempt=ref.attempt, node_id=node.node_id)


def _of_member(job_id: JobId, attempt: int, node_id: NodeId, chance: Random) -> Iterator[AnyFact]:
    yield f.JobStarted(job_id=job_id, attempt=attempt, node_id=node_id, pid=7)
    yield f.JobCheckpointed(
        job_id=job_id, attempt=attempt, node_id=node_id, asked=chance.random() < 0.5
    )
    yield f.JobOverShare(
        job_id=job_id,
        attempt=attempt,
        node_id=node_id,
        uuid=GpuId("g"),
        used_bytes=2,
        share_bytes=1,
        grace_s=60,
    )
    yield f.JobFinished(
        job_id=job_id,
        attempt=attempt,
        node_id=node_id,
        exit_code=chance.randrange(3),
        run_ms=chance.randrange(100),
    )
    yield f.JobRefused(job_id=job_id, attempt=attempt, node_id=node_id, reason="no device")
    yield f.JobReleased(job_id=job_id, attempt=attempt, node_id=node_id)
    yield f.ReplicaReady(job_id=job_id, attempt=attempt, node_id=node_id)
    yield f.ReplicaUnready(job_id=job_id, attempt=attempt, node_id=node_id, reason="status 500")


def _registration(cluster: Cluster, node_id: NodeId, chance: Random) -> AnyFact:
    """A new incarnation.

    Its devices are its own, or the free-moving last one; it accounts for some of its attempts.
    """
    own = NODES.index(node_id)
    uuids = [uuid for uuid in GPUS[2 * own : 2 * own + 2] if chance.random() < 0.9]
    if chance.random() < 0.3 and GPUS[-1] not in uuids:
        uuids.append(GPUS[-1])
    node = cluster.nodes.get(node_id)
    held = (
        [AttemptRef(job_id, attempt) for job_id, attempt in node.members.items()]
        if node is not None
        else []
    )
    return f.NodeRegistered(
        node_id=node_id,
        incarnation=(node.incarnation if node is not None else 0) + 1,
        address="10.0.0.1",
        gpus=tuple(
            Gpu(uuid, index, "simulated", "H100", 80 << 30) for index, uuid in enumerate(uuids)
        ),
        attempts=tuple(ref for ref in held if chance.random() < 0.5),
        directory=chance.choice(DIRECTORIES),
        tells_health=chance.random() < 0.5,
        absent=tuple(uuids[-1:]) if chance.random() < 0.2 else (),
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
    model = chance.choice((*MODELS, "nobody's"))
    ids = (job_id, JobId(f"{model}-{number}"), model_fold.replica_id(model, chance.randrange(9)))
    replicas = tuple(
        Replica(chance.choice(ids), JobSpec(command=(), serve=Serve(model, number)))
        for _ in range(chance.randrange(3))
    )
    gpus = tuple(
        Gpu(chance.choice(GPUS), chance.randrange(3), word, word, number)
        for _ in range(chance.randrange(4))
    )
    spec = JobSpec(
        command=(),
        gpus=number,
        nodes=number,
        on_control_loss=chance.choice((word, CONTINUE)),
        **_order(chance),
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
        ),
        f.AccessRecorded(entries=b"?", count=number, dropped=number),
        f.SecretSet(tenant=chance.choice(TENANTS), name=word, version=number, user=word),
        f.SecretRemoved(tenant=chance.choice(TENANTS), name=word),
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
            f.PluginDisabled(extends=word, name=word, version=word, reason=word),
        ),
        f.ClusterConfigured(cluster_id=word, timing=Timing(number, number, number, number)),
        f.LeaseExtended(duration_ms=number),
        f.JobQueued(job_id=job_id),
        _wild_element(job_id, attempt, number),
        f.JobPlaced(job_id=job_id, attempt=attempt, members=members, port=number),
        f.JobStopOrdered(
            job_id=job_id, attempt=attempt, reason=word, signal=number, grace_ms=number
        ),
        f.JobRequeued(job_id=job_id, attempt=attempt, reason=word, counted=chance.random() < 0.5),
        f.JobClosed(job_id=job_id, attempt=attempt, outcome=word, exit_code=number),
        f.ReplicasScaled(
            model=model,
            generation=number,
            add=replicas,
            retire=(job_id,),
            tenant=chance.choice(TENANTS),
        ),
        f.NodeLost(
            node_id=node_id,
            incarnation=incarnation,
            reason=chance.choice((word, node_life.DECLARED_DEAD)),
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
        *facts_of_devices.wild(chance, node_id, uuid, word, number, attempts),
    )
    return chance.choice((*made, *_wild_preemption(job_id, attempt, node_id, members, number)))


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
    )


def wild_placement(cluster: Cluster, chance: Random) -> AnyFact | None:
    """Of a job that may be placed, on any devices at all; None when no job may."""
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
