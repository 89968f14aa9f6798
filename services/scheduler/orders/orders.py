"""The orders, the full desired state and its digest that acknowledged facts mean for each node.

Pure. Callers pass only acknowledged facts: an order for a fact that the log refused would start a
job that was never placed.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from libs.common import reasons
from libs.common.change import Change
from libs.common.container_spec import registry_of, registry_secret
from libs.common.devices.means import CONTAINERS
from libs.common.facts import (
    AnyFact,
    FabricRoundOrdered,
    GpuControlRequested,
    JobPlaced,
    JobPreempted,
    JobStopOrdered,
    KeptEvicted,
    KeptGranted,
    KeptPlaced,
    ModelKeepDropped,
    ModelKeepRequested,
    Unknown,
)
from libs.common.folds.secret_fold import secret_key
from libs.common.life import job_life, kept_life
from libs.common.messages import (
    AnyOrder,
    ControlOrder,
    Desired,
    KeepList,
    KeepOrder,
    Orders,
    Peer,
    ProbeOrder,
    StartOrder,
    StopOrder,
    digest,
    keep_lines,
)
from libs.common.model import IMAGES, POOLS, Member, NodeId
from libs.common.state.cluster import Cluster, MemberView, known_to_agent, node_gpus
from libs.common.state.job import Cancel, Job
from services.scheduler.state.fabric_rules import MS, FabricRules

TOKEN_BYTES: Final = 32
# Large messages that a probe sends in each direction, at most.
BULK_COUNT: Final = 16
KEEPS: Final = (ModelKeepRequested, ModelKeepDropped, KeptPlaced, KeptGranted, KeptEvicted)
NO_IMAGES: Final = "image: the agent of this node is older than jobs with an image"
NO_POOLS: Final = "pool: the agent of this node is older than memory pools"


def start_orders(
    cluster: Cluster, job: Job, fact: JobPlaced, seq: int
) -> Iterator[tuple[NodeId, StartOrder | StopOrder]]:
    """Yield one order for each member of a placement that commit `seq` recorded."""
    peers = tuple(
        Peer(member.node_id, cluster.nodes[member.node_id].address, len(member.gpus))
        for member in fact.members
    )
    for member in fact.members:
        start = _start(cluster, job, member, seq=seq, peers=peers, port=fact.port)
        yield (
            member.node_id,
            start if _agent_knows_all(cluster, member.node_id, job) else _refusing_stop(start),
        )


def stop_orders(
    fact: JobStopOrdered | JobPreempted, nodes: Iterable[NodeId], seq: int
) -> Iterator[tuple[NodeId, StopOrder]]:
    """Yield one order for each node of an attempt that commit `seq` ordered to stop."""
    reason = fact.reason if isinstance(fact, JobStopOrdered) else reasons.PREEMPTED
    for node_id in nodes:
        yield (
            node_id,
            StopOrder(
                job_id=fact.job_id,
                attempt=fact.attempt,
                seq=seq,
                reason=reason,
                signal=fact.signal,
                grace_ms=fact.grace_ms,
            ),
        )


def peers_of(cluster: Cluster, job: Job) -> tuple[Peer, ...]:
    """Return the attempt's nodes by rank."""
    ranked = sorted(job.members.values(), key=lambda member: member.rank)
    return tuple(
        Peer(member.node_id, cluster.nodes[member.node_id].address, len(member.gpus))
        for member in ranked
    )


def desired(cluster: Cluster, node_id: NodeId, epoch: int) -> Desired:
    """Return everything that the node should account for, as of the state's sequence."""
    starts: list[StartOrder] = []
    stops: list[StopOrder] = []
    for job, member in _accounted(cluster, node_id):
        peers = peers_of(cluster, job)
        start = _start(cluster, job, member, seq=job.placed_seq, peers=peers, port=job.port)
        if _agent_knows_all(cluster, node_id, job):
            starts.append(start)
        else:
            stops.append(_refusing_stop(start))
        stop = _stop_of(job, cluster.seq)
        if stop is not None:
            stops.append(stop)
    controls = tuple(controls_of(cluster, node_id))
    return Desired(
        epoch,
        incarnation=cluster.nodes[node_id].incarnation,
        seq=cluster.seq,
        starts=tuple(starts),
        stops=tuple(stops),
        controls=controls,
        keeps=tuple(keeps_of(cluster, node_id)),
    )


def node_digest(cluster: Cluster, node_id: NodeId) -> str:
    """Return the digest of `desired`, which an agent compares with its own."""
    accounted = [job for job, _ in _accounted(cluster, node_id)]
    ordered = ((job.ref, _stop_of(job, cluster.seq)) for job in accounted)
    stops = [(ref, stop.signal, stop.grace_ms) for ref, stop in ordered if stop is not None]
    controls = [(each.uuid, each.control, each.request) for each in controls_of(cluster, node_id)]
    keeps = keep_lines(keeps_of(cluster, node_id))
    return digest([job.ref for job in accounted], stops, controls, keeps)


def _stop_of(job: Job, seq: int) -> StopOrder | None:
    """Return the order to stop the attempt; None if nothing asks for its end.

    An attempt that has ended in the log is stopped too if its process would not end by itself:
    allocations, replicas and cancelled jobs. A lying node may have forged that end. If the process
    is over, the agent has nothing left to do.
    """
    ref = (job.job_id, job.attempt, seq)
    if job.stop_reason:
        return StopOrder(*ref, job.stop_reason, job.stop_signal, job.stop_grace_ms)
    lasts = job.cancel is not None or job.spec.serve is not None or job.spec.allocation is not None
    if job.state != job_life.RELEASING or not lasts:
        return None
    stop = job.cancel or Cancel(job.spec.grace_s, signal=15)
    return StopOrder(*ref, reasons.CANCELLED, stop.signal, stop.grace_s * 1_000)


def message(epoch: int, part: Sequence[AnyOrder]) -> Orders:
    """Return the message with these orders for one node."""
    of_jobs = tuple(order for order in part if isinstance(order, StartOrder | StopOrder))
    controls = tuple(order for order in part if isinstance(order, ControlOrder))
    probes = tuple(order for order in part if isinstance(order, ProbeOrder))
    keeps = [order for order in part if isinstance(order, KeepList)]
    return Orders(epoch, of_jobs, controls, probes, keeps[-1] if keeps else None)


def probe_orders(
    cluster: Cluster, fact: FabricRoundOrdered, rules: FabricRules, key: bytes
) -> Iterator[tuple[NodeId, ProbeOrder]]:
    """Yield the two orders of each pair of a round.

    `key` is a secret of this scheduler process. The token of a pair is a signature with it, so
    no other node can know it, and it is worth nothing in another round.
    """
    for first, second in fact.pairs:
        text = f"{fact.test} {fact.number} {first} {second}".encode()
        token = blake2b(text, key=key, digest_size=TOKEN_BYTES).digest()
        for node_id, peer in ((first, second), (second, first)):
            yield (
                node_id,
                ProbeOrder(
                    test=fact.test,
                    number=fact.number,
                    peer=peer,
                    address=cluster.nodes[peer].fabric_address,
                    dials=node_id == first,
                    token=token,
                    pair_ms=rules.pair_ns // MS,
                    bulk_bytes=rules.bulk_bytes,
                    bulk_count=BULK_COUNT,
                ),
            )


def control_orders(
    cluster: Cluster, facts: Iterable[AnyFact | Unknown], seq: int
) -> Iterator[tuple[NodeId, ControlOrder]]:
    """Yield the controls that commit `seq` requested, unless later ones replaced them.

    A lost one is resent after the digest of a heartbeat differs.
    """
    requested = {
        fact.uuid: None
        for fact in facts
        if isinstance(fact, GpuControlRequested) and fact.uuid in cluster.gpus
    }
    for node_id in dict.fromkeys(cluster.gpus[uuid].node_id for uuid in requested):
        yield from (
            (node_id, order) for order in controls_of(cluster, node_id) if order.request == seq
        )


def controls_of(cluster: Cluster, node_id: NodeId) -> Iterator[ControlOrder]:
    """Yield the controls that operators requested for the node's devices; none if its agent is too
    old.
    """
    node = cluster.nodes[node_id]
    for view in node_gpus(cluster, node) if node.takes_controls else ():
        for name, control in view.controls.items():
            if control.request or control.in_force:
                yield ControlOrder(
                    uuid=view.gpu.uuid,
                    control=name,
                    value=control.value,
                    request=control.request,
                    outcome=control.outcome,
                    detail=control.detail,
                    in_force=control.in_force,
                )


def keep_lists(
    cluster: Cluster, facts: Iterable[AnyFact | Unknown], changes: Iterable[Change], seq: int
) -> Iterator[tuple[NodeId, KeepList]]:
    """Yield what the nodes keep that commit `seq` is about. A lost list is sent again after the
    digest of a heartbeat differs.
    """
    nodes = dict.fromkeys(
        node_id
        for fact, change in zip(facts, changes, strict=True)
        if isinstance(fact, KEEPS)
        for node_id in change.nodes
    )
    for node_id in nodes:
        yield node_id, KeepList(seq, tuple(keeps_of(cluster, node_id)))


def keeps_of(cluster: Cluster, node_id: NodeId) -> Iterator[KeepOrder]:
    """Yield what the node keeps of models; none if its agent is too old."""
    for kept in cluster.kept.values() if cluster.nodes[node_id].keeps else ():
        entry = kept.entries.get(node_id)
        if entry is not None and entry.state != kept_life.EVICTED:
            yield KeepOrder(
                model=kept.model,
                tier=kept.tier,
                tenant=kept.tenant,
                request=kept.request,
                number=entry.number,
                state=entry.state,
                granted=entry.host_bytes or max(entry.gpu_bytes.values(), default=0),
                weights=kept.weights,
                files=kept.files,
                content=entry.content,
                user=kept.user,
                gpu_bytes=entry.gpu_bytes if kept.tier == kept_life.GPU else {},
            )


def _accounted(cluster: Cluster, node_id: NodeId) -> Iterator[tuple[Job, MemberView]]:
    """Yield the jobs whose member on this node is not over (placed, started or finished) and that
    its agent can know.
    """
    node = cluster.nodes[node_id]
    for job_id in node.members:
        job = cluster.jobs[job_id]
        member = job.members[node_id]
        if member.state not in job_life.MEMBER_OVER and known_to_agent(node, job, member):
            yield job, member


def _agent_knows_all(cluster: Cluster, node_id: NodeId, job: Job) -> bool:
    known, spec = cluster.nodes[node_id].isolation, job.spec
    return (
        (not spec.image or IMAGES in known)
        and (spec.container is None or CONTAINERS in known)
        and (not spec.pools_on_node_bytes or POOLS in known)
    )


def _refusing_stop(start: StartOrder) -> StopOrder:
    """Return a stop for an attempt that the agent cannot run, which makes the agent refuse it.

    An older agent would ignore the unknown field and start something else.
    """
    return StopOrder(
        job_id=start.job_id,
        attempt=start.attempt,
        seq=start.seq,
        reason=NO_IMAGES if start.spec.image else NO_POOLS,
        signal=15,
        grace_ms=0,
    )


def _start(
    cluster: Cluster,
    job: Job,
    member: MemberView | Member,
    seq: int,
    peers: tuple[Peer, ...],
    port: int,
) -> StartOrder:
    login = registry_secret(registry_of(job.spec.image)) if job.spec.image else ""
    return StartOrder(
        job_id=job.job_id,
        attempt=job.attempt,
        incarnation=member.incarnation,
        seq=seq,
        rank=member.rank,
        gpus=member.gpus,
        spec=job.spec,
        tenant=job.tenant,
        user=job.user,
        peers=peers,
        port=port,
        registry=bool(login) and secret_key(job.tenant, login) in cluster.secrets,
        pin=job.pin.digest if job.pin is not None else "",
        trace=job.trace,
        place=job.batch.place if job.batch is not None else 0,
        count=job.batch.count if job.batch is not None else 0,
        done=job.batch.done if job.batch is not None else 0,
    )
