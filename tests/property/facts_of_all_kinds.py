"""Random facts in a small world: facts that correct writers could append, and invalid ones.

`moves` is the definition of "without a causal link" for tests/property/test_commute.py: two facts
have none when both could be recorded in one and the same state, each by a writer that has not seen
the other.
"""

from collections.abc import Iterator
from random import Random

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
    GpuHold,
    JobSpec,
    Member,
    Serve,
)
from libs.common.model_spec import ModelSpec, Replica
from libs.common.state.cluster import Cluster, Job, Model, Node, all_over, owes_nothing
from libs.common.state.ordering import POLICIES
from libs.common.timing import PROFILES, Timing
from services.scheduler.leases.renewals import is_empty
from tests.property import (
    facts_of_devices,
    facts_of_fabric,
    facts_of_kept,
    facts_of_locks,
    facts_of_use,
)
from tests.property.fact_values import (
    JOBS,
    KEYS,
    MODELS,
    NODES,
    OUTCOMES,
    SHARES,
    TENANTS,
    order_fields,
)
from tests.property.facts_of_nodes import by_nodes, lost


def moves(cluster: Cluster, chance: Random) -> list[AnyFact]:
    """Return the facts that each writer could validly append now, one of each form."""
    return [
        *by_gateways(cluster, chance),
        *facts_of_use.diagnoses(cluster),
        *by_quota(cluster, chance),
        *by_scheduler(cluster, chance),
        *by_nodes(cluster, chance),
    ]


def by_gateways(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    for job_id in JOBS:
        if job_id not in cluster.jobs:
            spec = JobSpec(
                command=("true",),
                on_control_loss=chance.choice((STOP, CONTINUE)),
                **order_fields(chance),
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
    yield f.KeyLimitsSet(key_id=chance.choice(KEYS), requests_per_minute=chance.randrange(3))
    yield f.AccessRecorded(entries=b"", count=0)
    yield f.NotificationSet(
        tenant=chance.choice(TENANTS), name="n", form="mail", shown="a@b.c", kinds=("job.",)
    )
    if cluster.notifications:
        yield f.NotificationRemoved(tenant=chance.choice(TENANTS), name="n")
    yield f.SecretSet(tenant=chance.choice(TENANTS), name="s")
    if cluster.secrets:
        yield f.SecretRemoved(tenant=chance.choice(TENANTS), name="s")
    for name in MODELS:
        yield f.ModelDeployed(
            name=name, spec=ModelSpec(command=("serve",)), tenant=chance.choice(TENANTS)
        )
        yield f.ModelScaled(name=name, replicas=chance.randrange(4))
        yield f.ModelUndeployed(name=name)
        removed = chance.random() < 0.5
        yield f.ModelAliasSet(name=name, alias=chance.choice(("a", "b/c")), removed=removed)
        adapter, path = chance.choice(("a", "sql")), chance.choice(("", "/lora/a", "/lora/b"))
        yield f.ModelAdapterSet(name=name, adapter=adapter, path=path, removed=removed)
        yield f.ModelShareSet(name=name, guest=chance.choice((*TENANTS, "*")), removed=removed)
        yield f.ModelLimitsSet(
            name=name, guest=chance.choice((*TENANTS, "*")), tokens_per_minute=chance.randrange(3)
        )
    for job in cluster.jobs.values():
        yield f.ModelUsed(uses=(facts_of_use.of_model(job, chance),))
    yield from facts_of_devices.by_gateways(cluster, chance)
    yield from facts_of_fabric.by_gateways(cluster, chance)
    yield from facts_of_kept.by_gateways(cluster, chance)
    yield from facts_of_locks.by_gateways(chance)
    yield from facts_of_use.by_gateways(chance)
    for node in cluster.nodes.values():
        yield f.NodeDeclaredDead(node_id=node.node_id, incarnation=node.incarnation, lost=node.lost)
    for node in cluster.nodes.values():
        yield f.NodeHoldCleared(node_id=node.node_id, until_ns=node.held_until_ns)
    yield f.LeaseProfileSet(
        profile=chance.choice(PROFILES), timing=Timing(lease_ms=100 + chance.randrange(5))
    )
    yield from _memberships(cluster, chance)


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
    yield f.QuotaTermBegan(instance=chance.choice(("a", "b")))


def by_scheduler(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    yield from facts_of_fabric.by_scheduler(cluster, chance)
    yield f.TermBegan(
        instance=chance.choice("ab"),
        orders={"mine": chance.choice("12")} if chance.random() < 0.5 else {},
    )
    yield f.PluginDisabled(
        extends="order", name="mine", version=chance.choice("12"), reason="it raised"
    )
    yield f.ClusterConfigured(cluster_id="test", timing=Timing(lease_ms=chance.randrange(5)))
    if cluster.former:
        yield f.LeaseProfileSettled(seq=cluster.timing_seq)
    yield f.LeaseExtended(duration_ms=chance.randrange(1_000))
    yield f.ClusterRestored(life=cluster.life + 1, backup="x", restore_id="r")
    yield f.RestoreSettled(life=cluster.life)
    yield f.StateHashed(seq=cluster.state_hash.seq + 1, schema="s", parts={"jobs": b"d"})
    yield from facts_of_kept.by_scheduler(cluster, chance)
    yield from facts_of_locks.by_scheduler(cluster)
    yield from facts_of_use.by_scheduler(cluster, chance)
    for job in cluster.jobs.values():
        yield from _of_job(cluster, job, chance)
    for model in cluster.models.values():
        yield _of_model(model, chance)
    for node in cluster.nodes.values():
        if node.state in node_life.USABLE:
            reason = node_life.UNGUARDED if chance.random() < 0.2 else node_life.SILENT
            yield lost(cluster, node, node.incarnation, reason)
            continue
        if chance.random() < 0.5:
            yield lost(cluster, node, node.incarnation, node_life.DECLARED_DEAD)
        if node.replaced:
            yield lost(cluster, node, node.replaced[-1], "replaced")
        elif node.incarnation > node.lost and owes_nothing(cluster, node):
            yield f.NodeReturned(node_id=node.node_id, incarnation=node.incarnation)
        yield f.NodeHeldBack(
            node_id=node.node_id,
            until_ns=chance.randrange(9),
            lost_ns=chance.randrange(9),
            reason="x",
        )
        yield f.NodeHoldEnded(node_id=node.node_id, until_ns=node.held_until_ns)
    for member in cluster.memberships.values():
        if member.leaving and not member.removed and is_empty(cluster, member.node_id):
            yield f.NodeRemoved(node_id=member.node_id)


def _of_model(model: Model, chance: Random) -> AnyFact:
    """Return a change of the model's replicas, possibly for an earlier generation or for another
    tenant.

    The scheduler may have decided it before it read the latest facts of the gateways.
    """
    generation = chance.choice((model.generation, max(1, model.generation - 1)))
    if chance.random() < 0.2:
        number = chance.randrange(4)
        return f.ModelAutoscaled(name=model.name, generation=generation, replicas=number, law="s")
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
        recovered=chance.random() < 0.2,
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
        place = chance.randrange(job.batch.done + 1) if job.batch is not None else 0
        yield f.JobClosed(
            job_id=job.job_id,
            attempt=job.attempt,
            outcome=chance.choice(OUTCOMES),
            exit_code=0,
            elements=place,
        )
        yield f.JobRequeued(
            job_id=job.job_id,
            attempt=job.attempt,
            reason="node_lost",
            counted=chance.random() < 0.5,
            elements=place,
        )


def _next_element(job: Job, chance: Random) -> Iterator[AnyFact]:
    """The array may have been given another priority since this was decided."""
    assert job.spec.array is not None and job.elements is not None
    number = arrays.number_at(job.spec.array, job.elements.begun)
    if job.has_room:
        name = arrays.element_id(job.job_id, number)
        count = min(chance.randint(1, 3), job.waiting) if job.spec.array.short else 0
        if count:
            name = arrays.batch_id(job.job_id, job.spec.array, job.elements.begun, count)
        yield f.ElementBegun(
            job_id=name,
            array=job.job_id,
            number=number,
            tenant=job.tenant,
            priority=chance.choice((0, job.spec.priority)),
            count=count,
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
            lender=chance.choice(("", *cluster.jobs)),
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
