"""The cluster's state as all facts make it: jobs, nodes, devices, tenants, terms.

Pure. Several services share it. `fold.py` applies commits; the files of `folds/` hold one function
per kind of fact; only `ledger.py` changes the holds on devices. A snapshot is exactly this state,
encoded (`snapshot.py`).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common.adapters import Adapter
from libs.common.life import job_life
from libs.common.model import GpuId, JobId, NodeId, TenantId, attempt_key, life_id
from libs.common.model_spec import ModelSpec
from libs.common.prices import Price
from libs.common.state.arrivals import Arrivals
from libs.common.state.device import Claim as Claim
from libs.common.state.device import GpuView as GpuView
from libs.common.state.fabric import Fabric
from libs.common.state.former_models import FormerModel
from libs.common.state.identity import Key as Key
from libs.common.state.identity import Membership as Membership
from libs.common.state.identity import Secret as Secret
from libs.common.state.image_nodes import ImageNodes
from libs.common.state.job import Cancel as Cancel
from libs.common.state.job import Elements as Elements
from libs.common.state.job import Job as Job
from libs.common.state.job import MemberView as MemberView
from libs.common.state.job import all_over as all_over
from libs.common.state.job import is_draining as is_draining
from libs.common.state.job import is_ready as is_ready
from libs.common.state.job import waits_for as waits_for
from libs.common.state.job import was_on as was_on
from libs.common.state.kept import Kept as Kept
from libs.common.state.locks import Locks
from libs.common.state.node import Node as Node
from libs.common.state.notifications import Destinations
from libs.common.state.ordering import JobQueue
from libs.common.state.plugins import Plugins
from libs.common.state.rate_limits import RateLimits
from libs.common.state.reservation import Reservation
from libs.common.state.state_hash import NO_HASH, StateHash
from libs.common.state.tenant import Charge as Charge
from libs.common.state.tenant import Tenant as Tenant
from libs.common.state.writer_mark import WriterMark as WriterMark
from libs.common.timing import DEFAULT, Timing, slowest

# Ended jobs beyond this number leave the state, the oldest first. The archive keeps them.
ENDED_JOBS_KEPT: Final = 10_000


# An epoch is the sequence of its TermBegan, and this much for each restore: a restored log is
# shorter than the one that agents know, and its terms must still be later ones.
LIFE_EPOCHS: Final = 1 << 40
# Epochs stay below `reading.EPOCH_MAX`.
LIVES_MAX: Final = (1 << 13) - 2


class Model(msgspec.Struct):
    """A model.

    It stays for a while after an undeployment (`folds/former_fold.py`). `seq` is the place of its
    replicas in the queue. `jobs` are the replicas that have not ended, with their generations;
    `last_ended_ns` is when the last of them ended. The next replica has the `free_ordinal`: no
    ordinal is ever used twice. `crashes` counts unrequested ends of replicas of this generation
    since it recovered, those of one wave once: a wave is the replicas below ordinal `wave`.
    `replicas` is the number that the user set, `autoscaled` the one that the scheduler set for
    generation `scaled_generation`, and `law` are its reasons. `aliases` are further names for
    requests, `guests` the tenants that it is shared with (`*`: all), each with the sequence of its
    fact; `served_seq` is that of its served name. Its tenant has the name since commit `owner_seq`.
    It was undeployed last at `undeployed_ns`. `limits` are those of tenants at this model
    (`rate_limits.at_model`). `adapters` are its LoRA adapters; `adapters_dropped`: one was removed
    or got another path, so a replica may have an older one under the same name.
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
    autoscaled: int = 0
    scaled_generation: int = 0
    law: str = ""
    aliases: dict[str, int] = {}
    guests: dict[str, int] = {}
    served_seq: int = 0
    limits: dict[str, RateLimits] = {}
    adapters: dict[str, Adapter] = {}
    adapters_dropped: bool = False
    owner_seq: int = 0
    undeployed_ns: int = 0
    last_ended_ns: int = 0
    first_ordinal: int = 0

    @property
    def free_ordinal(self) -> int:
        """Return the ordinal of the next replica."""
        return max(self.next_ordinal, self.first_ordinal)

    @property
    def wanted(self) -> int:
        """Return the number of replicas to have."""
        targets = self.spec.scaling
        if targets is None or not self.deployed:
            return self.replicas
        is_scaled = self.scaled_generation == self.generation
        wanted = self.autoscaled if is_scaled else self.replicas
        return min(targets.replicas_max, max(targets.replicas_min, wanted))


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a replica, and the attempt whose key a gateway sends there (0: no key)."""

    job_id: JobId
    address: str
    port: int
    keyed_attempt: int = 0


class Cluster(msgspec.Struct):
    """The whole state.

    `seq` is the last sequence that was folded, `epoch` the current scheduler term. `uncharged` are
    the ended attempts that quota has not charged yet, by attempt key.
    """

    seq: int = 0
    epoch: int = 0
    leader: str = ""
    cluster_id: str = ""
    timing: Timing = Timing()
    configured: bool = False
    # The lease profile, the timing of ClusterConfigured, former timings that some agent may still
    # use (each with the sequence of the LeaseProfileSet that replaced it), and the last sequence of
    # LeaseProfileSet.
    profile: str = DEFAULT
    configured_timing: Timing = Timing()
    former: tuple[tuple[int, Timing], ...] = ()
    timing_seq: int = 0
    # The long lease of a planned stop that some node may still hold; 0: none can.
    extension_ms: int = 0
    jobs: dict[JobId, Job] = {}
    nodes: dict[NodeId, Node] = {}
    memberships: dict[NodeId, Membership] = {}
    # The last sequence of NodeRemovalRequested. Later rosters name no node that leaves.
    leaving_seq: int = 0
    gpus: dict[GpuId, GpuView] = {}
    # The claims on each UUID that more than one node registered.
    contested: dict[GpuId, list[Claim]] = {}
    tenants: dict[TenantId, Tenant] = {}
    keys: dict[str, Key] = {}
    # By `<tenant>.<name>`.
    secrets: dict[str, Secret] = {}
    # The last sequence that changed a key; indexes over keys compare it.
    keys_seq: int = 0
    # The last port that a placement got. The search for the next begins behind it, so that no port
    # is reused at once.
    port_last: int = 0
    # The node of the last placed member, where a round-robin strategy goes on.
    placed_last: NodeId = NodeId("")
    arrivals: Arrivals = msgspec.field(default_factory=Arrivals)
    ended: dict[JobId, int] = {}
    uncharged: dict[str, Charge] = {}
    models: dict[str, Model] = {}
    # How often names or guests of models changed; indexes over them compare it.
    names_changes: int = 0
    # By `<model>/<tier>`.
    kept: dict[str, Kept] = {}
    queues: dict[str, JobQueue] = {}
    reservations: dict[str, Reservation] = {}
    plugins: Plugins = msgspec.field(default_factory=Plugins)
    # The jobs that wait for a job: the inverse of `Ordering.waits`.
    dependents: dict[JobId, dict[JobId, None]] = {}
    # The last live singleton by `tenant/user/name`.
    singletons: dict[str, JobId] = {}
    fabric: Fabric = msgspec.field(default_factory=Fabric)
    image_nodes: ImageNodes = {}
    # The hour since 1970 up to which use has decayed.
    use_hour: int = 0
    writers: dict[str, WriterMark] = {}
    facts: int = 0
    ignored: int = 0
    locks: Locks = {}
    # How often the cluster was restored from a backup, the last commit that began a life, and the
    # name of that restore.
    life: int = 0
    restored_seq: int = 0
    restore_id: str = ""
    # After a restore, until no attempt of before can be alive unless this state knows it.
    settling: bool = False
    # The newest hash of this state that a leader recorded.
    state_hash: StateHash = NO_HASH
    # The price list: the prices of each name, the oldest first.
    prices: dict[str, list[Price]] = {}
    # Jobs with a member whose devices are all idle.
    idle: dict[JobId, None] = {}
    # By `<tenant>.<name>`.
    notifications: Destinations = {}
    # The records of undeployed models by name, the one that left `models` first at the beginning.
    former_models: dict[str, FormerModel] = {}
    # Replicas of names without a record begin at this ordinal: dropped records used those below.
    ordinal_floor: int = 0


def present_life(cluster: Cluster) -> str:
    """Return what tells the present life of the cluster from every other."""
    return life_id(cluster.life, cluster.restore_id)


def epoch_at(cluster: Cluster, seq: int) -> int:
    """Return the epoch of a term that begins with this commit."""
    return cluster.life * LIFE_EPOCHS + seq


def tenant_of(cluster: Cluster, name: TenantId) -> Tenant:
    """Return the tenant's record; create one without limits if there is none."""
    tenant = cluster.tenants.get(name)
    if tenant is None:
        tenant = cluster.tenants[name] = Tenant(name)
    return tenant


def is_tenant_removed(cluster: Cluster, name: TenantId) -> bool:
    tenant = cluster.tenants.get(name)
    return tenant is not None and tenant.removed


def membership_of(cluster: Cluster, node_id: NodeId) -> Membership:
    """Return the node's membership; create an empty one if there is none."""
    membership = cluster.memberships.get(node_id)
    if membership is None:
        membership = cluster.memberships[node_id] = Membership(node_id)
    return membership


def is_leaving(cluster: Cluster, node_id: NodeId) -> bool:
    """Return whether the node's removal was requested, or is complete."""
    membership = cluster.memberships.get(node_id)
    return membership is not None and membership.leaving


def is_removed(cluster: Cluster, node_id: NodeId) -> bool:
    """Return whether the node was removed."""
    membership = cluster.memberships.get(node_id)
    return membership is not None and membership.removed


def slowest_timing(cluster: Cluster) -> Timing:
    """Return the longest times that some agent may go by."""
    if not cluster.former:
        return cluster.timing
    return slowest((cluster.timing, *(timing for _, timing in cluster.former)))


def shortest_lease_ms(cluster: Cluster) -> int:
    """Return the shortest lease that some agent may go by."""
    former = [timing.lease_ms for _, timing in cluster.former]
    return min([cluster.timing.lease_ms, *former])


def shortest_heartbeat_ms(cluster: Cluster) -> int:
    """Return the pause between heartbeats with which every agent stays renewed by its own rule."""
    former = [timing.heartbeat_ms for _, timing in cluster.former]
    return min([cluster.timing.heartbeat_ms, *former])


def live_jobs(cluster: Cluster) -> Iterator[Job]:
    """Iterate over the jobs that have not ended, in the order of submission."""
    return (job for job in cluster.jobs.values() if job.state not in job_life.ENDED)


def node_gpus(cluster: Cluster, node: Node) -> list[GpuView]:
    """Return the devices that the node reported last, by index."""
    return [cluster.gpus[uuid] for uuid in node.gpus]


def silent_nodes(cluster: Cluster, job: Job) -> list[NodeId]:
    """Return the lost nodes on which the attempt may still be alive."""
    return [member.node_id for member in job.members.values() if _may_live(cluster, job, member)]


def _may_live(cluster: Cluster, job: Job, member: MemberView) -> bool:
    node = cluster.nodes[member.node_id]
    survives = job.spec.ignores_lease or node.ended < node.lost
    return survives and member.state not in job_life.MEMBER_OVER and not node.usable


def known_to_agent(node: Node, job: Job, member: MemberView) -> bool:
    """Return whether the node's agent knows the member.

    An agent with a new state directory does not know the members of the agent that it replaced. Its
    silence about them proves nothing.
    """
    return (
        member.accounted > node.severed
        if job.spec.ignores_lease
        else member.accounted not in (*node.replaced, *node.unproved)
    )


def owes_nothing(cluster: Cluster, node: Node) -> bool:
    """Return whether a lost node may return.

    Every attempt that its agent accounts for must have a hold there, and the agent must know every
    member there.
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
    """Return the addresses of the model's ready replicas, the oldest first."""
    model = cluster.models.get(name)
    jobs = own_replicas(cluster, model) if model is not None else []
    return [endpoint_of(cluster, job) for job in jobs if is_ready(job)]


def own_replicas(cluster: Cluster, model: Model) -> list[Job]:
    """Return the replicas that may get the model's requests, the oldest first.

    Replicas of a former owner of the name are left out until the scheduler has ended them.
    """
    jobs = (cluster.jobs[job_id] for job_id in model.jobs)
    return [job for job in jobs if job.tenant == model.tenant]


def endpoint_of(cluster: Cluster, job: Job) -> Endpoint:
    """Return the address of a replica: the port of its placement, or of the standby that was
    promoted.
    """
    member = next(iter(job.members.values()))
    address, port = cluster.nodes[member.node_id].address, member.port or job.port
    is_keyed = job.spec.serve is not None and job.spec.serve.keyed
    return Endpoint(job.job_id, address, port, job.attempt if is_keyed else 0)
