"""The check that most nodes hold fresh leases, without which no node is declared lost.

Pure; times are nanoseconds of this machine's boot clock, given as arguments. The agents' half of
the rule is `services/node_agent/peers/gossip.py`: an agent extends its lease when a strict majority
of its roster (the first nodes by registration) had no fresh lease at one instant. So a node is lost
only if, for a lease and a margin, at least half of each roster that it may have were certainly
renewed, or if an operator declared it dead. A node is certainly renewed from the heartbeat that
names a lease of this process until half a lease after the heartbeat that this lease answered.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.life import node_life
from libs.common.messages import Heartbeat
from libs.common.model import NodeId
from libs.common.state.cluster import (
    Cluster,
    Node,
    is_leaving,
    shortest_lease_ms,
    slowest_timing,
)
from services.scheduler.leases.roster import is_of_this_life

MS: Final = 1_000_000
# The agents use the same fraction (`services/node_agent/peers/gossip.py`).
RENEWED_PART: Final = 2
ROSTER_MIN: Final = 2
GRANTS_KEPT: Final = 8
NEVER: Final = -(1 << 62)


def is_empty(cluster: Cluster, node_id: NodeId) -> bool:
    """Return whether no job holds anything on the node: all is released, or was lost with the node.

    Jobs that ignore the lease are lost only when an operator declares the node dead.
    """
    node = cluster.nodes.get(node_id)
    if node is None:
        return True
    return not (
        node.members
        or node.replaced
        or (node.accounted and (node.usable or _runs_without_lease(cluster, node)))
    )


def _runs_without_lease(cluster: Cluster, node: Node) -> bool:
    """Return whether a lost node that was not declared dead has a job that ignores the lease."""
    jobs = [cluster.jobs.get(ref.job_id) for ref in node.accounted.values()]
    return node.dead < node.incarnation and any(
        job is not None and job.spec.ignores_lease for job in jobs
    )


def _renewed_ns(cluster: Cluster) -> int:
    """Return how long a lease renews its node, by the rule of every agent that there may be."""
    return shortest_lease_ms(cluster) * MS // RENEWED_PART


class _Renewal(msgspec.Struct):
    """The renewal of one node.

    `grants` maps a heartbeat to the time of the answer. The node was renewed from `since` until
    half a lease after `granted`, the earliest time at which the heartbeat of its lease was sent.
    `roster_nodes` is the size of its roster, and `roster_seq` its commit; a roster of an earlier
    life of the cluster does not count. `heard` is the last heartbeat of an agent that
    replaced another.
    """

    grants: dict[int, int] = {}
    since: int = 0
    granted: int = NEVER
    roster_nodes: int = 0
    heard: int = 0
    roster_seq: int = 0


class Renewals:
    """The renewals of all nodes' leases.

    `short` holds, for each roster by its size, when fewer than half of its nodes were last renewed
    (0: never in this term).

    A node whose agent was replaced does not count as renewed, because the former agent may be alive
    and say so to its peers. The replaced incarnations themselves are declared lost by `absent`,
    where the new agent counts for its node: it gets no lease before, so otherwise there might never
    be half.

    Times before the term need no check: the floor in `leases.py` outlasts every lease extended
    then.
    """

    def __init__(self) -> None:
        self.checked = 0
        self.nodes: dict[NodeId, _Renewal] = {}
        self.short: list[int] = []
        self.absent: list[int] = []
        # At the last check fewer than half of all nodes were renewed: no node can be lost now.
        self.few_renewed = False

    def begin(self, now: int) -> None:
        """Begin a term."""
        self.checked = now
        self.nodes.clear()
        self.short.clear()
        self.absent.clear()
        self.few_renewed = False

    def hear(self, cluster: Cluster, beat: Heartbeat, now: int) -> None:
        """Note a heartbeat. The agent held the lease that it names at most `lease_took_ns` after it
        had sent the heartbeat that this lease answered.
        """
        node = self.nodes.setdefault(beat.node_id, _Renewal())
        if cluster.nodes[beat.node_id].replaced:
            # The lease of this agent proves nothing about the one that it replaced.
            node.heard = now
            return
        if is_of_this_life(cluster, beat):
            node.roster_nodes = max(node.roster_nodes, beat.roster_nodes)
            node.roster_seq = max(node.roster_seq, beat.roster_seq)
        answered = node.grants.get(beat.lease_sent_ns)
        if answered is None:
            return
        granted = answered - max(0, beat.lease_took_ns)
        if granted > node.granted:
            node.since = now if now > node.granted + _renewed_ns(cluster) else node.since
            node.granted = granted

    def grant(self, beat: Heartbeat, now: int) -> None:
        """Note the answer to a heartbeat. For a repeated heartbeat the first answer counts."""
        grants = self.nodes.setdefault(beat.node_id, _Renewal()).grants
        grants.setdefault(beat.sent_boot_ns, now)
        if len(grants) > GRANTS_KEPT:
            del grants[next(iter(grants))]

    def check(self, cluster: Cluster, now: int) -> None:
        """Check every roster. A node counts only if it was renewed all the time since the last
        check.

        A roster of one node extends nothing, so its node could never be lost.
        """
        self.short += [0] * (len(cluster.nodes) - len(self.short))
        self.absent += [0] * (len(cluster.nodes) - len(self.absent))
        granted_since = now - _renewed_ns(cluster)
        renewed = replaced = counted = 0
        for index, view in enumerate(cluster.nodes.values()):
            node = self.nodes.get(view.node_id)
            counted += view.state != node_life.REMOVED
            if node is not None and view.replaced:
                replaced += view.state != node_life.REMOVED and node.heard > granted_since
            elif node is not None and view.state != node_life.REMOVED:
                renewed += node.since <= self.checked and node.granted >= granted_since
            if counted >= ROSTER_MIN and 2 * renewed < counted:
                self.short[index] = now
            if counted >= ROSTER_MIN and 2 * (renewed + replaced) < counted:
                self.absent[index] = now
        self.few_renewed = counted >= ROSTER_MIN and 2 * renewed < counted
        self.checked = now

    def losable(
        self, cluster: Cluster, silent: Sequence[tuple[NodeId, int]], now: int
    ) -> list[tuple[NodeId, int]]:
        """Return the silent nodes that no agent's own rule can keep alive."""
        if not silent:
            return []
        limit = now - slowest_timing(cluster).silence_ms * MS
        order = {node_id: index for index, node_id in enumerate(cluster.nodes)}
        short = [index for index, at in enumerate(self.short) if at > limit]
        absent = [index for index, at in enumerate(self.absent) if at > limit]
        return [
            each
            for each in silent
            if not self._short_roster_possible(
                order, absent if cluster.nodes[each[0]].replaced else short, cluster.nodes[each[0]]
            )
        ]

    def are_whole(self, cluster: Cluster, now: int) -> bool:
        """Return whether every usable node was renewed all the time for a lease and a margin.

        Then no node has extended its lease with their help in that time.
        """
        begun = now - slowest_timing(cluster).silence_ms * MS
        granted_since = now - _renewed_ns(cluster)
        found = [self.nodes.get(node.node_id) for node in cluster.nodes.values() if node.usable]
        return all(
            node is not None and node.since < begun and node.granted >= granted_since
            for node in found
        )

    def timing_is_known(self, cluster: Cluster) -> bool:
        """Return whether every agent that may hold a lease goes by the cluster's present timing.

        Its roster names the lease's length. An agent without peers is told with each lease.
        """
        return all(
            not node.peer_address or self._roster_seq(node.node_id) >= cluster.timing_seq
            for node in cluster.nodes.values()
            if node.usable or node.replaced
        )

    def removable(self, cluster: Cluster) -> list[NodeId]:
        """Return the nodes that may be removed: no job holds anything there, and every agent that
        may hold a lease has a roster that leaves them out.

        An older roster could count their answers against nodes that the scheduler counts without
        them.
        """
        leaving = [
            member.node_id
            for member in cluster.memberships.values()
            if member.leaving and not member.removed
        ]
        if not leaving or not all(
            self._knows_leaving_nodes(cluster, node)
            for node in cluster.nodes.values()
            if node.usable or node.replaced
        ):
            return []
        return [node_id for node_id in leaving if is_empty(cluster, node_id)]

    def _knows_leaving_nodes(self, cluster: Cluster, node: Node) -> bool:
        known = self._roster_seq(node.node_id) >= cluster.leaving_seq
        return known or not node.peer_address or is_leaving(cluster, node.node_id)

    def _roster_seq(self, node_id: NodeId) -> int:
        heard = self.nodes.get(node_id)
        return heard.roster_seq if heard is not None else -1

    def _short_roster_possible(self, order: dict[NodeId, int], kept: list[int], node: Node) -> bool:
        """Return whether a roster that this node may have was short: one that contains it and is at
        least as large as the one it has named.

        An agent without peers uses no roster: only that of all nodes counts for it.
        """
        known = self.nodes.get(node.node_id)
        least = max(order[node.node_id], known.roster_nodes - 1 if known is not None else 0)
        if not (node.peer_address or node.replaced):
            least = len(order) - 1
        return bisect_left(kept, least) < len(kept)
