"""What the facts add up to: jobs, nodes, devices, tenants, terms.

The fold that several services share.

Pure. This file holds the state; `fold.py` applies commits to it, `job_fold.py`, `model_fold.py` and
`node_fold.py` hold one function per kind, and `ledger.py` alone changes who holds what of a device.
A snapshot is exactly this state, encoded (`snapshot.py`).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common import arrays
from libs.common.life import job_life, node_life
from libs.common.model import (
    AttemptRef,
    GpuHold,
    GpuId,
    JobId,
    JobSpec,
    Member,
    ModelSpec,
    NodeId,
    TenantId,
    Timing,
    attempt_key,
)
from libs.common.state.arrivals import Arrivals
from libs.common.state.device import Claim as Claim
from libs.common.state.device import GpuView as GpuView
from libs.common.state.identity import Key as Key
from libs.common.state.identity import Membership as Membership
from libs.common.state.identity import Secret as Secret
from libs.common.state.ordering import JobQueue, Ordering
from libs.common.state.plugins import Plugins
from libs.common.state.preemption import Preemption
from libs.common.state.refusals import Refusals
from libs.common.state.reservation import Reservation
from libs.common.state.tenant import Charge as Charge
from libs.common.state.tenant import Tenant as Tenant
from libs.common.state.writer_mark import WriterMark as WriterMark

# Ended jobs beyond this many leave the fold, oldest end first; the archive keeps them.
ENDED_JOBS_KEPT: Final = 10_000


class MemberView(msgspec.Struct):
    """One node's part of the current attempt.

    `accounted` is the last incarnation that accounted for it, at first the one that it was placed
    on; 0 of an ended job.
    """

    node_id: NodeId
    incarnation: int
    rank: int
    gpus: tuple[GpuHold, ...]
    accounted: int
    state: str = job_life.PLACED
    exit_code: int | None = None
    signal: int = 0
    reason: str = ""
    detail: str = ""
    run_ms: int = 0
    # Of a replica: whether it answers its health path, since when, and when it ended (the node's
    # wall clock; 0 = never).
    ready: bool = False
    ready_ns: int = 0
    ended_ns: int = 0


class Cancel(msgspec.Struct, frozen=True, order=True):
    """What a user asked for; of several, the shortest grace counts."""

    grace_s: int
    signal: int
    user: str = ""


class Elements(msgspec.Struct):
    """Of an array: how many of its elements have begun, the numbers of those that have not ended,
    how many ended how, the exit code of the first that failed, and which are cancelled before they
    have begun.
    """

    begun: int = 0
    alive: dict[JobId, int] = {}
    ended: dict[str, int] = {}
    exit_code: int | None = None
    early: dict[JobId, Cancel] = {}


class Job(msgspec.Struct):
    """A job and its current attempt.

    Times are nanoseconds of the writers' wall clocks, for people; nothing is decided by them alone.
    """

    job_id: JobId
    spec: JobSpec
    tenant: TenantId
    user: str
    seq: int
    state: str = job_life.PENDING
    admitted: bool = False
    attempt: int = 1
    retries_used: int = 0
    reason: str = ""
    exit_code: int | None = None
    request: str = ""
    submitted_ns: int = 0
    queued_ns: int = 0
    placed_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    cancel: Cancel | None = None
    stop_reason: str = ""
    stop_signal: int = 0
    stop_grace_ms: int = 0
    port: int = 0
    placed_seq: int = 0
    # Of a placed allocation: when it is over, and of which such moment was warned (the wall clock).
    expires_ns: int = 0
    warned_ns: int = 0
    charged: int = 0  # the last attempt that quota charged
    members: dict[NodeId, MemberView] = {}
    order: Ordering = msgspec.field(default_factory=Ordering)
    preemption: Preemption = msgspec.field(default_factory=Preemption)
    # Of an array; of one of its elements, the array.
    elements: Elements | None = None
    array: JobId = JobId("")
    # Errors of devices that it had: which device, which error.
    gpu_errors: list[tuple[GpuId, str]] = []
    # End of the drain of a retired replica (the wall clock). 0: the replica is stopped at once.
    drain_until_ns: int = 0
    refusals: Refusals = Refusals()
    # The nodes of its earlier attempts.
    been: dict[NodeId, None] = {}

    @property
    def ref(self) -> AttemptRef:
        return AttemptRef(self.job_id, self.attempt)

    @property
    def waiting(self) -> int:
        """As how many jobs it counts while it waits: an array as those of its elements that have
        not begun.
        """
        if self.elements is None or self.spec.array is None:
            return 1
        return arrays.count(self.spec.array) - self.elements.begun

    @property
    def has_room(self) -> bool:
        """Of an array: whether one more of its elements may be alive."""
        if self.elements is None or self.spec.array is None or not self.spec.array.at_once:
            return True
        return len(self.elements.alive) < self.spec.array.at_once


class Model(msgspec.Struct):
    """A model by its name.

    It stays after an undeployment, so that no ordinal of a replica is ever used twice.

    `seq` is the place of its replicas in the queue; `jobs` are those that have not ended, with
    their generations. `crashes` counts ends of this generation's replicas that nobody asked for,
    those of one wave once: a wave is the replicas below ordinal `wave`.
    """

    name: str
    tenant: TenantId
    user: str
    spec: ModelSpec
    seq: int
    replicas: int
    deployed: bool = True
    generation: int = 1
    deployed_ns: int = 0
    next_ordinal: int = 1
    jobs: dict[JobId, int] = {}
    crashes: int = 0
    wave: int = 0
    last_crash_ns: int = 0
    last_crash: str = ""
    request: str = ""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a replica answers."""

    job_id: JobId
    address: str
    port: int


class Node(msgspec.Struct):
    """A machine.

    `members` are the jobs whose current attempt has a member here. It is lost while `lost` (the
    highest incarnation declared lost) is not below `returned`, whatever came in which order; of
    `lost`, up to `dead` nothing can be alive. `word` is the last of operators: (incarnation, lost)
    as NodeDeclaredDead says them. `replaced` are the incarnations that an agent with another state
    directory replaced, in order, until they are declared lost: what they started may be alive,
    unknown to the agent. Up to `severed` the same is true of what ignores the lease, until it is
    declared dead. Up to `gone` the agent of the same directory has begun again since: a placement
    there that comes later in the log never reached it. `held` is what is promised of the host, by
    attempt key: (thousandths of a CPU, bytes). `reserved` is kept for jobs that are not placed yet
    (`preemption_fold.py`).
    """

    node_id: NodeId
    state: str
    incarnation: int = 0
    lost: int = 0
    returned: int = 0
    dead: int = 0
    word: tuple[int, int] = (0, 0)
    gone: int = 0
    severed: int = 0
    address: str = ""
    boot_id: str = ""
    version: str = ""
    simulated: bool = False
    registered_ns: int = 0
    registered_seq: int = 0
    peer_address: str = ""
    peer_key: str = ""
    directory: str = ""
    replaced: list[int] = []
    reason: str = ""
    gpus: list[GpuId] = []
    # All that it last registered, where another node claims some of it (`claim_fold.py`); how many
    # UUIDs it ever brought into the fold.
    listed: list[GpuId] = []
    known: int = 0
    # From its last registration: devices that it does not show, devices ignored because of
    # UUIDS_MAX, and what its agent left out.
    absent: tuple[GpuId, ...] = ()
    gpus_ignored: int = 0
    left_out: tuple[str, ...] = ()
    accounted: dict[str, AttemptRef] = {}
    members: dict[JobId, int] = {}
    cpus_milli: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = {}
    rack: str = ""
    spine: str = ""
    sockets: tuple[int, ...] = ()
    isolation: dict[str, str] = {}
    drivers: dict[str, str] = {}
    takes_controls: bool = False
    held: dict[str, tuple[int, int]] = {}
    reserved: dict[JobId, Member] = {}
    # Why the node gets no new placements although it is usable; empty for a node that is trusted. A
    # registration ends it.
    distrusted: str = ""
    # Reason why the servers refuse its key for ever; empty for an accepted key.
    revoked: str = ""
    # Commits on its subject that readers ignored since it first registered: their number, and the
    # last one.
    ignored: int = 0
    ignored_seq: int = 0
    ignored_reason: str = ""

    @property
    def usable(self) -> bool:
        return self.state in node_life.USABLE

    @property
    def takes_work(self) -> bool:
        """Whether new placements may go there."""
        return self.usable and not self.distrusted and not self.revoked

    @property
    def declared_dead(self) -> bool:
        """An operator has spoken of the silence that is now, and NodeLost has not followed yet."""
        return (
            not self.usable
            and self.word == (self.incarnation, self.lost)
            and self.dead < self.incarnation
        )


class Cluster(msgspec.Struct):
    """Everything.

    `seq` is the last stream sequence folded; `epoch` the current scheduler term; `uncharged` holds
    the attempts that ended and that quota has not charged yet, by attempt key.
    """

    seq: int = 0
    epoch: int = 0
    leader: str = ""
    cluster_id: str = ""
    timing: Timing = Timing()
    configured: bool = False
    # The long lease of a planned stop that some node may still hold; 0 when none can.
    extension_ms: int = 0
    jobs: dict[JobId, Job] = {}
    nodes: dict[NodeId, Node] = {}
    memberships: dict[NodeId, Membership] = {}
    # The last sequence of a removal that was asked for: rosters from there on name no node that
    # leaves.
    leaving_seq: int = 0
    gpus: dict[GpuId, GpuView] = {}
    # The claims on each UUID that more than one node registered.
    contested: dict[GpuId, list[Claim]] = {}
    tenants: dict[TenantId, Tenant] = {}
    keys: dict[str, Key] = {}
    # By `<tenant>.<name>`.
    secrets: dict[str, Secret] = {}
    # The last sequence that changed a key: what an index over them has to look at.
    keys_seq: int = 0
    # The port of the last placement that was given one: the next is looked for after it, so that
    # none is given out again at once.
    port_last: int = 0
    # The node of its last member: where a round goes on.
    placed_last: NodeId = NodeId("")
    arrivals: Arrivals = msgspec.field(default_factory=Arrivals)
    ended: dict[JobId, int] = {}
    uncharged: dict[str, Charge] = {}
    models: dict[str, Model] = {}
    queues: dict[str, JobQueue] = {}
    reservations: dict[str, Reservation] = {}
    plugins: Plugins = msgspec.field(default_factory=Plugins)
    # By the job that they wait for: `Ordering.waits` read backwards.
    dependents: dict[JobId, dict[JobId, None]] = {}
    # The last living one by `tenant/user/name`, of those that say `singleton`.
    singletons: dict[str, JobId] = {}
    # Until when use is decayed, in hours since 1970.
    use_hour: int = 0
    writers: dict[str, WriterMark] = {}
    facts: int = 0
    ignored: int = 0


def tenant_of(cluster: Cluster, name: TenantId) -> Tenant:
    """The tenant's record, made on first sight with no limits."""
    found = cluster.tenants.get(name)
    if found is None:
        found = cluster.tenants[name] = Tenant(name)
    return found


def membership_of(cluster: Cluster, node_id: NodeId) -> Membership:
    """The node's record, made on first sight."""
    found = cluster.memberships.get(node_id)
    if found is None:
        found = cluster.memberships[node_id] = Membership(node_id)
    return found


def is_leaving(cluster: Cluster, node_id: NodeId) -> bool:
    """Whether its removal was asked for (and perhaps done)."""
    found = cluster.memberships.get(node_id)
    return found is not None and found.leaving


def is_removed(cluster: Cluster, node_id: NodeId) -> bool:
    found = cluster.memberships.get(node_id)
    return found is not None and found.removed


def live_jobs(cluster: Cluster) -> Iterator[Job]:
    """Jobs that have not ended, in order of submission."""
    return (job for job in cluster.jobs.values() if job.state not in job_life.ENDED)


def node_gpus(cluster: Cluster, node: Node) -> list[GpuView]:
    """The devices that the node last reported, by index."""
    return [cluster.gpus[uuid] for uuid in node.gpus]


def was_on(job: Job, node_id: NodeId) -> bool:
    """Whether an attempt of the job was ever placed there: about other jobs the node can know
    nothing.
    """
    return node_id in job.members or node_id in job.been


def waits_for(job: Job) -> str:
    """What a job that has not ended waits for, and on whom; empty for one that has."""
    held = job.spec.allocation is not None and job.state == job_life.RUNNING
    return job_life.HELD if held else job_life.WAITS_FOR.get(job.state, "")


def silent_nodes(cluster: Cluster, job: Job) -> list[NodeId]:
    """The nodes that are lost and on which the attempt may be alive all the same."""
    members = job.members.values() if job.spec.ignores_lease else ()
    return [member.node_id for member in members if _may_live(cluster, member)]


def _may_live(cluster: Cluster, member: MemberView) -> bool:
    return member.state not in job_life.MEMBER_OVER and not cluster.nodes[member.node_id].usable


def known_to_agent(node: Node, job: Job, member: MemberView) -> bool:
    """Whether the node's agent, or the absence of it, can say what became of the member: not when
    it replaced the one that knew.
    """
    return (
        member.accounted > node.severed
        if job.spec.ignores_lease
        else member.accounted not in node.replaced
    )


def owes_nothing(cluster: Cluster, node: Node) -> bool:
    """Whether a lost node may return: all that it still accounts for is held for it, and its agent
    knows of all that is held.
    """
    held: dict[str, MemberView] = {}
    for job_id, attempt in node.members.items():
        job = cluster.jobs[job_id]
        member = job.members[node.node_id]
        if member.state not in job_life.MEMBER_OVER:
            if not known_to_agent(node, job, member):
                return False
            held[attempt_key(job_id, attempt)] = member
    return all(key in held for key in node.accounted)


def all_over(job: Job) -> bool:
    """Every member of the attempt has released, refused or was lost, every element has ended:
    nothing of it can be alive.
    """
    return not (job.elements is not None and job.elements.alive) and all(
        member.state in job_life.MEMBER_OVER for member in job.members.values()
    )


def is_ready(job: Job) -> bool:
    """Whether requests may go to this replica: it answers, and nobody has asked it to end."""
    member = next(iter(job.members.values()), None)
    return (
        member is not None
        and member.ready
        and member.state == job_life.STARTED
        and job.cancel is None
        and not job.stop_reason
    )


def is_draining(job: Job, wall_ns: int) -> bool:
    """Whether this replica is to end and may still finish answers: it gets no new request and is
    not stopped yet.
    """
    return (
        job.drain_until_ns > wall_ns
        and not job.stop_reason
        and any(
            member.ready_ns and member.state == job_life.STARTED for member in job.members.values()
        )
    )


def ready_replicas(cluster: Cluster, name: str) -> list[Endpoint]:
    """Where the model answers now, oldest replica first; empty for one that is not known."""
    model = cluster.models.get(name)
    jobs = [cluster.jobs[job_id] for job_id in model.jobs] if model is not None else []
    return [
        Endpoint(job.job_id, cluster.nodes[next(iter(job.members))].address, job.port)
        for job in jobs
        if is_ready(job)
    ]
