"""Planted bugs about leases, terms and the loss of nodes, like those of `planted.py`."""

from collections.abc import Callable, Container
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Change, Stamp
from libs.common.folds import member_fold, node_fold
from libs.common.life import node_life
from libs.common.messages import Heartbeat, Lease
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster, Job, is_leaving
from services.node_agent.core import apply
from services.node_agent.core.state import State as AgentState
from services.node_agent.heartbeats import Heartbeats
from services.node_agent.peers import gossip
from services.scheduler.decide import decide, nodes
from services.scheduler.leases import leases, renewals
from services.scheduler.leases.leases import NO_ECHO, Leases
from services.scheduler.leases.renewals import Renewals
from services.scheduler.service import Scheduler
from tests.sim.hangs import SimWatchdog
from tests.sim.machine import Machine
from tests.sim.slot import Slot
from tests.sim.supervisors import SimSupervisors
from tests.sim.watchdog import Watchdog
from tests.sim.world import World


def no_supervisor_enforces_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Neither a supervisor nor the lease watchdog ends a job when the lease ends."""
    patch.setattr(Machine, "enforces_lease", False)
    patch.setattr(SimWatchdog, "enforces_lease", False)


def no_watchdog_ends_jobs_of_hung_supervisors(patch: pytest.MonkeyPatch) -> None:
    """A former bug: when its supervisor hangs, a job outlives its lease."""
    patch.setattr(SimWatchdog, "enforces_lease", False)


def the_silence_of_an_unguarded_node_proves_its_end(patch: pytest.MonkeyPatch) -> None:
    """The scheduler frees the jobs of a silent node although its lease watchdog was missing."""
    patch.setattr(nodes, "_surely_ended", lambda node: True)


def an_unguarded_agent_is_replaced_like_any_other(patch: pytest.MonkeyPatch) -> None:
    """Jobs of an agent without lease watchdog end with the lease when another agent replaces it."""

    registered = node_fold.registered

    def replaced(state: Cluster, fact: f.NodeRegistered, stamp: Stamp) -> Change:
        known = state.nodes.get(fact.node_id)
        if known is not None:
            known.unguarded = ""
        return registered(state, fact, stamp)

    patch.setitem(fold._FOLDS, f.NodeRegistered, replaced)


def the_setting_of_a_hardware_watchdog_proves_a_reset(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the scheduler counts on a reset although the device is not armed."""
    patch.setattr(nodes, "_surely_ended", lambda node: not node.unguarded or node.fence_ms > 0)


def another_writer_declares_nodes_lost(patch: pytest.MonkeyPatch) -> None:
    """A watchdog beside the scheduler reads heartbeats and records NodeLost on its own subject."""
    patch.setitem(subjects.WRITER_OF, f.NodeLost, "watchdog")
    patch.setattr(decide, "lose_node", lambda state, silent: ())
    slots = World._slots

    async def watch(slot: Slot) -> None:
        await Watchdog(slot.open_log(), slot.open_bus(), slot.clock).run()

    def with_watchdog(self: World) -> dict[str, Slot]:
        return {**slots(self), "watchdog": Slot(self, "watchdog", "control", watch)}

    patch.setattr(World, "_slots", with_watchdog)


def a_deposed_scheduler_grants_leases(patch: pytest.MonkeyPatch) -> None:
    """A scheduler grants leases until it reads of a later term, however long it has not reached the
    log.

    Only a partition makes it harmful. Otherwise this scheduler reads of the later term within
    milliseconds and ends, the later one hears the same heartbeats, and a node that the later one
    has answered refuses leases of earlier terms.
    """
    patch.setattr(Scheduler, "may_grant", lambda self, now: self.acked.epoch == self.state.epoch)


def a_lease_counts_from_its_answer(patch: pytest.MonkeyPatch) -> None:
    """An agent counts a lease from the moment at which it handles the answer, not from its
    heartbeat.

    Only an agent that freezes in between makes it harmful, under a lease that is long beside the
    notice that jobs get. Otherwise the agent waits for an answer for less than the margin that the
    scheduler adds to a lease.
    """
    lease_came = apply._lease_came

    def late(state: AgentState, lease: Lease, sent_boot_ns: int, now_ns: int) -> None:
        lease_came(state, lease, now_ns, now_ns)

    patch.setattr(apply, "_lease_came", late)


def a_new_profile_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """A shorter profile counts for silence although an agent still goes by the longer one."""
    patch.setattr(leases, "slowest_timing", lambda cluster: cluster.timing)
    patch.setattr(renewals, "slowest_timing", lambda cluster: cluster.timing)


def a_term_begins_without_waiting(patch: pytest.MonkeyPatch) -> None:
    """A new leader declares every node silent that it has not heard from, and asks no roster."""
    patch.setattr(Renewals, "losable", lambda self, cluster, silent, now: list(silent))
    patch.setattr(Leases, "begin", lambda self, cluster, now: None)
    patch.setattr(Leases, "_watch", lambda self, cluster, now: None)
    patch.setattr(Leases, "_hears_nothing", lambda self, cluster, now: False)


def a_lease_is_extended_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """An agent that no scheduler answers extends its lease without a majority."""
    patch.setattr(
        gossip, "_count", lambda state, node_id: state.asked_ns + state.roster.lease_ms * gossip.MS
    )


def renewed_peers_count_for_the_majority(patch: pytest.MonkeyPatch) -> None:
    """An agent extends its lease when most nodes answer, even nodes that a scheduler renewed."""
    answered = gossip.answered

    def credulous(
        gossip: gossip.Gossip, peer: NodeId, nonce: bytes, peer_unrenewed_ms: int, now_ns: int
    ) -> int:
        return answered(gossip, peer, nonce, 60_000, now_ns)

    patch.setattr(gossip, "answered", credulous)


def a_node_is_lost_by_its_own_silence_alone(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the scheduler ignores that most nodes may have extended their own leases."""
    patch.setattr(Renewals, "losable", lambda self, cluster, silent, now: silent)
    patch.setattr(Leases, "_hears_too_few", lambda self, cluster, now, beats: False)


def a_job_that_ignores_its_lease_is_requeued_too_early(patch: pytest.MonkeyPatch) -> None:
    """The loss of a silent node frees a job that ignores its lease and may still run there."""
    lose = member_fold.lose_if_gone

    def hasty(
        cluster: Cluster, job: Job, node_id: NodeId, seen_over: Container[JobId] | None = None
    ) -> bool:
        member = job.members[node_id]
        return lose(cluster, job, node_id, seen_over) or (
            member.incarnation <= cluster.nodes[node_id].lost
            and member_fold.lose_member(cluster, job, member)
        )

    patch.setattr(member_fold, "lose_if_gone", hasty)


def agents_do_not_tell_which_answers_they_hear(patch: pytest.MonkeyPatch) -> None:
    """No bug: all agents are of an earlier release, whose heartbeats name only leases."""
    made = Heartbeats._heartbeat

    def silent(self: Heartbeats, sent_ns: int) -> Heartbeat:
        return replace(made(self, sent_ns), echo_ns=NO_ECHO)

    patch.setattr(Heartbeats, "_heartbeat", silent)


def a_majority_that_heard_nothing_gets_no_lease_again(patch: pytest.MonkeyPatch) -> None:
    """A former bug: nodes that heard nothing for a while get no lease, although none can be lost,
    because most nodes heard nothing.
    """
    check = Renewals.check

    def forgetful(self: Renewals, cluster: Cluster, now: int) -> None:
        check(self, cluster, now)
        self.few_renewed = False

    patch.setattr(Renewals, "check", forgetful)


def silence_before_a_return_counts(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a returned node is lost again for its silence before the return."""
    patch.setattr(Leases, "_watch", lambda self, cluster, now: None)


def a_long_lease_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a new term does not wait for the long lease of a planned stop.

    A wall clock that was ahead caused it.
    """

    def forgetful(self: Leases, cluster: Cluster, now: int) -> None:
        begin(self, msgspec.structs.replace(cluster, extension_ms=0), now)

    begin = Leases.begin
    patch.setattr(Leases, "begin", forgetful)


def a_long_lease_is_reported_shorter_than_it_is(patch: pytest.MonkeyPatch) -> None:
    """An agent reports the next term's lease, but keeps the longer lease of a planned stop in its
    file.
    """
    patch.setattr(SimSupervisors, "replace_lease", SimSupervisors.extend_lease)


def an_empty_directory_frees_attempts_of_the_old_one(patch: pytest.MonkeyPatch) -> None:
    """A former bug: an agent with an empty state directory frees everything that its predecessor
    started.
    """
    patch.setattr(node_fold, "_elsewhere", lambda node, fact: False)


def a_node_is_removed_with_running_jobs(patch: pytest.MonkeyPatch) -> None:
    """The scheduler removes a node although a job still holds something there."""
    patch.setattr(nodes, "is_empty", lambda cluster, node_id: True)
    patch.setattr(renewals, "is_empty", lambda cluster, node_id: True)


def a_node_that_leaves_is_never_removed(patch: pytest.MonkeyPatch) -> None:
    """The scheduler never records that a node is removed, although the node is empty."""
    patch.setattr(decide, "remove_node", lambda state, removable: ())


def a_node_leaves_the_schedulers_count_in_one_step(patch: pytest.MonkeyPatch) -> None:
    """The scheduler stops counting a node as soon as its removal is requested, while agents still
    count it.
    """

    def early(count: Callable[..., Any]) -> Callable[..., Any]:
        def without_it(self: Any, cluster: Cluster, *given: int) -> Any:
            leaving = [
                node
                for node in cluster.nodes.values()
                if is_leaving(cluster, node.node_id) and node.usable
            ]
            states = [node.state for node in leaving]
            for node in leaving:
                node.state = node_life.REMOVED
            try:
                return count(self, cluster, *given)
            finally:
                for node, state in zip(leaving, states, strict=True):
                    node.state = state

        return without_it

    patch.setattr(Renewals, "check", early(Renewals.check))
    patch.setattr(Leases, "_hears_too_few", early(Leases._hears_too_few))
