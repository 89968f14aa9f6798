"""The scheduler's state: the cluster's fold, and indexes over it that make each decision a look-up.

Pure. Every job is in at most one bucket: that of the rule in `decide/` that must act on it. Facts
move jobs between buckets. The indexes are derived: `State(cluster)` builds them from any cluster,
so a snapshot holds none of them. What they answer depends on the cluster alone, never on the way by
which this process came to it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.folds.member_fold import homes
from libs.common.life import job_life
from libs.common.model import WHOLE_GPU, JobId, NodeId, TenantId
from libs.common.state.cluster import Cluster, Job, WriterMark, is_draining
from libs.common.state.ordering import DEFAULT_QUEUE, JobQueue
from services.scheduler import policies
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.forecast import UNKNOWN, expected_end_ns
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.placement.strategies import DEFAULT
from services.scheduler.policies import OrderKey, Policy
from services.scheduler.preemption.offers import Offers, share_of
from services.scheduler.preemption.preemptible import Need, Preemptible
from services.scheduler.queueing.queue import Queue
from services.scheduler.queueing.shape import LaneId, Waiting
from services.scheduler.state.buckets import WAIT, Buckets, bucket_for, is_ordinary, turns_ns
from services.scheduler.state.fabric_rules import DEFAULT_RULES, FabricRules, RoundClock
from services.scheduler.state.node_notes import NodeNotes
from services.scheduler.state.noted import Noted, is_end_of
from services.scheduler.state.outlook import Outlook
from services.scheduler.state.owed import Owed
from services.scheduler.state.ports import Ports
from services.scheduler.state.reserved_notes import ReservedNotes
from services.scheduler.state.restless import Restless, all_of
from services.scheduler.state.start_limits import StartLimits
from services.scheduler.state.swept_heap import SweptHeap


class State:
    """The cluster and the indexes that the rules read.

    `epoch` is this process's own term: 0 until it began one. The process decides only while the log
    agrees with it. `now_ns` is this machine's boot clock at the last decision.
    """

    def __init__(
        self,
        cluster: Cluster,
        placement: str = DEFAULT,
        grow_after_s: int = 0,
        fabric_rules: FabricRules = DEFAULT_RULES,
    ) -> None:
        self.cluster = cluster
        self.fabric_rules, self.round_clock = fabric_rules, RoundClock()
        # The tenant that asks for an explanation (`explain/asker.py`).
        self.asker: TenantId | None = None
        self.epoch = self.now_ns = 0
        self.capacity = Capacity(placement)
        self.queue = Queue()
        # `queue_held` is what the placed jobs of each queue hold. `turns` are the wall-clock times
        # at which the key of a waiting job changes or an allocation is due. `wall_ns` is the wall
        # clock at the last decision.
        self.queue_held: Counter[str] = Counter()
        self.turns: SweptHeap[tuple[int, JobId]] = SweptHeap()
        # The clocks of other writers may be wrong.
        own = cluster.writers.get(subjects.SCHEDULER)
        self.wall_ns = own.at_ns if own is not None else 0
        # Seconds for which a node that flaps is held back; 0: never.
        self.hold_s = 0
        self.nodes, self.buckets = NodeNotes(), Buckets()
        self.start_limits, self.ports = StartLimits(), Ports()
        self.address_of: dict[NodeId, str] = {}
        self.noted: dict[JobId, Noted] = {}
        # Allocations that hold nodes.
        self.held: dict[JobId, None] = {}
        # The `versions` at the last pass that placed nothing. The fields `no_room`, `none_grows`
        # and `none_free` hold the same for their rules.
        self.nothing_fits: tuple[object, ...] = ()
        # Attempts with an expected end: when it passes, job, attempt.
        self.overruns: SweptHeap[tuple[int, JobId, int]] = SweptHeap()
        self.outlook = Outlook(cluster, self.capacity)
        self.no_room: tuple[object, ...] = ()
        self.none_grows: tuple[object, ...] = ()
        self.preemptible = Preemptible(self.slice_of, grow_after_s)
        self.reserved_notes = ReservedNotes()
        self.reserved = self.reserved_notes.kept
        self.reserved_share = self.reserved_notes.share
        self.reserved_pools = self.reserved_notes.pools
        self.none_free: tuple[object, ...] = ()
        self.restless = Restless()
        self.owed = Owed(cluster)
        self.idle_look_ns = 0
        self.refresh(all_of(cluster))

    @property
    def seq(self) -> int:
        return self.cluster.seq

    @property
    def writers(self) -> Mapping[str, WriterMark]:
        return self.cluster.writers

    @property
    def versions(self) -> tuple[object, ...]:
        """Return everything that a placement depends on. A rule that placed nothing runs again when
        it changes.

        Reservations begin and end with time alone, so their phases are part of it.
        """
        phases = self._phases() if self.cluster.reservations else ()
        return (self.capacity.version, self.queue.version, phases)

    def _phases(self) -> tuple[object, ...]:
        now, kept = self.wall_ns, self.cluster.reservations.values()
        return tuple([(each, now < each.start_ns, now < each.end_ns) for each in kept])

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        """Fold a commit of the log."""
        for fact, change in zip(
            commit.facts, fold.apply_entry(self.cluster, seq, subject, commit), strict=True
        ):
            self._follow_fact(fact, change)

    def imagine(self, fact: AnyFact, stamp: Stamp) -> None:
        """Fold one fact of another writer that is not in the log, for a trial on a copy."""
        self._follow_fact(fact, fold.apply(self.cluster, fact, stamp))

    def _follow_fact(self, fact: AnyFact | Unknown, change: Change) -> None:
        if change is IGNORED:
            return  # its writer may not record it
        self.refresh(change)
        self.owed.follow(self.cluster, fact)
        if isinstance(fact, f.BudgetExhausted | f.BudgetRenewed | f.TenantSet):
            # The tenant's jobs are blocked from now on, or no longer.
            self.queue.version += 1
        self.queue.is_charged |= isinstance(fact, f.UsageCharged)
        if isinstance(fact, f.TenantSet):
            # The tenant may share devices from now on, or no longer.
            self.capacity.reopen(self.cluster)
            self.outlook.forget()
        if isinstance(fact, f.QueueSet):
            self._reorder(fact.queue)
            self.preemptible.reslice(self.cluster.jobs, fact.queue)
        if isinstance(fact, f.TermBegan | f.PluginDisabled):
            self._reorder()

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        """Fold own facts ahead of the log; their sequence is not known yet."""
        stamp = Stamp(
            seq=0, at_ns=at_ns, epoch=self.epoch, writer=subjects.SCHEDULER_KIND, writer_id=""
        )
        for fact in facts:
            waited = self.queue.waiting.get(fact.job_id) if isinstance(fact, f.JobPlaced) else None
            change = fold.apply(self.cluster, fact, stamp)
            assert change is not IGNORED, f"the scheduler decided what its own fold ignores: {fact}"
            if waited is not None:
                self._follow_placement(waited)
            else:
                self.refresh(change)
                self.owed.follow(self.cluster, fact)
                if isinstance(fact, f.PluginDisabled):
                    self._reorder()

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        """Pass over an own commit that came back: its sequence, and so the time of its placements,
        is known now.
        """
        for change in fold.pass_over(self.cluster, seq, subject, commit):
            self.refresh(change)

    def first(self, bucket: str) -> Job | None:
        """Return the job of this rule that was submitted first."""
        job_id = self.buckets.first(bucket)
        return self.cluster.jobs[job_id] if job_id is not None else None

    def begin(self, epoch: int, now_ns: int) -> None:
        """Begin this process's term.

        The start limits of jobs placed before count from now, because it is unknown how long they
        have waited.
        """
        self.epoch, self.now_ns = epoch, now_ns
        for job_id in self.noted:
            self.start_limits.watch(self.cluster.jobs[job_id], now_ns)
        self.preemptible.begin(self.cluster.jobs)

    def queue_named(self, name: str) -> JobQueue:
        """Return the queue with this name, with default settings if it was never configured."""
        return self.cluster.queues.get(name) or JobQueue(name)

    def queue_of(self, job: Job) -> JobQueue:
        """Return the queue of the job."""
        return self.queue_named(job.spec.queue or DEFAULT_QUEUE)

    def slice_of(self, job: Job) -> int:
        """Return the seconds of the job's time slice; 0 if it takes no turns."""
        return self.queue_of(job).slice_s(job.spec)

    def policy_of(self, queue: JobQueue) -> Policy:
        """Return the policy of the queue."""
        return policies.policy_named(queue.policy, self.cluster.plugins)

    def lane_of(self, job: Job) -> LaneId:
        """Return the lane in which the job waits."""
        name = job.spec.queue or DEFAULT_QUEUE
        ranked = self.policy_of(self.queue_named(name)).rank
        return LaneId(name, job.tenant if ranked is not None else "")

    def key_of(self, job: Job) -> OrderKey:
        """Return the job's sort key in its lane.

        An array comes behind its own waiting elements. In a queue with time slices, priority comes
        first, then the job whose last slice ended earlier, whatever the policy.
        """
        queue = self.queue_of(job)
        turn = (-job.spec.priority, job.preemption.sliced_ns) if queue.time_slice_s else ()
        return (
            *turn,
            *self.policy_of(queue).key(job, queue, self.wall_ns),
            job.elements is not None,
        )

    def pass_time(self, wall_ns: int) -> None:
        """Advance the wall clock: update jobs whose keys change with time, allocations that are
        due, and expected ends that have passed.
        """
        self.wall_ns = wall_ns
        for _, job_id in self.turns.take_before(wall_ns):
            self._reclassify(job_id)
        for _, job_id, attempt in self.overruns.take_before(wall_ns + 1):
            late = self.cluster.jobs.get(job_id)
            if late is not None and late.attempt == attempt:
                self.capacity.touch(homes(self.cluster, late.members.values()))

    def ring(self, now_ns: int) -> None:
        """Advance the boot clock: check preempted and preemptible jobs whose time has come."""
        self.now_ns = now_ns
        for job_id in self.preemptible.ring(self.cluster.jobs, now_ns):
            self.capacity.touch(self.cluster.jobs[job_id].members)

    def offers(self, request: ResourceRequest, sharing_domain: str, need: Need) -> Offers:
        """Return what nodes could offer this request if jobs ended that may make room for it."""
        return self.outlook.offers(
            request,
            sharing_domain,
            need,
            lambda job: self.preemptible.may_yield(job, need, self.now_ns),
        )

    def _reorder(self, name: str = "") -> None:
        """Sort the queue again because its policy changed; all queues if `name` is empty."""
        self.queue.version += 1
        for job_id in self.queue.take_out(name):
            self._wait(self.cluster.jobs[job_id])

    def _wait(self, job: Job) -> None:
        if not self.queue.lanes:
            self.queue.card_bytes = self.capacity.card_bytes
        self.queue.add(job, self.key_of(job), self.lane_of(job), job.refusals.avoided(self.wall_ns))
        key_turns_ns = self.policy_of(self.queue_of(job)).turns_ns
        if key_turns_ns is not None and key_turns_ns(job) >= self.wall_ns:
            self._turn_at(key_turns_ns(job), job.job_id)

    def _follow_placement(self, waited: Waiting) -> None:
        """Update the indexes after an own placement of this waiting job, which changes only what is
        free on its nodes. No rule acts on an ordinary attempt before one of them reports.
        """
        _, job_id, shape, _ = waited
        job = self.cluster.jobs[job_id]
        request = shape.request
        domain = "" if request.share == WHOLE_GPU else sharing_domain_of(self.cluster, shape.tenant)
        self.capacity.follow(job.members.values(), request, domain)
        self.capacity.placed_last = self.capacity.index[self.cluster.placed_last]
        self.queue.remove(job_id)
        del self.buckets.of[job_id]
        self._note(job)
        if not is_ordinary(job):
            self._reclassify(job_id)

    def refresh(self, change: Change) -> None:
        """Update the indexes for everything that a fact changed."""
        for node_id in change.nodes:
            self.capacity.refresh(self.cluster, node_id)
            self.nodes.note(self.cluster, node_id, self.capacity.index[node_id])
            self._note_address(node_id)
        self.capacity.learn(self.cluster)
        for job_id in change.jobs:
            self._reclassify(job_id)
        self.restless.note(change, self.cluster.locks)

    def _note_address(self, node_id: NodeId) -> None:
        """Move the ports of the node's jobs if the node registered with another address."""
        node = self.cluster.nodes[node_id]
        if self.address_of.get(node_id) == node.address:
            return
        self.address_of[node_id] = node.address
        for job_id in node.members:
            noted = self.noted.get(job_id)
            if noted is not None and next(iter(self.cluster.jobs[job_id].members)) == node_id:
                self.ports.give_back(noted.address, noted.port)
                self.ports.fit(node.address, noted.port)
                noted.address = node.address

    def _reclassify(self, job_id: JobId) -> None:
        """Update the indexes for a job that a fact changed."""
        job = self.cluster.jobs.get(job_id)
        if job is None:
            # It ended, and the cluster forgot it.
            self.buckets.move(job_id, "", 0)
            self.queue.remove(job_id)
            self.reserved_notes.forget(job_id)
            return
        new = bucket_for(job, self.wall_ns)
        old = self.buckets.move(job_id, new, job.seq)
        if new == WAIT:
            self._wait(job)
        elif old == WAIT:
            self.queue.remove(job_id)
        if (job.preemption.reserved or job_id in self.reserved) and self.reserved_notes.note(
            self.cluster, job, self.wall_ns
        ):
            self.queue.version += 1
        self._note_attempt(job)
        if (at_ns := turns_ns(job, self.wall_ns)) > 0:
            self._turn_at(at_ns, job_id)
        if job.spec.serve is not None:
            self._note_replica(job, job.spec.serve.model)
        if job.spec.preemptible:
            self.preemptible.note(job)
            self.capacity.touch(job.members)

    def _note_replica(self, job: Job, model: str) -> None:
        draining = is_draining(job, self.wall_ns)
        self.restless.note_replica(job.job_id, model, self.cluster.models, draining)
        if draining:
            self._turn_at(job.drain_until_ns, job.job_id)

    def _turn_at(self, at_ns: int, job_id: JobId) -> None:
        self.turns.add((at_ns, job_id), is_live=lambda entry: entry[1] in self.cluster.jobs)

    def _note_attempt(self, job: Job) -> None:
        """Keep the port and the start limit of the current attempt.

        One commit may end an attempt and begin the next.
        """
        noted, on_nodes = self.noted.get(job.job_id), job.state in job_life.ON_NODES
        if noted is not None and not (on_nodes and noted.attempt == job.attempt):
            del self.noted[job.job_id]
            self.held.pop(job.job_id, None)
            self.ports.give_back(noted.address, noted.port)
            self.queue_held[job.spec.queue or DEFAULT_QUEUE] -= noted.share
            # Another lane may be the first now.
            self.queue.version += len(self.queue.lanes) > 1
            noted = None
        if noted is None and on_nodes:
            self._note(job)
        elif noted is not None and noted.end_ns != expected_end_ns(job):
            noted.end_ns = self._expect(job)  # a new limit, or the time in the log
            self.capacity.touch(homes(self.cluster, job.members.values()))

    def _note(self, job: Job) -> None:
        spec = job.spec
        share = share_of(job)
        address = self.cluster.nodes[next(iter(job.members))].address
        self.ports.fit(address, job.port)
        self.noted[job.job_id] = Noted(
            attempt=job.attempt,
            address=address,
            port=job.port,
            share=share,
            end_ns=self._expect(job),
        )
        if spec.allocation is not None:
            self.held[job.job_id] = None
        self.queue_held[spec.queue or DEFAULT_QUEUE] += share
        if self.epoch:
            self.start_limits.watch(job, self.now_ns)

    def _expect(self, job: Job) -> int:
        """Return when the attempt ends. Its nodes are examined again once that has passed."""
        end_ns = expected_end_ns(job)
        if end_ns < UNKNOWN:
            self.overruns.add(
                (end_ns, job.job_id, job.attempt),
                is_live=lambda entry: is_end_of(self.noted.get(entry[1]), entry),
            )
        return end_ns
