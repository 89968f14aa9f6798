"""A job as the API shows it.

Pure. The field names are the API's contract: `docs` and the command line rely on them. Times are
RFC 3339, shares are hundredths of a GPU.
"""

from collections import Counter

import msgspec

from libs.common import arrays
from libs.common.folds import array_fold
from libs.common.life import job_life
from libs.common.model import JobSpec
from libs.common.spans.trace_context import parse
from libs.common.state import suspects
from libs.common.state.cluster import Cluster, Job, MemberView, is_ready, silent_nodes, waits_for
from libs.common.state.ordering import DEFAULT_QUEUE
from services.api_gateway.times import rfc3339
from services.api_gateway.views.charges import UseShown, use_shown
from services.api_gateway.views.others import preempted_by


class GpuShown(msgspec.Struct):
    """A GPU that the job holds, and the share that it holds of it."""

    uuid: str
    share: int


class MemberShown(msgspec.Struct):
    """One node's part of the current attempt."""

    node_id: str
    rank: int
    gpus: list[GpuShown]
    state: str
    exit_code: int | None
    signal: int
    reason: str
    detail: str


class ArrayShown(msgspec.Struct):
    """The elements of an array, counted by state.

    `numbers` is the range as the user wrote it. Elements that have not begun count as queued.
    """

    numbers: str
    count: int
    states: dict[str, int]


class PreflightShown(msgspec.Struct):
    """The preflight of a gang: of this attempt, on these nodes.

    `outcome` is passed, suspect (the gang avoids the `excluded` nodes), unfinished (it started
    without all measurements) or abandoned. `detail` is what was found or left unmeasured,
    `measured` the number of pairs with a result.
    """

    attempt: int
    nodes: list[str]
    outcome: str
    detail: str
    measured: int
    excluded: list[str]
    at: str | None


class JobShown(msgspec.Struct):
    """A job in full.

    `kind` is job, replica or allocation. `expires_at` is the end of a placed allocation. `seq` is
    the sequence of the submission. `waits_for` is what the job waits for now; `after` lists the
    jobs that must end first.

    An attempt has between `nodes` and `nodes_max` nodes, which `node_ids` lists. `preemptions`
    counts the job's preemptions; the last one made room for `preempted_by`. `grown` counts the
    restarts with more nodes. `reserved` lists the nodes where devices are reserved for the job.
    `refusals` counts the attempts that a node refused; `refused_reason` is the last reason, and
    `excluded_nodes` lists the nodes that refused lately, and those that its preflight found
    suspect. `preflight` is the last preflight of a gang: null without one.

    `user_id` equals `user`, and `max_execution_time` equals `time_limit_s` (null: none); other
    systems use these names. `gpu_affinity` lists the only devices that the job may use; empty means
    any. `array` is set on arrays only. `element_of` is set on an element: the id of its array.

    `cpus_milli` (thousandths of a CPU) and `memory_bytes` are requested on each node; 0: none.
    `reservation` is the one that the job names. `trace_id` is that of the job's spans; empty if
    they are not recorded. `use` is that of GPUs in all attempts that have ended. `idle_warning`
    says since when all GPUs of the job are idle, and what follows.
    """

    id: str
    kind: str
    name: str
    state: str
    reason: str
    user: str
    user_id: str
    tenant: str
    command: tuple[str, ...]
    workdir: str
    nodes: int
    nodes_max: int
    gpus: int
    gpu_share: int
    gpu_affinity: tuple[str, ...]
    priority: int
    labels: dict[str, str]
    attempt: int
    retries: int
    retries_used: int
    exit_code: int | None
    submitted_at: str | None
    queued_at: str | None
    placed_at: str | None
    started_at: str | None
    ended_at: str | None
    expires_at: str | None
    node_ids: list[str]
    members: list[MemberShown]
    port: int
    seq: int
    cancel_requested: bool
    stop_reason: str
    time_limit_s: int
    hang_timeout_s: int
    max_execution_time: int | None
    stdin: bool
    waits_for: str
    model: str
    ready: bool
    on_control_loss: str
    scheduling_policy: str
    upload: str
    queue: str
    held: bool
    after: list[str]
    preemptible: bool
    preemptions: int
    preempted_by: str
    grown: int
    checkpoints: int
    checkpointed_at: str | None
    reserved: list[str]
    gpu_errors: list[str]
    refusals: int = 0
    refused_reason: str = ""
    excluded_nodes: list[str] = []
    preflight: PreflightShown | None = None
    warnings: list[str] = []
    array: ArrayShown | None = None
    element_of: str = ""
    image: str = ""
    cpus_milli: int = 0
    memory_bytes: int = 0
    reservation: str = ""
    trace_id: str = ""
    use: UseShown | None = None
    idle_warning: str = ""


def job_shown(cluster: Cluster, job: Job) -> JobShown:
    shown = _without_refusals(cluster, job, job.spec)
    shown.refusals = job.refusals.count
    shown.refused_reason = job.refusals.reason
    shown.excluded_nodes = sorted(job.refusals.excluded)
    shown.preflight = _preflight(job)
    shown.image = job.spec.image
    shown.cpus_milli = job.spec.cpus_milli
    shown.memory_bytes = job.spec.memory_bytes
    shown.reservation = job.spec.reservation
    context = parse(job.trace) if job.trace else None
    shown.trace_id = "" if context is None else context.trace_id
    shown.use = use_shown(job.use)
    shown.idle_warning = idle_words(job)
    return shown


def idle_words(job: Job) -> str:
    """Return the warning that the job's GPUs are idle, and what follows; empty without one."""
    warning = job.idle
    if warning is None:
        return ""
    what = f"all its GPUs have been idle since {rfc3339(warning.since_ns)}"
    follows = f": {warning.action} at {rfc3339(warning.ends_ns)}" if warning.ends_ns else ""
    return what + follows


def _preflight(job: Job) -> PreflightShown | None:
    last = job.preflight
    if last is None:
        return None
    return PreflightShown(
        attempt=last.attempt,
        nodes=list(last.nodes),
        outcome=last.outcome,
        detail=last.detail,
        measured=last.measured,
        excluded=list(last.excluded),
        at=rfc3339(last.at_ns),
    )


def _without_refusals(cluster: Cluster, job: Job, spec: JobSpec) -> JobShown:
    members = sorted(job.members.values(), key=lambda member: member.rank)
    return JobShown(
        id=job.job_id,
        kind=spec.kind,
        name=spec.name,
        state=job.state,
        reason=job.reason,
        user=job.user,
        user_id=job.user,
        tenant=job.tenant,
        command=spec.command,
        workdir=spec.workdir,
        nodes=spec.nodes,
        nodes_max=spec.most_nodes,
        gpus=spec.gpus,
        gpu_share=spec.gpu_share,
        gpu_affinity=spec.gpu_uuids,
        priority=spec.priority,
        labels=spec.labels,
        attempt=job.attempt,
        retries=spec.retries,
        retries_used=job.retries_used,
        exit_code=job.exit_code,
        submitted_at=rfc3339(job.submitted_ns),
        queued_at=rfc3339(job.queued_ns),
        placed_at=rfc3339(job.placed_ns),
        started_at=rfc3339(job.started_ns),
        ended_at=rfc3339(job.ended_ns),
        expires_at=rfc3339(job.expires_ns),
        node_ids=[member.node_id for member in members],
        members=[_member(member) for member in members],
        port=job.port,
        seq=job.seq,
        cancel_requested=job.cancel is not None,
        stop_reason=job.stop_reason,
        time_limit_s=spec.time_limit_s,
        hang_timeout_s=spec.hang_timeout_s,
        max_execution_time=spec.time_limit_s or None,
        stdin=spec.stdin,
        waits_for=_waits_for(cluster, job),
        model=spec.serve.model if spec.serve is not None else "",
        ready=is_ready(job),
        on_control_loss=spec.on_control_loss,
        scheduling_policy=spec.scheduling_policy,
        upload=spec.upload,
        queue=spec.queue or DEFAULT_QUEUE,
        held=job.order.held,
        after=list(job.order.waits),
        array=_array(cluster, job),
        element_of=job.array,
        preemptible=spec.preemptible,
        preemptions=job.preemption.times,
        preempted_by=preempted_by(cluster, job),
        grown=job.preemption.grown,
        checkpoints=job.preemption.checkpoints,
        checkpointed_at=rfc3339(job.preemption.checkpointed_ns),
        reserved=[member.node_id for member in job.preemption.reserved],
        gpu_errors=_gpu_errors(cluster, job),
    )


def _gpu_errors(cluster: Cluster, job: Job) -> list[str]:
    """Return the errors of the job's GPUs, then the suspicion against the job, if any."""
    return [
        *(f"{error} on {uuid}" for uuid, error in job.gpu_errors),
        *filter(None, [suspects.of_job(cluster, job)]),
    ]


def _array(cluster: Cluster, job: Job) -> ArrayShown | None:
    if job.spec.array is None or job.elements is None:
        return None
    states = Counter(job.elements.ended)
    states[job_life.CANCELLED if ended(job) else job_life.QUEUED] += job.waiting
    for job_id in job.elements.alive:
        states.update(array_fold.states_of(cluster.jobs[job_id]))
    shown = {state: states[state] for state in (*job_life.LIVE, *job_life.ENDED) if states[state]}
    return ArrayShown(arrays.written(job.spec.array), arrays.count(job.spec.array), shown)


def _waits_for(cluster: Cluster, job: Job) -> str:
    if job.state == job_life.QUEUED and (job.order.held or job.order.waits):
        return (
            f"{next(iter(job.order.waits))} to end"
            if job.order.waits
            else f"{job.order.held_by or 'its user'} to release it"
        )
    if job.state == job_life.QUEUED and not job.has_room:
        return job_life.WAITS_FOR[job_life.BEGUN]
    if job.state == job_life.QUEUED and job.preemption.reserved:
        return "devices that are reserved for it to be free"
    silent = silent_nodes(cluster, job)
    return "; ".join(filter(None, (waits_for(job), job_life.silence(silent) if silent else "")))


def _member(member: MemberView) -> MemberShown:
    return MemberShown(
        node_id=member.node_id,
        rank=member.rank,
        gpus=[GpuShown(hold.uuid, hold.share) for hold in member.gpus],
        state=member.state,
        exit_code=member.exit_code,
        signal=member.signal,
        reason=member.reason,
        detail=member.detail,
    )


def ended(job: Job) -> bool:
    return job.state in job_life.ENDED
