"""Bugs planted on purpose, in the simulation only: each breaks one rule, and some checker must find
it.

Every function changes one thing through pytest's `monkeypatch`, which undoes it.
`test_planted_bugs.py` states the number of seeds within which the simulation must find it.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold, reasons, subjects
from libs.common.change import IGNORED
from libs.common.facts import AnyFact
from libs.common.folds import member_fold, node_fold
from libs.common.life import node_life
from libs.common.messages import Desired, Orders
from libs.common.model import NodeId
from libs.common.process import serving_tasks
from libs.common.process.service import Shell
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, Job, MemberView, is_leaving, tenant_of
from libs.common.state.reservation import Reservation
from libs.common.transport import log_memory
from libs.common.transport.log import AppendUnknown
from libs.common.transport.writer import Writer
from services.audit.trim import trim
from services.audit.trim.trim import Decision, Policy, Standing
from services.audit.trim.trimmer import Trimmer
from services.node_agent.core import observations as o
from services.node_agent.peers import gossip
from services.node_agent.service import Agent
from services.scheduler.decide import attempts, decide, elastic, nodes
from services.scheduler.leases import renewals
from services.scheduler.leases.leases import Leases
from services.scheduler.leases.renewals import Renewals
from services.scheduler.placement import capacity, choose, gang, place, ranking, sharing_domains
from services.scheduler.policies import POLICIES, OrderKey
from services.scheduler.preemption.preemptible import Need, Preemptible
from services.scheduler.queueing import backfill
from services.scheduler.reservations import reservations
from services.scheduler.state import buckets, state
from services.scheduler.state.state import State
from tests.sim.log import SimStream
from tests.sim.machine import Machine
from tests.sim.slot import Slot
from tests.sim.supervisors import SimSupervisors
from tests.sim.watchdog import Watchdog
from tests.sim.world import World


def the_guard_is_off(patch: pytest.MonkeyPatch) -> None:
    """The log accepts a commit whatever sequence its writer expects."""
    store = SimStream.store

    def unguarded(self: SimStream, subject: str, data: bytes, expected: int) -> int:
        last = self.last_by_subject.get(subject)
        return store(self, subject, data, last.seq if last else 0)

    patch.setattr(SimStream, "store", unguarded)


def neither_guard_nor_commit_numbers(patch: pytest.MonkeyPatch) -> None:
    """The guard is off, and no reader counts a writer's commits."""
    the_guard_is_off(patch)
    patch.setattr(fold, "check_place", lambda cluster, seq, subject, commit: None)


def tasks_are_cancelled_once(patch: pytest.MonkeyPatch) -> None:
    """When a serving task ends, the others are cancelled only once and awaited without a time
    limit.
    """

    async def cancelled_once(tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    patch.setattr(serving_tasks, "end_all", cancelled_once)


def tenants_share_devices_unasked(patch: pytest.MonkeyPatch) -> None:
    """A free part of a device goes to any tenant, although another tenant has the rest."""
    patch.setattr(capacity, "sharing_domain_on", lambda cluster, view: sharing_domains.SHARING)
    patch.setattr(backfill, "sharing_domain_of", lambda cluster, tenant: sharing_domains.SHARING)


def a_mig_instance_begins_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A MIG instance begins at the card's last slice, where no card allows an instance to begin."""
    patch.setattr(place, "_slices", lambda place, index, part, profile: 1 << 7)


def the_host_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A node serves a request whatever CPUs and memory it has left."""
    for asker in (ranking, choose):
        patch.setattr(asker, "host_serves", lambda place, request: True)


def what_is_reserved_is_free_for_all(patch: pytest.MonkeyPatch) -> None:
    """A device that is reserved for a job is free for every other job."""
    mirror = capacity.mirror

    def careless(cluster: Cluster, place: place.Place) -> None:
        node, place.node = place.node, msgspec.structs.replace(place.node, reserved={})
        mirror(cluster, place)
        place.node = node

    patch.setattr(capacity, "mirror", careless)


def a_gang_is_given_whatever_there_is(patch: pytest.MonkeyPatch) -> None:
    """A gang may get one node more than its maximum."""
    patch.setattr(
        elastic, "widest", lambda fewest, most, choose: gang.widest(fewest, most + 1, choose)
    )


def a_gang_grows_whoever_waits(patch: pytest.MonkeyPatch) -> None:
    """A gang is started again with more nodes although other jobs wait for them."""
    patch.setattr(elastic, "_wanted", lambda state, job: 0)


def a_preempted_job_has_failed(patch: pytest.MonkeyPatch) -> None:
    """The end of a preempted attempt counts as a failure: it uses up a retry or ends the job."""
    patch.setattr(attempts, "reasons", SimpleNamespace(**vars(reasons) | {"GOES_ON": ()}))


def a_turn_is_over_at_once(patch: pytest.MonkeyPatch) -> None:
    """A job with time slices yields as soon as a job like it waits."""
    after_s = Preemptible._yields_after_s

    def hasty(self: Preemptible, job: Job, need: Need) -> int | None:
        return job.spec.min_run_s if after_s(self, job, need) is not None else None

    patch.setattr(Preemptible, "_yields_after_s", hasty)


def who_had_its_turn_keeps_its_place(patch: pytest.MonkeyPatch) -> None:
    """A job that yielded after its slice keeps its place in the queue."""
    key_of = State.key_of

    def selfish(self: State, job: Job) -> OrderKey:
        kept = msgspec.structs.replace(job.preemption, sliced_ns=0)
        return key_of(self, msgspec.structs.replace(job, preemption=kept))

    patch.setattr(State, "key_of", selfish)


def the_last_comes_first(patch: pytest.MonkeyPatch) -> None:
    """A queue of policy fifo runs the last job first."""
    patch.setitem(
        POLICIES, "fifo", POLICIES["fifo"]._replace(key=lambda job, queue, now_ns: (0, 0, -job.seq))
    )


def who_passes_takes_what_was_promised(patch: pytest.MonkeyPatch) -> None:
    """A backfilled job may end after the reservation of the job in front begins."""
    patch.setattr(backfill, "ends_in_time", lambda job, reservation, now_ns: True)


def a_reservation_is_kept_only_once_it_has_begun(patch: pytest.MonkeyPatch) -> None:
    """A node accepts any job until its reservation begins, however long the job runs."""
    in_the_way = reservations.in_the_way

    def hasty(state: State, job: Job) -> list[Reservation]:
        return [each for each in in_the_way(state, job) if each.start_ns <= state.wall_ns]

    patch.setattr(reservations, "in_the_way", hasty)


def nobody_waits_for_another_job(patch: pytest.MonkeyPatch) -> None:
    """A job is queued although the jobs that it depends on have not ended."""

    def heedless(job: Job, wall_ns: int) -> str:
        waits = job.has_room and not job.refusals.waits(wall_ns)
        return buckets.WITHDRAW if job.cancel is not None else buckets.WAIT if waits else ""

    patch.setattr(buckets, "_of_waiting", heedless)


def an_array_has_room_for_all(patch: pytest.MonkeyPatch) -> None:
    """The limit on live elements of an array is not enforced."""
    patch.setattr(Job, "has_room", property(lambda job: True))


def an_extension_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    """Folds ignore the extension of an allocation."""
    patch.setitem(fold._FOLDS, f.AllocationExtended, lambda cluster, fact, stamp: IGNORED)


def a_take_over_forgets_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """A new scheduler sets no timers for placements from before its term."""
    begin = state.State.begin

    def forgetful(self: state.State, epoch: int, now_ns: int) -> None:
        begin(self, epoch, now_ns)
        self.turns.clear()

    patch.setattr(state.State, "begin", forgetful)


def no_supervisor_enforces_the_lease(patch: pytest.MonkeyPatch) -> None:
    """A supervisor does not end its job when the lease ends."""
    patch.setattr(Machine, "enforces_lease", False)


def an_order_names_no_attempt(patch: pytest.MonkeyPatch) -> None:
    """Orders name only the job, and every node takes them for attempt 1."""
    tell = Agent.tell

    def forgetful(self: Agent, seen: o.Observation) -> None:
        match seen:
            case o.OrdersReceived(orders):
                seen = o.OrdersReceived(
                    Orders(orders.epoch, tuple(_first(order) for order in orders.orders))
                )
            case o.DesiredReceived(request):
                starts, stops = (
                    tuple(map(_first, request.starts)),
                    tuple(map(_first, request.stops)),
                )
                seen = o.DesiredReceived(
                    Desired(request.epoch, request.incarnation, request.seq, starts, stops)
                )
            case _:
                pass
        tell(self, seen)

    patch.setattr(Agent, "tell", forgetful)


def _first(order: Any) -> Any:
    return msgspec.structs.replace(order, attempt=1)


def another_writer_says_who_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A watchdog beside the scheduler reads heartbeats and records NodeLost on its own subject."""
    patch.setitem(subjects.WRITER_OF, f.NodeLost, "watchdog")
    patch.setattr(decide, "lose_node", lambda state, silent: ())
    slots = World._slots

    async def watch(slot: Slot) -> None:
        await Watchdog(slot.open_log(), slot.open_bus(), slot.clock).run()

    def with_watchdog(self: World) -> dict[str, Slot]:
        return {**slots(self), "watchdog": Slot(self, "watchdog", "control", watch)}

    patch.setattr(World, "_slots", with_watchdog)


def a_release_frees_whatever_attempt_holds(patch: pytest.MonkeyPatch) -> None:
    """A release removes the oldest hold of the device, even of another attempt."""

    def careless(cluster: Cluster, job: Job, member: MemberView) -> None:
        tenant = tenant_of(cluster, job.tenant)
        for request in member.gpus:
            holds = cluster.gpus[request.uuid].holds
            if holds:
                tenant.held_share -= holds.pop(next(iter(holds)))

    patch.setattr(ledger, "release", careless)


def orders_come_from_what_is_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """The scheduler sends orders before the log has acknowledged its decision."""

    def hasty(self: Shell, facts: list[AnyFact]) -> None:
        self.writer.put(facts)
        self.voice.acknowledged(self.state.seq + 1, facts)

    patch.setattr(Shell, "_record", hasty)


def a_counter_is_the_message_id(patch: pytest.MonkeyPatch) -> None:
    """The log drops a message whose number it has seen before."""
    patch.setattr(
        log_memory,
        "message_id",
        lambda subject, expected, data: f"{subject} {f.decode(data).number}",
    )


def a_term_begins_without_waiting(patch: pytest.MonkeyPatch) -> None:
    """A new leader declares every node silent that it has not heard from, and asks no roster."""
    patch.setattr(Renewals, "losable", lambda self, cluster, silent, now: list(silent))
    patch.setattr(Leases, "begin", lambda self, cluster, now: None)
    patch.setattr(Leases, "_watch", lambda self, cluster, now: None)
    patch.setattr(Leases, "_cannot_tell", lambda self, cluster, now: False)


def an_append_of_unknown_outcome_is_done(patch: pytest.MonkeyPatch) -> None:
    """A writer treats an append of unknown outcome as stored."""

    async def trusting(self: Writer, data: bytes) -> int:
        try:
            return await self.log.append(self.subject, data, self.expected)
        except AppendUnknown:
            return self.expected + 1

    patch.setattr(Writer, "_append", trusting)


def a_writer_owns_what_came_before_it(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a restarted service takes its own earlier commits for another process's."""
    begin = Writer.__init__

    def attached_to_nothing(self: Writer, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self.attached_seq = 0

    patch.setattr(Writer, "__init__", attached_to_nothing)


def a_lease_is_extended_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """An agent that no scheduler answers extends its lease without a majority."""
    patch.setattr(
        gossip, "_count", lambda state, node_id: state.asked_ns + state.roster.lease_ms * gossip.MS
    )


def a_renewed_peer_counts(patch: pytest.MonkeyPatch) -> None:
    """An agent extends its lease when most nodes answer, even nodes that a scheduler renewed."""
    answered = gossip.answered

    def credulous(
        state: gossip.Gossip, peer: NodeId, nonce: bytes, unrenewed_ms: int, now_ns: int
    ) -> int:
        return answered(state, peer, nonce, 60_000, now_ns)

    patch.setattr(gossip, "answered", credulous)


def a_node_is_lost_by_its_own_silence_alone(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the scheduler ignores that most nodes may have extended their own leases."""
    patch.setattr(Renewals, "losable", lambda self, cluster, silent, now: silent)
    patch.setattr(Leases, "_hears_too_few", lambda self, cluster, now: False)


def what_goes_on_is_requeued_like_the_others(patch: pytest.MonkeyPatch) -> None:
    """The loss of a silent node frees a job that ignores its lease and may still run there."""
    lose = member_fold.lose_if_gone

    def hasty(cluster: Cluster, job: Job, node_id: NodeId) -> bool:
        member = job.members[node_id]
        return lose(cluster, job, node_id) or (
            member.incarnation <= cluster.nodes[node_id].lost
            and member_fold.lose_member(cluster, job, member)
        )

    patch.setattr(member_fold, "lose_if_gone", hasty)


def old_silence_counts(patch: pytest.MonkeyPatch) -> None:
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


def the_log_is_trimmed_without_the_archive(patch: pytest.MonkeyPatch) -> None:
    """The trimmer purges entries without looking for them in the archive, and ignores how far
    readers have read.
    """
    decide_trim = trim.decide

    def hasty(policy: Policy, standing: Standing) -> Decision:
        return decide_trim(
            policy,
            msgspec.structs.replace(
                standing, young=standing.last + 1, readers={"nobody": standing.last}
            ),
        )

    patch.setattr(trim, "decide", hasty)
    patch.setattr(trim, "prove", lambda entries, records: None)


def the_log_is_trimmed_without_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The trimmer purges entries that no stored snapshot covers."""

    async def forgetful(self: Trimmer, cluster: Cluster) -> None:
        return

    patch.setattr(Trimmer, "_store", forgetful)


def a_long_lease_is_said_to_be_over_and_is_not(patch: pytest.MonkeyPatch) -> None:
    """An agent reports the next term's lease, but keeps the longer lease of a planned stop in its
    file.
    """
    patch.setattr(SimSupervisors, "replace_lease", SimSupervisors.extend_lease)


def an_empty_directory_speaks_for_the_one_before(patch: pytest.MonkeyPatch) -> None:
    """A former bug: an agent with an empty state directory frees everything that its predecessor
    started.
    """
    patch.setattr(node_fold, "_elsewhere", lambda node, fact: False)


def a_node_is_removed_with_what_lives_there(patch: pytest.MonkeyPatch) -> None:
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
        def without_it(self: Any, cluster: Cluster, now: int) -> Any:
            leaving = [
                node
                for node in cluster.nodes.values()
                if is_leaving(cluster, node.node_id) and node.usable
            ]
            states = [node.state for node in leaving]
            for node in leaving:
                node.state = node_life.REMOVED
            try:
                return count(self, cluster, now)
            finally:
                for node, state in zip(leaving, states, strict=True):
                    node.state = state

        return without_it

    patch.setattr(Renewals, "check", early(Renewals.check))
    patch.setattr(Leases, "_hears_too_few", early(Leases._hears_too_few))
