"""The operator of a simulated cluster, who sees what really lives on a machine.

The operator declares a node dead when the scheduler has lost it or waits for a state directory that
is gone, and removes nodes from the cluster for good.
"""

from typing import TYPE_CHECKING, Final

from libs.common.facts import JobUpdated, NodeDeclaredDead, NodeRemovalRequested
from libs.common.life import job_life
from libs.common.life.job_life import MEMBER_OVER
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node, is_leaving, is_removed, known_to_agent
from tests.sim import faults
from tests.sim.faults import Blow

if TYPE_CHECKING:
    from tests.sim.world import World

LOOK_EVERY_S: Final = 0.5
RELEASES_AGAIN_S: Final = 5.0
# Time for which the key of a removed node still opens the log
# (`services/api_gateway/agents/admission.py`).
FAREWELL_S: Final = 3.0
FOR_EVER: Final = float("inf")


def see(world: "World", blow: Blow) -> None:
    """React to the faults from which a node does not recover alone."""
    if blow.kind in (faults.DEAD, faults.DISK_LOST, faults.REINSTALLED):
        watch(world, blow.target.removeprefix("agent-"))
    if blow.kind == faults.REMOVED:
        remove(world, blow.target, blow.length_s > 0)


def watch(world: "World", node_id: str) -> None:
    """Declare the node dead when needed; repeat if the fact was lost with its gateway."""
    machine, node, gateway = (
        world.machines[node_id],
        world.reference.nodes.get(NodeId(node_id)),
        world.slots["gateway"],
    )
    hearing = gateway.process.alive and gateway.service is not None
    unsaid = node is not None and not node.usable and node.word != (node.incarnation, node.lost)
    if (
        node is not None
        and unsaid
        and hearing
        and (not machine.up or (not machine.forsaken and waits_for_nobody(world.reference, node)))
    ):
        fact = NodeDeclaredDead(
            node_id=node.node_id, incarnation=node.incarnation, lost=node.lost, user="operator"
        )
        gateway.process.deliver(gateway.service.say, fact)
    world.loop.call_later(LOOK_EVERY_S, watch, world, node_id)


def release_late_holds(world: "World") -> None:
    """Let users release jobs that are held although they released them before.

    A gateway that was killed may have sent a hold that the log stores late, after the user has
    repeated it at another gateway and released the job.
    """
    gateway, now = world.slots["gateway"], world.loop.now
    if len(world.acts_acked) < len(world.acts) or now < world.releases_at_s:
        return
    for job in world.reference.jobs.values():
        if job.order.held and job.state not in job_life.ENDED and gateway.service is not None:
            world.releases_at_s = now + RELEASES_AGAIN_S
            fact = JobUpdated(job_id=job.job_id, held=False, user=job.order.held_by)
            gateway.process.deliver(gateway.service.say, fact)


def remove(world: "World", node_id: str, wait: bool) -> None:
    """Ask for the removal until the log has it; once the node is removed, revoke its key."""
    name, gateway = NodeId(node_id), world.slots["gateway"]
    if is_removed(world.reference, name):
        world.loop.call_later(FAREWELL_S, world.slots[f"agent-{node_id}"].strike, FOR_EVER)
        return
    if (
        not is_leaving(world.reference, name)
        and gateway.process.alive
        and gateway.service is not None
    ):
        gateway.process.deliver(
            gateway.service.say, NodeRemovalRequested(node_id=name, wait=wait, user="operator")
        )
    world.loop.call_later(LOOK_EVERY_S, remove, world, node_id, wait)


def all_nodes_settled(cluster: Cluster) -> bool:
    """Return whether each node is back or removed."""
    return all(
        is_removed(cluster, node.node_id) if is_leaving(cluster, node.node_id) else node.usable
        for node in cluster.nodes.values()
    )


def waits_for_nobody(cluster: Cluster, node: Node) -> bool:
    """Return whether the node holds something that no agent will ever report."""
    jobs = [cluster.jobs[job_id] for job_id in node.members]
    return any(
        member.state not in MEMBER_OVER
        and (job.spec.ignores_lease or member.accounted in node.unproved)
        and not known_to_agent(node, job, member)
        for job, member in ((job, job.members[node.node_id]) for job in jobs)
    )
