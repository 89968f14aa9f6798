"""Changes that bring devices back: a node or GPU that is unavailable returns, or a job ends.

Pure.
"""

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
from services.scheduler.queueing.shape import shape_of
from services.scheduler.state.state import State

# Number of changes of one kind that are tried, those with the lowest cost first.
TRIED_MAX: Final = 16


def returned(state: State, job: Job) -> Iterator[Change]:
    """Bring back a lost node, or repair a node with unavailable GPUs."""
    requests = [request_of(each.spec) for each in (job, *in_the_way(state, job, 1))]
    for node in state.cluster.nodes.values():
        away = [view for view in node_gpus(state.cluster, node) if not view.takes_work]
        if (
            (node.takes_work and not away)
            or is_leaving(state.cluster, node.node_id)
            or not any(_has_enough_gpus(state, node, request) for request in requests)
        ):
            continue
        facts: list[AnyFact] = [fact for view in away for fact in _recovery_facts(view)]
        if not node.takes_work:
            facts.append(again_registered(state.cluster, node))
        yield Change(f"bring {_unavailable(node, away)} back", tuple(facts), job.job_id)


def _unavailable(node: Node, away: list[GpuView]) -> str:
    if not node.takes_work or not away:
        return f"node {node.node_id} ({_unfit(node)})"
    return (
        f"the unavailable GPUs of node {node.node_id} "
        f"({', '.join(dict.fromkeys(view.away for view in away))})"
    )


def _unfit(node: Node) -> str:
    return (
        "revoked"
        if node.revoked
        else "distrusted"
        if node.distrusted
        else node.withheld or str(node.state)
    )


def _recovery_facts(view: GpuView) -> tuple[AnyFact, ...]:
    """Return the facts that make the GPU healthy and online."""
    online = f.GpuServiceSet(uuid=view.gpu.uuid, service=gpu_life.ONLINE)
    return f.GpuRecovered(node_id=view.node_id, uuid=view.gpu.uuid), online


def _has_enough_gpus(state: State, node: Node, request: ResourceRequest) -> bool:
    return (
        sum(1 for view in node_gpus(state.cluster, node) if request.need(view.gpu)) >= request.gpus
    )


def again_registered(cluster: Cluster, node: Node) -> f.NodeRegistered:
    """Return the registration of an agent that restarts with nothing left to account for."""
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
    """Cancel one job: one that waits before this one, one with reserved devices, or one whose
    devices could help; those that hold least and began last come first.

    Replicas are left out, because their models would make others, and so are elements of the array
    itself.
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
            f"cancel {titled(state, other)}, which has GPUs reserved",
            (f.CancelRequested(job_id=other.job_id),),
            job.job_id,
        )
    for other in _jobs_that_may_help(state, job)[:TRIED_MAX]:
        facts = (f.CancelRequested(job_id=other.job_id), *ending(other))
        yield Change(f"cancel {titled(state, other)}, which has {_held(other)}", facts, job.job_id)


def _jobs_that_may_help(state: State, job: Job) -> list[Job]:
    """Return the jobs on nodes whose end may help.

    If preemption or reserved devices are involved, that is any job, because one end can lead to
    another. If the tenant is at its limit, it is any job of the tenant. If the job would fit, so
    that order or a reservation keeps it waiting, it is any job. Otherwise it is the jobs that would
    leave enough devices on one of their nodes.
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
        or any(
            _free_after(state, node_id, other, request) >= request.gpus for node_id in other.members
        )
    ]


def _free_after(state: State, node_id: NodeId, other: Job, request: ResourceRequest) -> int:
    """Return the number of suitable devices on the node of which something is free once the other
    job has ended; -1 if the node is unavailable.
    """
    place = state.capacity.places[state.capacity.index[node_id]]
    if place is None:
        return -1
    held = {hold.uuid for hold in other.members[node_id].gpus}
    return sum(
        1
        for at, gpu in enumerate(place.gpus)
        if request.need(gpu) and (place.whole >> at & 1 or at in place.parts or gpu.uuid in held)
    )


def _held(job: Job) -> str:
    share = sum(hold.share for member in job.members.values() for hold in member.gpus)
    return f"{share / WHOLE_GPU:g} GPU{'s' if share != WHOLE_GPU else ''}"
