"""The rules about nodes: lost, returned, and to be removed.

Pure.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from libs.common import reasons
from libs.common.facts import (
    AnyFact,
    NodeHoldEnded,
    NodeLost,
    NodeRemoved,
    NodeReturned,
)
from libs.common.life import job_life, node_life
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Node, is_removed
from services.scheduler.decide.stops import stop_order
from services.scheduler.leases import flapping
from services.scheduler.leases.leases import may_be_buried
from services.scheduler.leases.renewals import is_empty
from services.scheduler.placement.bits import indexes
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
# The most jobs that one NodeLost names.
OVER_MAX: Final = 1_024


def bury_node(state: State, dead: Sequence[tuple[NodeId, int]]) -> Sequence[AnyFact]:
    """Declare the loss of a node that an operator declared dead, with all that jobs held there that
    ignore the lease.

    The node was lost before, or is one of `dead`: pairs of a node and its incarnation, which is
    usable, or was declared lost when the operator's word was on its way.
    """
    nodes = state.cluster.nodes
    lost = [nodes[state.capacity.nodes[index]] for index in indexes(state.nodes.dead)]
    silent = [
        nodes[node_id]
        for node_id, incarnation in dead
        if may_be_buried(nodes[node_id], incarnation)
    ]
    for node in (*lost, *silent):
        return (
            NodeLost(
                node_id=node.node_id,
                incarnation=node.incarnation,
                reason=node_life.DECLARED_DEAD,
                over=_seen_over(state, node),
            ),
        )
    return NONE


def return_node(state: State) -> Sequence[AnyFact]:
    """Take back a lost node that registered again and accounts for nothing but reserved devices."""
    for index in indexes(state.nodes.returning):
        node_id = state.capacity.nodes[index]
        return (
            NodeReturned(node_id=node_id, incarnation=state.cluster.nodes[node_id].incarnation),
        )
    return NONE


def lose_node(state: State, silent: Sequence[tuple[NodeId, int]]) -> Sequence[AnyFact]:
    """Declare the loss of a node that was silent for a lease and its margin.

    Its supervisors have stopped its jobs by then. Without a lease watchdog beside them this is not
    certain, so the jobs stay until an operator declares the node dead, or it comes back. An armed
    hardware watchdog makes it certain too (`Leases.silent` waits for it). An incarnation that
    another state directory replaced that long ago is lost likewise.
    """
    for node_id, incarnation in silent:
        node = state.cluster.nodes.get(node_id)
        if node is not None and node.usable and node.incarnation == incarnation:
            reason = node_life.SILENT if _surely_ended(node) else node_life.UNGUARDED
            return (
                NodeLost(
                    node_id=node.node_id,
                    incarnation=incarnation,
                    reason=reason,
                    lost_ns=state.wall_ns,
                    over=_seen_over(state, node),
                ),
            )
        if node is not None and node.replaced and node.replaced[-1] == incarnation:
            return (
                NodeLost(
                    node_id=node.node_id,
                    incarnation=incarnation,
                    reason=reasons.REPLACED,
                    over=_seen_over(state, node),
                ),
            )
    return NONE


def _seen_over(state: State, node: Node) -> tuple[JobId, ...]:
    """Return the jobs whose part on the node holds nothing any more, at most OVER_MAX of them.

    Those that are left out are lost.
    """
    jobs = state.cluster.jobs
    over = (
        job_id
        for job_id in node.members
        if jobs[job_id].members[node.node_id].state in job_life.MEMBER_OVER
    )
    return tuple(islice(over, OVER_MAX))


def _surely_ended(node: Node) -> bool:
    """Return whether the jobs of a silent node have ended, even if its supervisors hang.

    A hardware watchdog counts only while the agent says that it is armed.
    """
    return not node.unguarded or node.armed_ms > 0


def hold_back(state: State) -> Sequence[AnyFact]:
    """Hold back a node that was lost again and again, and end a hold whose time is over."""
    for node_id in state.nodes.held:
        until_ns = state.cluster.nodes[node_id].held_until_ns
        if until_ns <= state.wall_ns:
            return (NodeHoldEnded(node_id=node_id, until_ns=until_ns),)
    if state.hold_s and flapping.may_hold(state.cluster, state.nodes.held):
        for node_id in state.nodes.unsteady:
            return (flapping.hold(state.cluster.nodes[node_id], state.hold_s, state.wall_ns),)
    return NONE


def vacate(state: State) -> Sequence[AnyFact]:
    """Stop the jobs of a node that is to be removed at once.

    Jobs that allow it are queued again, and replicas are replaced.
    """
    for node_id in state.nodes.leaving:
        if state.cluster.memberships[node_id].wait:
            continue
        for job_id in state.cluster.nodes[node_id].members:
            job = state.cluster.jobs[job_id]
            if not job.stop_reason and job.state in (job_life.PLACED, job_life.RUNNING):
                return (stop_order(job, reasons.NODE_REMOVED, 15, job.spec.grace_s),)
    return NONE


def remove_node(state: State, removable: Sequence[NodeId]) -> Sequence[AnyFact]:
    """Remove an empty node that no agent has in its roster any more."""
    for node_id in removable:
        if not is_removed(state.cluster, node_id) and is_empty(state.cluster, node_id):
            return (NodeRemoved(node_id=node_id),)
    return NONE
