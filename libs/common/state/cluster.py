"""What the facts add up to: jobs, nodes, devices, tenants, terms.

The fold that several services share.

Pure. This file holds the state; `fold.py` applies commits to it, `job_fold.py`, `model_fold.py` and
`node_fold.py` hold one function per kind, and `ledger.py` alone changes who holds what of a device.
A snapshot is exactly this state, encoded (`snapshot.py`).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common.life import job_life
from libs.common.model import (
    GpuId,
    JobId,
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
from libs.common.state.job import Cancel as Cancel
from libs.common.state.job import Elements as Elements
from libs.common.state.job import Job as Job
from libs.common.state.job import MemberView as MemberView
from libs.common.state.job import all_over as all_over
from libs.common.state.job import is_draining as is_draining
from libs.common.state.job import is_ready as is_ready
from libs.common.state.job import waits_for as waits_for
from libs.common.state.job import was_on as was_on
from libs.common.state.node import Node as Node
from libs.common.state.ordering import JobQueue
from libs.common.state.plugins import Plugins
from libs.common.state.reservation import Reservation
from libs.common.state.tenant import Charge as Charge
from libs.common.state.tenant import Tenant as Tenant
from libs.common.state.writer_mark import WriterMark as WriterMark

# Ended jobs beyond this many leave the fold, oldest end first; the archive keeps them.
ENDED_JOBS_KEPT: Final = 10_000


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


def ready_replicas(cluster: Cluster, name: str) -> list[Endpoint]:
    """Where the model answers now, oldest replica first; empty for one that is not known."""
    model = cluster.models.get(name)
    jobs = [cluster.jobs[job_id] for job_id in model.jobs] if model is not None else []
    return [
        Endpoint(job.job_id, cluster.nodes[next(iter(job.members))].address, job.port)
        for job in jobs
        if is_ready(job)
    ]
