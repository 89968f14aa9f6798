"""The scheduler's side of the leases: which node was heard when, and which lease it may hold.

Pure: times are nanoseconds of this machine's boot clock, given as arguments. Nothing here is in the
log. A new term starts from the worst case: the term before it has just answered every node. The
silence of a node counts only while at least half of all nodes are heard.
"""

from typing import Final, NamedTuple

from libs.common.life import node_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node, slowest_timing

MS: Final = 1_000_000
# After a pause longer than this, silence during the pause proves nothing about nodes.
PAUSE_MAX_MS: Final = 1_000
# A node that missed this many heartbeats is quiet. Its jobs stay, but new replicas start elsewhere.
QUIET_BEATS: Final = 3
# A node counts as heard for this many heartbeats after its last one, but never longer than a lease.
# With fewer, one late heartbeat would make the scheduler deaf and restart every count of silence.
# With a short lease `renewals.py` asks for more.
HEARD_BEATS: Final = 5
# A node that has heard none of this many answers gets no lease until it hears one. With fewer, a
# short outage of the link would end jobs with the lease profile fast.
DEAF_BEATS: Final = 5
# The echo of an agent of an earlier release.
NO_ECHO: Final = -1


class Unechoed(NamedTuple):
    """The answers of which a node has heard none: the time of the first one, how many there were,
    and the newest heartbeat that was answered.
    """

    since: int
    answers: int
    sent: int


class Leases:
    """The leases that nodes may hold.

    Until `floor`, every node may hold a lease. Until `extension_over`, so may a node that is not in
    `taken`. `taken` are the nodes that have replaced the long lease of a planned stop by one of
    this term. Counting began at `began`. `heard` are heartbeats of current incarnations, `beats`
    those of all agents of the nodes. `dead` are the incarnations of nodes that an operator
    declared dead and that sent no heartbeat since.
    """

    def __init__(self) -> None:
        self.began = 0
        self.floor = 0
        self.extension_over = 0
        self.taken: dict[NodeId, None] = {}
        self.granted: dict[NodeId, int] = {}
        self.heard: dict[NodeId, int] = {}
        self.beats: dict[NodeId, int] = {}
        self.watched: dict[NodeId, tuple[bool, int]] = {}
        self.noticed: dict[NodeId, int] = {}
        # The answer that each node heard last (True), or the lease of an agent that does not tell
        # which answers it hears (False); and what was answered since then.
        self.echoed: dict[NodeId, tuple[bool, int]] = {}
        self.unechoed: dict[NodeId, Unechoed] = {}
        self.dead: dict[NodeId, int] = {}
        self.listening_since = 0
        self.ticked = 0
        self.deaf = False

    def begin(self, cluster: Cluster, now: int) -> None:
        """Begin a term, or count again after a pause: assume that a leader of the last term
        answered every node just now.

        After a planned stop that answer was a long lease. When it was given is unknown, because
        clocks of two machines cannot be compared.
        """
        timing = slowest_timing(cluster)
        self.floor = now + (timing.lease_ms + timing.term_ms) * MS
        self.extension_over = max(self.floor, now + (cluster.extension_ms + timing.term_ms) * MS)
        self.taken.clear()
        self.unechoed.clear()
        self.dead.clear()
        self.began = self.ticked = self.listening_since = now

    def hear(
        self,
        cluster: Cluster,
        node_id: NodeId,
        now: int,
        taken: bool,
        named: int = 0,
        echo: int = NO_ECHO,
    ) -> None:
        """Note a heartbeat of the node's current incarnation. `taken` is true if it names a lease
        of this term, `named` says which. `echo` is the last answer that the agent has heard.

        Supervisors see that lease a moment later, so its time counts from now.
        """
        self.heard[node_id] = now
        self.note_beat(cluster, node_id, now)
        last = (echo != NO_ECHO, named if echo == NO_ECHO else echo)
        if self.echoed.get(node_id) != last:
            self.echoed[node_id] = last
            self.unechoed.pop(node_id, None)
        if taken and node_id not in self.taken:
            self.taken[node_id] = None
            self.granted[node_id] = max(
                self.granted.get(node_id, 0), now + slowest_timing(cluster).lease_ms * MS
            )

    def note_beat(self, cluster: Cluster, node_id: NodeId, now: int) -> None:
        """Note that an agent of the node sent a heartbeat, whatever the verdict on it.

        The machine runs, so an operator's word that it is dead does not count. The incarnation may
        be one that the log does not know yet, so silence and leases stay as they are.
        """
        if node_id in cluster.nodes:
            self.beats[node_id] = now
            self.dead.pop(node_id, None)

    def grant(self, cluster: Cluster, node_id: NodeId, now: int, sent: int = 0) -> int:
        """Grant a lease that is counted from now, and return its length in milliseconds.

        A longer one of a former timing stays until it is over. `sent` is when the agent sent the
        heartbeat, by its own clock: answers to a repeated heartbeat count as one.
        """
        until = now + cluster.timing.lease_ms * MS
        self.granted[node_id] = max(self.granted.get(node_id, 0), until)
        since, answers, latest = self.unechoed.get(node_id, (now, 0, -1))
        sent = sent or now
        self.unechoed[node_id] = Unechoed(since, answers + (sent > latest), max(sent, latest))
        return cluster.timing.lease_ms

    def is_deaf(self, cluster: Cluster, node_id: NodeId, now: int) -> bool:
        """Return whether the node is heard but hears nothing: it has heard none of DEAF_BEATS
        answers.

        It gets no more leases until it hears an answer, so it is lost like a silent node. An agent
        of an earlier release names only leases, so a lease and its margin must pass, and only its
        next registration ends this. While fewer than half of all nodes are renewed, none can be
        lost: then all get leases.
        """
        unechoed = self.unechoed.get(node_id)
        if unechoed is None:
            return False
        echoes, _ = self.echoed.get(node_id, (False, 0))
        if echoes:
            return unechoed.answers >= DEAF_BEATS
        return now - unechoed.since > slowest_timing(cluster).silence_ms * MS

    def returned(self, cluster: Cluster, node_id: NodeId, now: int) -> None:
        """Count the node's silence from now, because the log has acknowledged its return."""
        self.unechoed.pop(node_id, None)
        self._count_from(cluster, node_id, now)

    def declare_dead(self, cluster: Cluster, node_id: NodeId, now: int) -> None:
        """Note that an operator declared the node dead, if it is unheard now.

        The word counts for the incarnation that it names, also if that was declared lost at the
        same time: neither the gateway nor the scheduler then knew of the other's fact.
        """
        incarnation = cluster.nodes[node_id].word[0]
        if self._is_dead(cluster, node_id, incarnation, now):
            self.dead[node_id] = incarnation

    def unheard(self, cluster: Cluster, now: int) -> list[NodeId]:
        """Return the usable nodes of which no agent sent a heartbeat for a lease and its margin,
        however many.
        """
        return [
            node.node_id
            for node in cluster.nodes.values()
            if node.usable and self._is_unheard(cluster, node.node_id, now)
        ]

    def declared_dead(self, cluster: Cluster, now: int) -> list[tuple[NodeId, int]]:
        """Return the unheard nodes that an operator declared dead, with their incarnations.

        How many others are heard does not matter, because the operator has looked at the machine.
        """
        return [
            (node_id, incarnation)
            for node_id, incarnation in self.dead.items()
            if self._is_dead(cluster, node_id, incarnation, now)
        ]

    def _is_dead(self, cluster: Cluster, node_id: NodeId, incarnation: int, now: int) -> bool:
        """Return whether the incarnation may be declared dead, and no agent of it answers now."""
        node = cluster.nodes.get(node_id)
        return (
            node is not None
            and may_be_buried(node, incarnation)
            and self._is_unheard(cluster, node_id, now)
        )

    def _is_unheard(self, cluster: Cluster, node_id: NodeId, now: int) -> bool:
        last = max(self.began, self.beats.get(node_id, 0), self.noticed.get(node_id, 0))
        return last < now - slowest_timing(cluster).silence_ms * MS

    def extension_is_over(self, cluster: Cluster, now: int) -> bool:
        """Return whether no node can hold the long lease of a planned stop any more.

        After a restore only its time ends it, because a node that the log does not know, or counts
        as lost, may hold it.
        """
        if not cluster.extension_ms:
            return False
        if now > self.extension_over:
            return True
        return not cluster.settling and all(
            node.node_id in self.taken for node in cluster.nodes.values() if _counts(node)
        )

    def are_over(self, cluster: Cluster, now: int) -> bool:
        """Return whether no job runs by a lease that a scheduler granted in an earlier term, on
        nodes that the log does not know either.

        False while this process does not hear. Call `silent` first.
        """
        margin = slowest_timing(cluster).margin_ms * MS
        until = max(self.floor, self.extension_over)
        return not self.deaf and not cluster.extension_ms and until + margin < now

    def silent(self, cluster: Cluster, acked: Cluster, now: int) -> list[tuple[NodeId, int]]:
        """Return the (node, incarnation) pairs whose last possible lease ended more than a margin
        ago.

        For a node whose agent was replaced, the incarnation is the last one that was replaced. A
        node whose return the log has not yet acknowledged is not silent: it may be heard, and gets
        no lease for that reason alone.
        """
        self._watch(cluster, now)
        if self._hears_nothing(cluster, now):
            return []
        return [
            (node.node_id, node.replaced[-1] if node.replaced else node.incarnation)
            for node in cluster.nodes.values()
            if _counts(node)
            and self._held_until(node.node_id) + _margin(cluster, node) < now
            and _life(node) == _life(acked.nodes.get(node.node_id))
        ]

    def quiet(self, cluster: Cluster, now: int) -> list[NodeId]:
        """Return the usable nodes that missed heartbeats while this process could hear.

        Call `silent` first: it notices whether this process can hear.
        """
        if self.deaf:
            return []
        since = now - QUIET_BEATS * slowest_timing(cluster).heartbeat_ms * MS
        return [
            node.node_id
            for node in cluster.nodes.values()
            if node.usable and self._last_sign(node.node_id) < since
        ]

    def _last_sign(self, node_id: NodeId) -> int:
        return max(self.listening_since, self.heard.get(node_id, 0), self.noticed.get(node_id, 0))

    def _held_until(self, node_id: NodeId) -> int:
        """Return the latest end of a lease that the node may hold."""
        return max(
            self.floor,
            0 if node_id in self.taken else self.extension_over,
            self.granted.get(node_id, 0),
        )

    def _watch(self, cluster: Cluster, now: int) -> None:
        """Count the silence of nodes that are new, came back or restarted from now on.

        A replaced incarnation counts likewise, but once: its successor gets no lease and may
        restart often.
        """
        for node in cluster.nodes.values():
            watch = (node.usable, node.replaced[-1] if node.replaced else node.incarnation)
            if _counts(node) and self.watched.get(node.node_id) != watch:
                self.watched[node.node_id] = watch
                self.unechoed.pop(node.node_id, None)
                self._count_from(cluster, node.node_id, now)

    def _count_from(self, cluster: Cluster, node_id: NodeId, now: int) -> None:
        self.noticed[node_id] = now
        self.granted[node_id] = max(
            self.granted.get(node_id, 0), now + slowest_timing(cluster).lease_ms * MS
        )

    def _hears_nothing(self, cluster: Cluster, now: int) -> bool:
        """Return whether this process itself does not hear. While it does not, and once after,
        every count starts again.
        """
        paused = now - self.ticked > PAUSE_MAX_MS * MS
        was_deaf, self.deaf = self.deaf, self._hears_too_few(cluster, now, HEARD_BEATS)
        self.ticked = now
        if self._hears_too_few(cluster, now, QUIET_BEATS):
            self.listening_since = now
        if paused:  # heartbeats of this time wait to be read
            self.began = now
            self.unechoed.clear()
        if paused or self.deaf or was_deaf:
            self.floor = max(self.floor, now + slowest_timing(cluster).lease_ms * MS)
            self.listening_since = now
            return True
        return False

    def _hears_too_few(self, cluster: Cluster, now: int, beats: int) -> bool:
        timing = slowest_timing(cluster)
        since = now - min(beats * timing.heartbeat_ms, timing.lease_ms) * MS
        usable = [node.node_id for node in cluster.nodes.values() if node.usable]
        heard = sum(1 for node_id in usable if self.heard.get(node_id, 0) >= since)
        return 2 * heard < len(usable)


def may_be_buried(node: Node, incarnation: int) -> bool:
    """Return whether an operator may declare this incarnation dead: it is the node's last one, is
    usable or was declared lost, and was not declared dead yet.
    """
    was_lost = node.state == node_life.UNREACHABLE and node.lost == incarnation
    return node.incarnation == incarnation and node.dead < incarnation and (node.usable or was_lost)


def _life(node: Node | None) -> tuple[object, ...]:
    """Return what tells one life of a node from another."""
    return (node.usable, node.incarnation, *node.replaced) if node is not None else ()


def _margin(cluster: Cluster, node: Node) -> int:
    """Return the time after the last possible lease in which the node's jobs end.

    Without its lease watchdog that is the time of the hardware watchdog, also while that is not
    known to be armed: a longer wait is always safe.
    """
    fence_ms = max(node.fence_ms, node.armed_ms) if node.unguarded else 0
    return (slowest_timing(cluster).margin_ms + fence_ms) * MS


def _counts(node: Node) -> bool:
    """Return whether some incarnation of the node may still hold a lease."""
    return node.usable or bool(node.replaced)
