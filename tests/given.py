"""A cluster by its facts, for tests of cores: `given(...)` folds a history, each fact by its
rightful writer.
"""

from collections.abc import Sequence
from typing import Any

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId, TenantId
from libs.common.state.cluster import Cluster
from services.scheduler.state.state import State

EPOCH = 1
NODE_GPUS = 4
SECOND_NS = 1_000_000_000


def spec(**fields: Any) -> JobSpec:
    """A job's wish with a harmless command."""
    return JobSpec(**({"command": ("true",)} | fields))


def registered(
    node: str, gpus: int = NODE_GPUS, incarnation: int = 1, **fields: Any
) -> f.NodeRegistered:
    """A node with simulated devices named after it."""
    devices = tuple(
        Gpu(
            uuid=GpuId(f"{node}-gpu{i}"),
            index=i,
            vendor="simulated",
            model="Simulated H100",
            memory_bytes=80 << 30,
        )
        for i in range(gpus)
    )
    return f.NodeRegistered(
        node_id=NodeId(node), incarnation=incarnation, address="127.0.0.1", gpus=devices, **fields
    )


def member(node: str, *gpus: int, rank: int = 0, share: int = 100, incarnation: int = 1) -> Member:
    """One node's part of a placement, devices by index."""
    return Member(
        NodeId(node),
        incarnation,
        rank,
        tuple(GpuHold(GpuId(f"{node}-gpu{i}"), share) for i in gpus),
    )


def waiting(job: str, **fields: Any) -> list[AnyFact]:
    """The history of a job up to its place in the queue."""
    tenant = TenantId(fields.pop("tenant", "default"))
    job_id = JobId(job)
    return [
        f.JobSubmitted(job_id=job_id, spec=spec(**fields), tenant=tenant),
        f.JobAdmitted(job_id=job_id),
        f.JobQueued(job_id=job_id),
    ]


def placed(job: str, *members: Member, attempt: int = 1, port: int = 29_500) -> f.JobPlaced:
    return f.JobPlaced(job_id=JobId(job), attempt=attempt, members=members, port=port)


def started(job: str, node: str, attempt: int = 1) -> f.JobStarted:
    return f.JobStarted(job_id=JobId(job), attempt=attempt, node_id=NodeId(node))


def finished(
    job: str, node: str, exit_code: int | None = 0, attempt: int = 1, **fields: Any
) -> f.JobFinished:
    return f.JobFinished(
        job_id=JobId(job), attempt=attempt, node_id=NodeId(node), exit_code=exit_code, **fields
    )


def released(job: str, node: str, attempt: int = 1) -> f.JobReleased:
    return f.JobReleased(job_id=JobId(job), attempt=attempt, node_id=NodeId(node))


def ended(
    job: str, node: str, exit_code: int | None = 0, attempt: int = 1, **fields: Any
) -> list[AnyFact]:
    """A member's whole life on a node."""
    return [
        started(job, node, attempt),
        finished(job, node, exit_code, attempt, **fields),
        released(job, node, attempt),
    ]


def tell(cluster: Cluster, fact: AnyFact, at_s: float = 0, seq: int = 0) -> Change:
    """Fold one fact as its rightful writer would record it."""
    writer = subjects.WRITER_OF[type(fact)]
    node_id = getattr(fact, "node_id", "") if writer == subjects.NODE_KIND else ""
    epoch = getattr(fact, "incarnation", EPOCH) if writer == subjects.NODE_KIND else EPOCH
    return fold.apply(
        cluster,
        fact,
        Stamp(seq=seq, at_ns=int(at_s * SECOND_NS), epoch=epoch, writer=writer, writer_id=node_id),
    )


def given(*history: AnyFact | Sequence[AnyFact]) -> State:
    """A scheduler's state in its own term, after this history at time 0."""
    cluster = Cluster()
    tell(cluster, f.TermBegan(instance="a"), seq=EPOCH)
    flat: list[AnyFact] = []
    for item in history:
        flat.extend(item if isinstance(item, Sequence) else [item])
    for number, fact in enumerate(flat, EPOCH + 1):
        tell(cluster, fact, seq=number)
    state = State(cluster)
    state.begin(EPOCH, 0)
    return state
