"""The scheduler's state: the cluster's fold, and indexes over it that make each decision a look-up.

Pure. Every job is in at most one bucket: the one of the rule of `decide.py` that has to act on it;
`apply` moves it as facts change it. The indexes are derived: `State(cluster)` builds them from any
cluster, so a snapshot holds none of them, and what they answer depends on the cluster alone, never
on the way by which this process came to it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from libs.common import fold, subjects
from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import (
    AnyFact,
    BudgetExhausted,
    BudgetRenewed,
    Commit,
    JobPlaced,
    PluginDisabled,
    QueueSet,
    TenantSet,
    TermBegan,
    Unknown,
)
from libs.common.folds.member_fold import homes
from libs.common.life import job_life
from libs.common.model import WHOLE_GPU, JobId, NodeId, TenantId, attempt_key
from libs.common.state.cluster import (
    Cluster,
    Job,
    WriterMark,
    is_draining,
    is_leaving,
    is_removed,
    owes_nothing,
)
from libs.common.state.ordering import DEFAULT_QUEUE, MIB, SECOND_NS, JobQueue
from services.scheduler import policies
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.forecast import UNKNOWN, Forecast, expected_end_ns
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.placement.strategies import DEFAULT
from services.scheduler.policies import OrderKey, Policy, Sizes
from services.scheduler.preemption.offers import Offers, share_of
from services.scheduler.preemption.preemptible import Need, Preemptible
from services.scheduler.queueing.queue import LaneId, Queue, shape_of
from services.scheduler.state.buckets import (
    ENQUEUE,
    EXPIRE,
    SETTLE,
    STOP,
    WAIT,
    WITHDRAW,
    bucket_for,
    turns_ns,
    waits_to_start,
)
from services.scheduler.state.noted import Kept, Noted
from services.scheduler.state.outlook import Outlook
from services.scheduler.state.ports import Ports
from services.scheduler.state.restless import Restless


class State:
    """`epoch` is this process's own term: 0 until it began one, and it decides only while the log
    agrees.

    `now_ns` is this machine's boot clock when it was last asked to decide; `deadlines` are on it.
    """

    def __init__(self, cluster: Cluster, placement: str = DEFAULT, grow_after_s: int = 0) -> None:
        self.cluster = cluster
        self.asker: TenantId | None = None  # of an explanation (`proof/asker.py`)
        self.epoch = 0
        self.now_ns = 0
        self.capacity = Capacity(placement)
        self.queue = Queue()
        # By queue, what its placed jobs hold; when a waiting job's key turns or an allocation is
        # due, by the wall clock, which was last `wall_ns`.
        self.queue_held: Counter[str] = Counter()
        self.turns: list[tuple[int, JobId]] = []
        own = cluster.writers.get(subjects.SCHEDULER)  # others' clocks may be wrong
        self.wall_ns = own.at_ns if own is not None else 0
        self.size_of: dict[NodeId, Sizes] = {}
        self.sizes: Sizes = (0, 0, 0)
        # The jobs of each rule as a heap of (submission, job); `bucket_of` says which entries still
        # hold.
        self.buckets: dict[str, list[tuple[int, JobId]]] = {
            name: [] for name in (ENQUEUE, WITHDRAW, STOP, SETTLE, EXPIRE)
        }
        self.bucket_of: dict[JobId, str] = {}
        self.deadlines: list[tuple[int, JobId, int]] = []
        # Bits, as in `capacity`.
        self.returning = 0
        self.dead = 0
        # Registered nodes that are to be removed and are not yet.
        self.leaving: dict[NodeId, None] = {}
        self.ports = Ports()
        self.address_of: dict[NodeId, str] = {}
        self.noted: dict[JobId, Noted] = {}
        # Allocations on nodes.
        self.held: dict[JobId, None] = {}
        # The last `versions` at which nothing could be placed.
        self.nothing_fits: tuple[object, ...] = ()
        # Of attempts with an expected end, when that has passed.
        self.overruns: list[tuple[int, JobId, int]] = []
        self.outlook = Outlook(cluster, self.capacity)
        self.no_room: tuple[object, ...] = ()
        self.none_grows: tuple[object, ...] = ()
        self.preemptible = Preemptible(self.slice_of, grow_after_s)
        # Jobs that have devices reserved, and what that is by tenant; the versions at which none of
        # them could be placed.
        self.reserved: dict[JobId, Kept] = {}
        self.reserved_share: Counter[TenantId] = Counter()
        self.none_free: tuple[object, ...] = ()
        self.restless = Restless()
        self._look_at(Change(tuple(cluster.jobs), tuple(cluster.nodes), tuple(cluster.models)))

    @property
    def seq(self) -> int:
        return self.cluster.seq

    @property
    def writers(self) -> Mapping[str, WriterMark]:
        return self.cluster.writers

    @property
    def versions(self) -> tuple[object, ...]:
        """All on which a placement depends: it is asked about again when one of these differs.

        Reservations begin and end by time alone.
        """
        now, kept = self.wall_ns, self.cluster.reservations.values()
        return (
            self.capacity.version,
            self.queue.version,
            *((each, now < each.start_ns, now < each.end_ns) for each in kept),
        )

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        """Fold a commit of the log."""
        for fact, change in zip(
            commit.facts, fold.apply_entry(self.cluster, seq, subject, commit), strict=True
        ):
            self._heard(fact, change)

    def hear(self, fact: AnyFact, stamp: Stamp) -> None:
        """Fold one fact of somebody else that no log brings: it is only imagined."""
        self._heard(fact, fold.apply(self.cluster, fact, stamp))

    def _heard(self, fact: AnyFact | Unknown, change: Change) -> None:
        self._look_at(change)
        if isinstance(fact, BudgetExhausted | BudgetRenewed):
            self.queue.version += 1  # its tenant's jobs let others pass from now on, or no more
        if isinstance(fact, TenantSet):
            self.queue.version += 1  # a higher limit may let a job start
            self.capacity.reopen(self.cluster)  # or its word on sharing open a device
            self.outlook.forget()
        if isinstance(fact, QueueSet):
            self._reorder(fact.queue)
            self.preemptible.reslice(self.cluster.jobs, fact.queue)
        if isinstance(fact, TermBegan | PluginDisabled):
            self._reorder()

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        """Fold own facts ahead of the log; their sequence is not known yet."""
        stamp = Stamp(0, at_ns, self.epoch, subjects.SCHEDULER_KIND, "")
        for fact in facts:
            reserved = (
                isinstance(fact, JobPlaced) and self.cluster.jobs[fact.job_id].preemption.reserved
            )
            change = fold.apply(self.cluster, fact, stamp)
            assert change is not IGNORED, f"the scheduler decided what its own fold ignores: {fact}"
            if isinstance(fact, JobPlaced) and not reserved:
                self._follow(fact)
            else:
                self._look_at(change)
            if isinstance(fact, PluginDisabled):
                self._reorder()

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        """An own commit came back: from when on its placements and turns count is known
        only now.
        """
        for change in fold.pass_over(self.cluster, seq, subject, commit):
            self._look_at(change)

    def first(self, bucket: str) -> Job | None:
        """The job of this rule that was submitted first."""
        heap = self.buckets[bucket]
        while heap:
            job_id = heap[0][1]
            if self.bucket_of.get(job_id) == bucket:
                return self.cluster.jobs[job_id]
            heappop(heap)
        return None

    def begin(self, epoch: int, now_ns: int) -> None:
        """This process's term: what was placed before it has its start limit from now on, for
        nobody knows since when it waits.
        """
        self.epoch, self.now_ns = epoch, now_ns
        for job_id in self.noted:
            self._watch_start(self.cluster.jobs[job_id])
        self.preemptible.begin(self.cluster.jobs)

    def unstarted(self, now_ns: int) -> Job | None:
        """A job whose start limit has passed.

        Entries of attempts that began or ended are dropped on the way.
        """
        while self.deadlines and self.deadlines[0][0] <= now_ns:
            _, job_id, attempt = self.deadlines[0]
            job = self.cluster.jobs.get(job_id)
            if job is not None and job.attempt == attempt and waits_to_start(job):
                return job
            heappop(self.deadlines)
        return None

    def queue_named(self, name: str) -> JobQueue:
        return self.cluster.queues.get(name) or JobQueue(name)

    def queue_of(self, job: Job) -> JobQueue:
        return self.queue_named(job.spec.queue or DEFAULT_QUEUE)

    def slice_of(self, job: Job) -> int:
        """How many seconds its turn lasts; 0: it takes none."""
        return self.queue_of(job).slice_s(job.spec)

    def policy_of(self, queue: JobQueue) -> Policy:
        return policies.policy_named(queue.policy, self.cluster.plugins)

    def lane_of(self, job: Job) -> LaneId:
        name = job.spec.queue or DEFAULT_QUEUE
        ranked = self.policy_of(self.queue_named(name)).rank
        return LaneId(name, job.tenant if ranked is not None else "")

    def key_of(self, job: Job) -> OrderKey:
        """Its place in its lane.

        An array stands behind those of its elements that wait again. Where jobs take turns,
        priority says who may make room for whom, so it goes first; and whose turn was over last
        goes last, whatever the policy.
        """
        queue = self.queue_of(job)
        turn = (-job.spec.priority, job.preemption.sliced_ns) if queue.time_slice_s else ()
        return (
            *turn,
            *self.policy_of(queue).key(job, queue, self.wall_ns),
            job.elements is not None,
        )

    def forecast(self, request: ResourceRequest, sharing_domain: str) -> Forecast:
        """When nodes will serve this wish."""
        return self.outlook.forecast(request, sharing_domain, self.wall_ns)

    def pass_time(self, wall_ns: int) -> None:
        """Look at those jobs again whose keys turn by time and at allocations that are due, and
        expect no end any more that has passed.
        """
        self.wall_ns = wall_ns
        while self.turns and self.turns[0][0] < wall_ns:
            self._reclassify(heappop(self.turns)[1])
        while self.overruns and self.overruns[0][0] <= wall_ns:
            _, job_id, attempt = heappop(self.overruns)
            late = self.cluster.jobs.get(job_id)
            if late is not None and late.attempt == attempt:
                self.capacity.touch(homes(self.cluster, late.members.values()))

    def ring(self, now_ns: int) -> None:
        """Look again at preempted and preemptible jobs whose time has come."""
        self.now_ns = now_ns
        for job_id in self.preemptible.ring(self.cluster.jobs, now_ns):
            self.capacity.touch(self.cluster.jobs[job_id].members)

    def offers(self, request: ResourceRequest, sharing_domain: str, need: Need) -> Offers:
        """What nodes could offer this wish if those ended that make room for who needs it."""
        return self.outlook.offers(
            request,
            sharing_domain,
            need,
            lambda job: self.preemptible.may_yield(job, need, self.now_ns),
        )

    def _reorder(self, name: str = "") -> None:
        """The queue has another policy, or is new: all that waits there is sorted anew.

        Without a name every queue: plug-ins changed.
        """
        self.queue.version += 1
        for job_id in self.queue.take_out(name):
            self._wait(self.cluster.jobs[job_id])

    def _wait(self, job: Job) -> None:
        self.queue.add(job, self.key_of(job), self.lane_of(job), job.refusals.avoided(self.wall_ns))
        key_turns_ns = self.policy_of(self.queue_of(job)).turns_ns
        if key_turns_ns is not None and key_turns_ns(job) >= self.wall_ns:
            heappush(self.turns, (key_turns_ns(job), job.job_id))

    def _follow(self, placed: JobPlaced) -> None:
        """Own placements change nothing of a node but what is free there."""
        job = self.cluster.jobs[placed.job_id]
        self.capacity.follow(
            placed.members, self.queue.request(job), sharing_domain_of(self.cluster, job.tenant)
        )
        self.capacity.learn(self.cluster)
        self._reclassify(job.job_id)

    def _look_at(self, change: Change) -> None:
        for node_id in change.nodes:
            self.capacity.refresh(self.cluster, node_id)
            self._note_state(node_id)
            self._note_address(node_id)
            self._note_leaving(node_id)
            self._note_size(node_id)
        self.capacity.learn(self.cluster)
        for job_id in change.jobs:
            self._reclassify(job_id)
        self.restless.models.update(dict.fromkeys(change.models))

    def _note_state(self, node_id: NodeId) -> None:
        """Whether the node may be taken back, and whether an operator's word about it is to be
        followed.
        """
        node = self.cluster.nodes[node_id]
        back = (
            0 < node.lost < node.incarnation
            and node.returned <= node.lost
            and owes_nothing(self.cluster, node)
        )
        bit = 1 << self.capacity.index[node_id]
        self.returning = self.returning | bit if back else self.returning & ~bit
        self.dead = self.dead | bit if node.declared_dead else self.dead & ~bit

    def _note_leaving(self, node_id: NodeId) -> None:
        if is_leaving(self.cluster, node_id) and not is_removed(self.cluster, node_id):
            self.leaving[node_id] = None
        else:
            self.leaving.pop(node_id, None)

    def _note_size(self, node_id: NodeId) -> None:
        node = self.cluster.nodes[node_id]
        size = (
            (len(node.gpus) * WHOLE_GPU, node.cpus_milli, node.memory_bytes // MIB)
            if node.takes_work
            else (0, 0, 0)
        )
        old = self.size_of.get(node_id, (0, 0, 0))
        if size != old:
            self.size_of[node_id] = size
            self.sizes = (
                self.sizes[0] + size[0] - old[0],
                self.sizes[1] + size[1] - old[1],
                self.sizes[2] + size[2] - old[2],
            )

    def _note_address(self, node_id: NodeId) -> None:
        """A node that registered again may have moved, and the ports of its jobs with it."""
        node = self.cluster.nodes[node_id]
        if self.address_of.get(node_id) == node.address:
            return
        self.address_of[node_id] = node.address
        for job_id in node.members:
            noted = self.noted.get(job_id)
            if noted is not None and next(iter(self.cluster.jobs[job_id].members)) == node_id:
                self.ports.give_back(noted.address, noted.port)
                self.ports.fit(node.address, noted.port)
                self.noted[job_id] = noted._replace(address=node.address)

    def _reclassify(self, job_id: JobId) -> None:
        job = self.cluster.jobs.get(job_id)
        new = bucket_for(job, self.wall_ns) if job is not None else ""
        old = self.bucket_of.pop(job_id, "")
        if new:
            self.bucket_of[job_id] = new
        if new and new not in (old, WAIT) and job is not None:
            heappush(self.buckets[new], (job.seq, job_id))
        if new == WAIT and job is not None:
            self._wait(job)
        elif old == WAIT:
            self.queue.remove(job_id)
        self._note_reserved(job_id, job)
        if job is not None:
            self._note_attempt(job)
            if (at_ns := turns_ns(job, self.wall_ns)) > 0:
                heappush(self.turns, (at_ns, job_id))
            if job.spec.serve is not None:
                self._note_draining(job)
            if job.spec.preemptible:
                self.preemptible.note(job)
                self.capacity.touch(job.members)
            if job.spec.serve is not None and job.spec.serve.model in self.cluster.models:
                self.restless.models[job.spec.serve.model] = None

    def _note_draining(self, job: Job) -> None:
        if is_draining(job, self.wall_ns):
            self.restless.draining[job.job_id] = None
            heappush(self.turns, (job.drain_until_ns, job.job_id))
        else:
            self.restless.draining.pop(job.job_id, None)

    def _note_reserved(self, job_id: JobId, job: Job | None) -> None:
        old = self.reserved.get(job_id)
        if old is not None:
            self.reserved_share[old.shape.tenant] -= old.share
        if job is not None and job.preemption.reserved:
            kept, own = (
                [hold for member in job.preemption.reserved for hold in member.gpus],
                attempt_key(job_id, job.attempt),
            )
            share = sum(
                [hold.share for hold in kept if own not in self.cluster.gpus[hold.uuid].holds]
            )
            known = (
                old is not None and not job.refusals.excluded
            )  # which nodes it avoids changes with time
            shape = (
                old.shape
                if old is not None and known
                else shape_of(job, job.refusals.avoided(self.wall_ns))
            )
            self.reserved[job_id] = Kept(shape.on(len(job.preemption.reserved)), share)
            self.reserved_share[job.tenant] += share
            self.queue.version += 1
        else:
            self.reserved.pop(job_id, None)

    def _note_attempt(self, job: Job) -> None:
        """Keep the port ledger and the start limit of the current attempt.

        One commit may end an attempt and begin the next.
        """
        noted, on_nodes = self.noted.get(job.job_id), job.state in job_life.ON_NODES
        if noted is not None and not (on_nodes and noted.attempt == job.attempt):
            del self.noted[job.job_id]
            self.held.pop(job.job_id, None)
            self.ports.give_back(noted.address, noted.port)
            self.queue_held[job.spec.queue or DEFAULT_QUEUE] -= noted.share
            self.queue.version += len(self.queue.lanes) > 1  # another lane may be the first now
            noted = None
        if noted is None and on_nodes:
            self._note(job)
        elif noted is not None and noted.end_ns != expected_end_ns(
            job
        ):  # its limit was changed, or the log says when it was placed
            self.noted[job.job_id] = noted._replace(end_ns=self._expect(job))
            self.capacity.touch(homes(self.cluster, job.members.values()))

    def _note(self, job: Job) -> None:
        address = self.cluster.nodes[next(iter(job.members))].address
        share = share_of(job)
        self.ports.fit(address, job.port)
        self.noted[job.job_id] = Noted(job.attempt, address, job.port, share, self._expect(job))
        if job.spec.allocation is not None:
            self.held[job.job_id] = None
        self.queue_held[job.spec.queue or DEFAULT_QUEUE] += share
        if self.epoch:
            self._watch_start(job)

    def _expect(self, job: Job) -> int:
        """When the attempt ends; once that has passed, its nodes are looked at again."""
        end_ns = expected_end_ns(job)
        if end_ns < UNKNOWN:
            heappush(self.overruns, (end_ns, job.job_id, job.attempt))
        return end_ns

    def _watch_start(self, job: Job) -> None:
        heappush(
            self.deadlines, (self.now_ns + job.spec.start_s * SECOND_NS, job.job_id, job.attempt)
        )
