"""Random facts that agents could append now, about their nodes and jobs."""

from collections.abc import Iterator
from random import Random

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import job_life
from libs.common.model import (
    AttemptRef,
    Gpu,
    GpuId,
    JobId,
    NodeId,
)
from libs.common.state.cluster import Cluster, Node
from tests.property import (
    facts_of_batches,
    facts_of_devices,
    facts_of_fabric,
    facts_of_kept,
    facts_of_use,
)
from tests.property.fact_values import (
    DIRECTORIES,
    GPUS,
    NODES,
)


def by_nodes(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    """An agent knows of an attempt from its order, and tells what became of it whatever the log
    says meanwhile.
    """
    for node_id in NODES:
        yield _registration(cluster, node_id, chance)
    yield from facts_of_devices.by_nodes(cluster, chance)
    yield from facts_of_fabric.by_nodes(cluster, chance)
    yield from facts_of_kept.by_nodes(cluster, chance)
    for job in cluster.jobs.values():
        for node_id in job.members:
            yield from _of_member(job.job_id, job.attempt, node_id, chance)
            yield facts_of_batches.of_member(job, node_id, chance)
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
        use=facts_of_use.use(chance),
    )
    yield from facts_of_use.of_member(job_id, attempt, node_id, chance)
    yield f.JobRefused(job_id=job_id, attempt=attempt, node_id=node_id, reason="no device")
    yield f.JobReleased(job_id=job_id, attempt=attempt, node_id=node_id)
    yield f.ReplicaReady(job_id=job_id, attempt=attempt, node_id=node_id)
    yield f.ReplicaUnready(job_id=job_id, attempt=attempt, node_id=node_id, reason="status 500")


def lost(cluster: Cluster, node: Node, incarnation: int, reason: str) -> AnyFact:
    """A loss by a scheduler that names the jobs that it knows to be over there, or by an older one
    that names none.
    """
    over = tuple(
        job_id
        for job_id in node.members
        if cluster.jobs[job_id].members[node.node_id].state in job_life.MEMBER_OVER
    )
    return f.NodeLost(
        node_id=node.node_id,
        incarnation=incarnation,
        reason=reason,
        over=over if incarnation % 2 else (),
    )


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
            Gpu(uuid=uuid, index=index, vendor="simulated", model="H100", memory_bytes=80 << 30)
            for index, uuid in enumerate(uuids)
        ),
        attempts=tuple(ref for ref in held if chance.random() < 0.5),
        directory=chance.choice(DIRECTORIES),
        tells_health=chance.random() < 0.5,
        absent=tuple(uuids[-1:]) if chance.random() < 0.2 else (),
    )
