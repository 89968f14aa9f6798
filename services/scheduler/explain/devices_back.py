"""Devices that come back, as changes: a node or its GPUs that are away, a job that ends. Pure."""

from collections.abc import Iterator
from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import gpu_life
from libs.common.model import WHOLE_GPU, NodeId
from libs.common.state.cluster import Cluster, GpuView, Job, Node, is_leaving, node_gpus
from services.scheduler.explain.asker import titled
from services.scheduler.explain.change import Change
from services.scheduler.explain.order import in_the_way
from services.scheduler.explain.trial import ending
from services.scheduler.placement.choose import NO_PLACEMENT, choose
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.queueing.limits import over_limit
from services.scheduler.queueing.queue import shape_of
from services.scheduler.state.state import State

# So many of a kind are tried: those that come first by what they cost.
TRIED_MAX: Final = 16


def returned(state: State, job: Job) -> Iterator[Change]:
    """A node that is lost comes back, or one of which GPUs are away is repaired."""
    requests = [request_of(each.spec) for each in (job, *in_the_way(state, job, 1))]
    for node in state.cluster.nodes.values():
        away = [view for view in node_gpus(state.cluster, node) if not view.takes_work]
        if (
            (node.takes_work and not away)
            or is_leaving(state.cluster, node.node_id)
            or not any(_could(state, node, request) for request in requests)
        ):
            continue
        facts: list[AnyFact] = [fact for view in away for fact in _well(view)]
        if not node.takes_work:
            facts.append(again_registered(state.cluster, node))
        yield Change(f"bring {_away(node, away)} back", tuple(facts), job.job_id)


def _away(node: Node, away: list[GpuView]) -> str:
    if not node.takes_work or not away:
        return (
            f"node {node.node_id} "
            f"({'revoked' if node.revoked else 'distrusted' if node.distrusted else node.state})"
        )
    return (
        f"the GPUs of node {node.node_id} that are away "
        f"({', '.join(dict.fromkeys(view.away for view in away))})"
    )


def _well(view: GpuView) -> tuple[AnyFact, ...]:
    """Healthy, and in service."""
    online = f.GpuServiceSet(uuid=view.gpu.uuid, service=gpu_life.ONLINE)
    return f.GpuRecovered(node_id=view.node_id, uuid=view.gpu.uuid), online


def _could(state: State, node: Node, request: ResourceRequest) -> bool:
    return (
        sum(1 for view in node_gpus(state.cluster, node) if request.need(view.gpu)) >= request.gpus
    )


def again_registered(cluster: Cluster, node: Node) -> f.NodeRegistered:
    """What its agent says when it begins again with nothing left to account for."""
    return f.NodeRegistered(
        node_id=node.node_id,
        incarnation=node.incarnation + 1,
        address=node.address,
        gpus=tuple(view.gpu for view in node_gpus(cluster, node)),
        directory=node.directory,
        cpus_milli=node.cpus_milli,
        memory_bytes=node.memory_bytes,
        labels=node.labels,
        rack=node.rack,
        spine=node.spine,
        sockets=node.sockets,
    )


def ended(state: State, job: Job) -> Iterator[Change]:
    """One job is cancelled: one that waits before this one, or one whose devices would matter; who
    holds least, and began last, first.

    Not a replica: its model makes another; nor an element of the array itself.
    """
    for other in in_the_way(state, job, TRIED_MAX):
        yield Change(
            f"cancel {titled(state, other)}, which waits before it",
            (f.CancelRequested(job_id=other.job_id),),
            job.job_id,
            job.spec,
        )
    for other in [state.cluster.jobs[job_id] for job_id in state.reserved if job_id != job.job_id]:
        yield Change(
            f"cancel {titled(state, other)}, for which GPUs are kept",
            (f.CancelRequested(job_id=other.job_id),),
            job.job_id,
        )
    for other in _matter(state, job)[:TRIED_MAX]:
        facts = (f.CancelRequested(job_id=other.job_id), *ending(other))
        yield Change(f"cancel {titled(state, other)}, which has {_held(other)}", facts, job.job_id)


def _matter(state: State, job: Job) -> list[Job]:
    """Those whose end may help.

    Where somebody may have to make room, or has devices kept, that is any job, for one thing leads
    to another; at its tenant's limit that tenant's; where it would fit, so that order keeps it back
    or what another is promised, any; else those that leave enough for it on a node of theirs, by
    numbers, or have devices kept for their next attempt.
    """
    on_nodes = (state.cluster.jobs[job_id] for job_id in state.noted)
    others = [
        other
        for other in on_nodes
        if other.cancel is None and other.spec.serve is None and other.array != job.job_id
    ]
    others.sort(key=lambda other: (state.noted[other.job_id].share, -other.placed_ns, other.seq))
    if state.preemptible.jobs or state.reserved:
        return others
    if over_limit(state, shape_of(job)):
        return [other for other in others if other.tenant == job.tenant]
    if (
        choose(state.capacity, job.spec, sharing_domain_of(state.cluster, job.tenant))
        is not NO_PLACEMENT
    ):
        return others
    request = request_of(job.spec)
    return [
        other
        for other in others
        if other.preemption.reserved
        or any(_left(state, node_id, other, request) >= request.gpus for node_id in other.members)
    ]


def _left(state: State, node_id: NodeId, other: Job, request: ResourceRequest) -> int:
    """The devices there that would do, as far as anything of them is free when this job has ended;
    below 0 on a node that is not there.
    """
    place = state.capacity.places[state.capacity.index[node_id]]
    if place is None:
        return -1
    its = {hold.uuid for hold in other.members[node_id].gpus}
    return sum(
        1
        for at, gpu in enumerate(place.gpus)
        if request.need(gpu) and (place.whole >> at & 1 or at in place.parts or gpu.uuid in its)
    )


def _held(job: Job) -> str:
    share = sum(hold.share for member in job.members.values() for hold in member.gpus)
    return f"{share / WHOLE_GPU:g} GPU{'s' if share != WHOLE_GPU else ''}"
