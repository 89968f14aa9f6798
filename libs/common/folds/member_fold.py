"""Apply facts about members of attempts to the cluster's state: one function per kind.

Pure and total, called by `fold` only. A member's facts count only for the current attempt. The
job's state follows from its members' states alone, so the order of two nodes' facts does not
matter.
"""

from collections.abc import Callable, Collection, Container, Iterable
from itertools import chain
from operator import attrgetter
from typing import Final

from libs.common import facts as f
from libs.common import reasons
from libs.common.change import IGNORED, Change, Stamp
from libs.common.container_spec import is_digest
from libs.common.life import job_life
from libs.common.model import JobId, NodeId, attempt_key
from libs.common.state import image_nodes, ledger
from libs.common.state.cluster import Cluster, GpuView, Job, MemberView, known_to_agent
from libs.common.state.job import Pin

_node_id_of: Final[Callable[[GpuView], NodeId]] = attrgetter("node_id")


def started(cluster: Cluster, fact: f.JobStarted, stamp: Stamp) -> Change:
    job = _member_spoke(
        cluster, job_id=fact.job_id, attempt=fact.attempt, node_id=fact.node_id, event="job.started"
    )
    if job is None:
        return IGNORED
    job.started_ns = max(job.started_ns, stamp.at_ns)
    if job.spec.image:
        image_nodes.note(cluster.image_nodes, job.spec.image, fact.node_id)
    if fact.image_in_registry and is_digest(fact.image):
        _pin(job, job.members[fact.node_id], fact.image)
    _follow_members(job)
    return Change((fact.job_id,))


def _pin(job: Job, member: MemberView, image: str) -> None:
    """Note a member's image; the one of the first attempt's lowest rank is the job's."""
    member.image = image
    pin = job.pin
    if pin is None or (pin.attempt == job.attempt and member.rank < pin.rank):
        job.pin = Pin(image, job.attempt, member.rank)


def finished(cluster: Cluster, fact: f.JobFinished, stamp: Stamp) -> Change:
    job = _member_spoke(
        cluster,
        job_id=fact.job_id,
        attempt=fact.attempt,
        node_id=fact.node_id,
        event="job.finished",
    )
    if job is None:
        return IGNORED
    member = job.members[fact.node_id]
    member.exit_code, member.signal = fact.exit_code, fact.signal
    member.reason, member.detail, member.run_ms = fact.reason, fact.detail, fact.run_ms
    member.ended_ns, member.use = stamp.at_ns, fact.use
    end_idle(cluster, job, member)
    _follow_members(job)
    return Change((fact.job_id,))


def refused(cluster: Cluster, fact: f.JobRefused, stamp: Stamp) -> Change:
    job = _member_spoke(
        cluster, job_id=fact.job_id, attempt=fact.attempt, node_id=fact.node_id, event="job.refused"
    )
    if job is None:
        return IGNORED
    member = job.members[fact.node_id]
    member.reason = fact.reason
    ledger.release(cluster, job, member)
    _follow_members(job)
    return Change((fact.job_id,), homes(cluster, (member,)))


def released(cluster: Cluster, fact: f.JobReleased, stamp: Stamp) -> Change:
    """Release the member.

    The node no longer accounts for the attempt, even if it closed long ago.
    """
    node = cluster.nodes.get(fact.node_id)
    was_accounted = (
        node is not None
        and node.accounted.pop(attempt_key(fact.job_id, fact.attempt), None) is not None
    )
    job = _member_spoke(
        cluster,
        job_id=fact.job_id,
        attempt=fact.attempt,
        node_id=fact.node_id,
        event="job.released",
    )
    if job is None:
        return Change((), (fact.node_id,)) if was_accounted else IGNORED
    member = job.members[fact.node_id]
    ledger.release(cluster, job, member)
    return Change((fact.job_id,), homes(cluster, (member,)))


def homes(cluster: Cluster, members: Collection[MemberView]) -> tuple[NodeId, ...]:
    """Return the members' nodes and the nodes that report their devices now.

    A device may have moved to another node while it was held.
    """
    views = ledger.devices_of(cluster, ledger.holds_of(members))
    return homes_of([member.node_id for member in members], views)


def homes_of(nodes: Iterable[NodeId], views: Iterable[GpuView]) -> tuple[NodeId, ...]:
    """Return these nodes and the nodes that report these devices now."""
    return tuple(dict.fromkeys(chain(nodes, map(_node_id_of, views))))


def lose_if_gone(
    cluster: Cluster, job: Job, node_id: NodeId, seen_over: Container[JobId] | None = None
) -> bool:
    """Mark the member lost if its node is lost or came back without it. Return whether it was.

    The result is the same in every order of the facts. A loss also affects a member that was over,
    because its JobReleased may have crossed the NodeLost, unless the NodeLost says that the
    scheduler knew (`seen_over`; None: the fact is no NodeLost). A node that comes back without a
    member that was over has lost nothing. An agent with another state directory proves nothing
    about the member. A job that ignores the lease may live on a lost node until an operator
    declares the node dead. So may every job of a node that had no lease watchdog when it was lost,
    or when an agent with another state directory replaced its own.
    """
    member, node = job.members[node_id], cluster.nodes[node_id]
    if member.state in job_life.MEMBER_OVER and (seen_over is None or job.job_id in seen_over):
        return False
    gone = member.accounted < node.incarnation and known_to_agent(node, job, member)
    lost = node.dead if job.spec.ignores_lease else node.ended
    if member.incarnation <= lost or (gone and member.state not in job_life.MEMBER_OVER):
        return lose_member(cluster, job, member)
    return False


def lose_member(cluster: Cluster, job: Job, member: MemberView) -> bool:
    after = job_life.MEMBER_LIFE.get((member.state, "node.lost"))
    if after is None:
        return False
    had_ended = member.state in job_life.MEMBER_ENDED
    member.state = after
    member.exit_code, member.signal, member.reason, member.detail, member.run_ms = (
        None,
        0,
        reasons.NODE_LOST,
        "",
        0,
    )
    member.ready, member.ready_ns, member.ended_ns = False, 0, 0
    member.use = None
    if not had_ended:
        end_idle(cluster, job, member)
    ledger.release(cluster, job, member)
    _follow_members(job)
    return True


def end_idle(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Note that the member's devices are not idle any more, or that it has ended."""
    member.idle_ns, job.idle = 0, None
    if not any(each.idle_ns for each in job.members.values()):
        cluster.idle.pop(job.job_id, None)


def current(cluster: Cluster, job_id: JobId, attempt: int) -> Job | None:
    job = cluster.jobs.get(job_id)
    return (
        job
        if job is not None and job.attempt == attempt and job.state not in job_life.ENDED
        else None
    )


def _member_spoke(
    cluster: Cluster, job_id: JobId, attempt: int, node_id: NodeId, event: str
) -> Job | None:
    """Move the member along its table, and return its job.

    Return None if the attempt is not current, the table has no row, or the agent does not know the
    member because it replaced the agent that started it.
    """
    job = current(cluster, job_id, attempt)
    member = job.members.get(node_id) if job is not None else None
    if job is None or member is None or not known_to_agent(cluster.nodes[node_id], job, member):
        return None
    after = job_life.MEMBER_LIFE.get((member.state, event))
    if after is None:
        return None
    member.state = after
    return job


def _follow_members(job: Job) -> None:
    """Derive the job's state from its members' states alone, whatever the order of facts."""
    waiting = any(member.state == job_life.PLACED for member in job.members.values())
    ended = all(member.state in job_life.MEMBER_ENDED for member in job.members.values())
    event = "members.ended" if ended else "" if waiting else "members.started"
    job.state = job_life.JOB_LIFE.get((job.state, event), job.state)
