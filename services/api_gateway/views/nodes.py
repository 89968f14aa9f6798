"""Nodes, devices and the whole cluster as the API shows them."""

import asyncio
from collections import Counter
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.life import gpu_life, job_life, node_life
from libs.common.model import WHOLE_GPU, JobId, attempt_of, job_of
from libs.common.state import suspects
from libs.common.state.cluster import Cluster, GpuView, Node, node_gpus
from libs.common.state.device import Control, GpuError
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.times import rfc3339
from services.api_gateway.views.control_plane import control_plane_shown
from services.api_gateway.views.others import detail_seen
from services.api_gateway.vitals import Pulse

COUNT_SLICE: Final = 1_000


class HolderShown(msgspec.Struct):
    """An attempt that holds a share of a GPU."""

    job_id: str
    attempt: int
    share: int


class GpuFull(msgspec.Struct):
    """A GPU in full.

    `state` is one word for people, derived from `use` and `health`. `memory_total` equals
    `memory_bytes`, and `numa_node` equals `numa`. `memory_available` is the memory that no job
    holds. It is not measured: processes may use less or more. `detail` says more about a fault. It
    can name processes, so tenants see it only while all jobs on the GPU are their own.

    `power_mw` and `clocks_mhz` are the lowest and the highest setting. A value that the node does
    not know is empty in `compute_capability` ("9.0"), `pcie_bus_id`, `switch` and `links`, null in
    `numa`, and 0 in `power_mw` and `clocks_mhz`. `controls` holds each requested setting and its
    outcome.
    """

    uuid: str
    node_id: str
    index: int
    vendor: str
    model: str
    memory_bytes: int
    memory_total: int
    memory_available: int
    state: str
    use: str
    health: str
    reason: str
    detail: str
    verdict: str
    service: str
    controls: dict[str, Control]
    errors: list[GpuError]
    suspicion: str
    present: bool
    held_share: int
    holders: list[HolderShown]
    compute_capability: str
    pcie_bus_id: str
    numa: int | None
    numa_node: int | None
    switch: str
    links: str
    mig_profiles: tuple[str, ...]
    power_mw: tuple[int, int]
    clocks_mhz: tuple[int, int]
    mig: bool


class ContestShown(msgspec.Struct):
    """A GPU that several nodes register.

    `node_id` is the node that the cluster counts it for; `others` are the other nodes that register
    it. `shown` is false if this node's driver does not show it.
    """

    node_id: str
    others: list[str]
    shown: bool


class NodeShown(msgspec.Struct):
    """A node in full.

    `gpus_free` counts the devices that take work and that no job holds. `last_heartbeat` is when
    the scheduler last received a heartbeat of the node. It is null if that is not known: in a state
    of the past, or before a scheduler answered. The fields from `cpus_milli` to `spine` describe
    the host, its rack and its spine; they are 0 or empty if the node does not know them.

    `isolation` tells, for each kind of isolation between jobs, that it is enforced, or why it is
    not. `drivers` holds the versions of the node's drivers, by name. `suspicion` is the evidence
    against the node itself. `distrusted` is the reason why the node gets no new jobs until its
    agent restarts, and `revoked` the reason why the servers refuse its key; both are normally
    empty.

    `ignored` counts the facts of the node that readers of the log ignored; `ignored_seq` and
    `ignored_reason` describe the last one. `contested` holds, by UUID, the GPUs that other nodes
    register too. `gpus_ignored` counts the GPUs that are ignored because the node has named too
    many UUIDs. `left_out` names what the agent did not register because it exceeds a node's bounds.
    `transport` is what the node offers for links to other nodes, rdma or tcp, and `transport_why`
    the reason. `link_address` is where its agent takes links of other agents; empty: nowhere.
    `withheld` is why the node gets no new jobs for now although its agent answers.
    """

    id: str
    state: str
    reason: str
    incarnation: int
    address: str
    boot_id: str
    version: str
    simulated: bool
    registered_at: str | None
    last_heartbeat: str | None
    gpu_model: str
    gpus_total: int
    gpus_free: int
    held_share: int
    job_ids: list[str]
    cpus_milli: int
    cpus_milli_held: int
    memory_bytes: int
    memory_bytes_held: int
    memory_bytes_kept: int
    labels: dict[str, str]
    rack: str
    spine: str
    isolation: dict[str, str]
    drivers: dict[str, str]
    suspicion: str
    distrusted: str
    revoked: str
    ignored: int
    ignored_seq: int
    ignored_reason: str
    contested: dict[str, ContestShown]
    gpus_ignored: int
    left_out: tuple[str, ...]
    transport: str
    transport_why: str
    link_address: str
    withheld: str


class LinkShown(msgspec.Struct):
    """The last link that a node opened to another one: its transport, rdma or tcp, and why."""

    node_id: str
    transport: str
    why: str


class NodeFull(msgspec.Struct):
    node: NodeShown
    gpus: list[GpuFull]
    links: list[LinkShown]


def gpu_shown(cluster: Cluster, view: GpuView) -> GpuFull:
    holders = [_holder(key, share) for key, share in view.holds.items()]
    gpu = view.gpu
    numa = gpu.numa if gpu.numa >= 0 else None
    return GpuFull(
        uuid=gpu.uuid,
        node_id=view.node_id,
        index=gpu.index,
        vendor=gpu.vendor,
        model=gpu.model,
        memory_bytes=gpu.memory_bytes,
        memory_total=gpu.memory_bytes,
        memory_available=gpu.memory_bytes * (WHOLE_GPU - view.held) // WHOLE_GPU,
        state=gpu_state(cluster, view),
        use=_use(cluster, view),
        health=gpu_health(view),
        reason=view.reason,
        detail=view.detail,
        verdict=view.verdict,
        service=view.service,
        controls=view.controls,
        errors=view.errors,
        suspicion=suspects.of_device(cluster, view),
        present=view.present,
        held_share=view.held,
        holders=holders,
        compute_capability=".".join(map(str, gpu.compute_capability))
        if any(gpu.compute_capability)
        else "",
        pcie_bus_id=gpu.pci_bus,
        numa=numa,
        numa_node=numa,
        switch=gpu.switch,
        links=gpu.links,
        mig_profiles=gpu.mig_profiles,
        power_mw=gpu.power_mw,
        clocks_mhz=gpu.clocks_mhz,
        mig=gpu.mig,
    )


def node_shown(cluster: Cluster, node: Node, heard_ns: int = 0, unheard: bool = False) -> NodeShown:
    gpus = node_gpus(cluster, node)
    models = Counter(view.gpu.model for view in gpus)
    return NodeShown(
        id=node.node_id,
        state=node.state,
        reason=node.reason or (node_life.UNHEARD if unheard and node.usable else ""),
        incarnation=node.incarnation,
        address=node.address,
        boot_id=node.boot_id,
        version=node.version,
        simulated=node.simulated,
        registered_at=rfc3339(node.registered_ns),
        last_heartbeat=rfc3339(heard_ns),
        gpu_model=" + ".join(models),
        gpus_total=len(gpus),
        gpus_free=sum(1 for view in gpus if view.takes_work and not view.holds),
        held_share=sum(view.held for view in gpus),
        job_ids=list(node.members),
        cpus_milli=node.cpus_milli,
        cpus_milli_held=sum(cpus for cpus, _ in node.held.values()),
        memory_bytes=node.memory_bytes,
        memory_bytes_held=sum(memory for _, memory in node.held.values()),
        memory_bytes_kept=sum(node.kept.values()),
        labels=node.labels,
        rack=node.rack,
        spine=node.spine,
        isolation=node.isolation,
        drivers=node.drivers,
        suspicion=suspects.of_node(cluster, node),
        distrusted=node.distrusted,
        revoked=node.revoked,
        ignored=node.ignored,
        ignored_seq=node.ignored_seq,
        ignored_reason=node.ignored_reason,
        contested=_contested(cluster, node),
        gpus_ignored=node.gpus_ignored,
        left_out=node.left_out,
        transport=node.transport,
        transport_why=node.transport_why,
        link_address=node.link_address,
        withheld=node.withheld,
    )


def _contested(cluster: Cluster, node: Node) -> dict[str, ContestShown]:
    contests: dict[str, ContestShown] = {}
    for uuid in node.listed:
        owner, claims = cluster.gpus[uuid].node_id, cluster.contested.get(uuid, ())
        if claims:
            others = sorted(str(claim.node_id) for claim in claims if claim.node_id != owner)
            contests[uuid] = ContestShown(owner, others, uuid not in node.absent)
    return contests


def node_full(
    principal: Principal, cluster: Cluster, node: Node, heard_ns: int, unheard: bool = False
) -> NodeFull:
    return NodeFull(
        node_seen(principal, cluster, node, heard_ns, unheard),
        [gpu_seen(principal, cluster, view) for view in node_gpus(cluster, node)],
        [LinkShown(peer, each.transport, each.why) for peer, each in node.links.items()],
    )


def node_seen(
    principal: Principal, cluster: Cluster, node: Node, heard_ns: int, unheard: bool = False
) -> NodeShown:
    """Show a node without the ids of jobs that the principal may not see."""
    shown = node_shown(cluster, node, heard_ns, unheard)
    shown.job_ids = [job_id for job_id in shown.job_ids if _sees_job(principal, cluster, job_id)]
    return shown


def gpu_seen(principal: Principal, cluster: Cluster, view: GpuView) -> GpuFull:
    """Return a GPU as the principal may see it: other tenants' jobs appear as their share only."""
    shown = gpu_shown(cluster, view)
    shown.detail = detail_seen(principal, cluster, view)
    for holder in shown.holders:
        if not _sees_job(principal, cluster, holder.job_id):
            holder.job_id, holder.attempt = "", 0
    shown.errors = [_error_seen(principal, cluster, error) for error in view.errors]
    return shown


def _error_seen(principal: Principal, cluster: Cluster, error: GpuError) -> GpuError:
    return replace(
        error, jobs=tuple(ref for ref in error.jobs if _sees_job(principal, cluster, ref.job_id))
    )


def _sees_job(principal: Principal, cluster: Cluster, job_id: str) -> bool:
    job = cluster.jobs.get(JobId(job_id))
    return roles.sees_all(principal) or (job is not None and roles.sees(principal, job.tenant))


def gpu_state(cluster: Cluster, view: GpuView) -> str:
    """Return the state of a GPU as one word for people."""
    return gpu_life.shown(_use(cluster, view), gpu_health(view), view.reason, view.service)


def scheduler_shown(pulse: Pulse | None) -> dict[str, object] | None:
    """Show the scheduler's report about itself; None before the first one, and for the past.

    The latency is measured over its last decisions that placed a job.
    """
    if pulse is None or not pulse.at_ns:
        return None
    vitals = pulse.vitals
    latency = (
        {"p50": vitals.decision_p50_us, "p99": vitals.decision_p99_us, "n": vitals.decisions}
        if vitals.decisions
        else None
    )
    return {
        "epoch": vitals.epoch,
        "heard_at": rfc3339(pulse.at_ns),
        "decision_latency_us": latency,
        "dropped": vitals.dropped,
    }


async def cluster_shown(
    cluster: Cluster, jobs: Counter[str], pulse: Pulse | None
) -> dict[str, object]:
    """Show the cluster's counts, scheduler and timing."""
    shown, held = await _count_gpus(cluster)
    return {
        "cluster_id": cluster.cluster_id,
        "seq": cluster.seq,
        "epoch": cluster.epoch,
        "leader": cluster.leader,
        "scheduler": scheduler_shown(pulse),
        "timing": msgspec.structs.asdict(cluster.timing),
        "facts": cluster.facts,
        "ignored": cluster.ignored,
        "jobs": {state: jobs[state] for state in (*job_life.LIVE, *job_life.ENDED)},
        "nodes": dict(Counter(node.state for node in cluster.nodes.values())),
        "gpus": dict(shown),
        "gpus_total": len(cluster.gpus),
        "gpu_share_total": len(cluster.gpus) * WHOLE_GPU,
        "gpu_share_held": held,
        **control_plane_shown(pulse.plane if pulse is not None else None),
    }


async def _count_gpus(cluster: Cluster) -> tuple[Counter[str], int]:
    """Return the number of devices in each state, and the share that jobs hold of all devices.

    The count pauses after each slice, because other requests wait meanwhile.
    """
    shown: Counter[str] = Counter()
    held = 0
    for number, view in enumerate(list(cluster.gpus.values()), start=1):
        shown[gpu_state(cluster, view)] += 1
        held += view.held
        if number % COUNT_SLICE == 0:
            await asyncio.sleep(0)
    return shown, held


def gpu_health(view: GpuView) -> str:
    """Return the health of a GPU; a device that its node does not show is offline."""
    return view.health if view.present else gpu_life.OFFLINE


def _holder(key: str, share: int) -> HolderShown:
    attempt = attempt_of(key)
    return HolderShown(attempt.job_id, attempt.attempt, share)


def _use(cluster: Cluster, view: GpuView) -> str:
    """Return the use of a GPU: in use while one of its holders runs or is being released, allocated
    before that.
    """
    if not view.holds:
        return gpu_life.AVAILABLE
    jobs = [cluster.jobs.get(job_of(key)) for key in view.holds]
    running = any(
        job is not None and job.state in (job_life.RUNNING, job_life.RELEASING) for job in jobs
    )
    return gpu_life.IN_USE if running else gpu_life.ALLOCATED
