"""The devices reserved for one job: whether it can have them now, or never.

Pure.
"""

from libs.common.model import WHOLE_GPU
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.sharing_domains import sharing_domain_of, sharing_domain_on
from services.scheduler.state.state import State


def is_broken(state: State, job: Job) -> bool:
    """Return whether the reservation can never be used.

    A node or device is gone, or the job is held, waits after a refusal, or avoids one of the nodes.
    """
    avoided = job.refusals.avoided(state.wall_ns)
    if job.refusals.waits(state.wall_ns) or any(
        member.node_id in avoided for member in job.preemption.reserved
    ):
        return True
    for member in job.preemption.reserved:
        place = state.capacity.places[state.capacity.index[member.node_id]]
        if place is None or any(hold.uuid not in place.bit for hold in member.gpus):
            return True
    return job.order.held or bool(job.order.waits)


def is_free(cluster: Cluster, job: Job) -> bool:
    """Return whether all reserved devices and host resources are free."""
    members = job.preemption.reserved
    return ledger.can_hold(
        cluster, [hold for member in members for hold in member.gpus]
    ) and _host_is_free(cluster, job)


def _host_is_free(cluster: Cluster, job: Job) -> bool:
    nodes = [cluster.nodes[member.node_id] for member in job.preemption.reserved]
    cpus = all(
        sum([cpus for cpus, _ in node.held.values()]) + job.spec.cpus_milli <= node.cpus_milli
        for node in nodes
    )
    memory = all(
        sum([memory for _, memory in node.held.values()]) + job.spec.host_bytes <= node.memory_bytes
        for node in nodes
    )
    return (cpus or not job.spec.cpus_milli) and (memory or not job.spec.host_bytes)


def is_among_strangers(cluster: Cluster, job: Job) -> bool:
    """Return whether a reserved part of a device is closed to the job's tenant by now, because an
    administrator changed who shares devices.
    """
    own = sharing_domain_of(cluster, job.tenant)
    views = [
        cluster.gpus[hold.uuid]
        for member in job.preemption.reserved
        for hold in member.gpus
        if hold.share < WHOLE_GPU
    ]
    return any(view.holds and sharing_domain_on(cluster, view) != own for view in views)
