"""Apply facts about jobs to the cluster's state: one function per kind, named after the kind.

Pure and total, called by `fold` only. The target states are in `life/job_life.py`. Facts about
members are in `member_fold.py`.
"""

from typing import Final

from libs.common import efficiency, reasons
from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import (
    array_fold,
    efficiency_fold,
    member_fold,
    model_fold,
    order_fold,
    preemption_fold,
)
from libs.common.life import job_life
from libs.common.model import JobId, attempt_key
from libs.common.state import arrivals, ledger
from libs.common.state.cluster import (
    ENDED_JOBS_KEPT,
    Cancel,
    Cluster,
    Elements,
    Job,
    MemberView,
    Node,
    all_over,
    tenant_of,
)

# Bound of a member's measured run time: this many times its placed span, plus a margin.
SPAN_PARTS: Final = 2
SPAN_MORE_MS: Final = 60_000


def submitted(cluster: Cluster, fact: f.JobSubmitted, stamp: Stamp) -> Change:
    if fact.job_id in cluster.jobs:
        return IGNORED
    job = Job(
        job_id=fact.job_id,
        spec=fact.spec,
        tenant=fact.tenant,
        user=fact.user,
        seq=stamp.seq,
        request=fact.request,
        submitted_ns=stamp.at_ns,
        trace=fact.trace,
    )
    job.elements = Elements() if fact.spec.array is not None else None
    cluster.jobs[fact.job_id] = job
    tenant_of(cluster, fact.tenant).waiting += job.waiting
    order_fold.begin(cluster, job)
    return Change((fact.job_id,))


def cancel_requested(cluster: Cluster, fact: f.CancelRequested, stamp: Stamp) -> Change:
    job = cluster.jobs.get(fact.job_id)
    cancel = Cancel(fact.grace_s, fact.signal, fact.user)
    if job is None:
        return array_fold.cancelled_early(cluster, fact.job_id, cancel)
    if job.state in job_life.ENDED or (
        job.cancel is not None and job.cancel <= cancel and not job.drain_until_ns
    ):
        return IGNORED
    job.cancel = cancel if job.cancel is None else min(job.cancel, cancel)
    job.drain_until_ns = 0
    return Change((fact.job_id, *array_fold.cancelled(cluster, job, cancel)))


def admitted(cluster: Cluster, fact: f.JobAdmitted, stamp: Stamp) -> Change:
    job = _job_allowing(cluster, fact.job_id, "job.admitted")
    if job is None or job.admitted:
        return IGNORED
    job.admitted = True
    return Change((fact.job_id,))


def rejected(cluster: Cluster, fact: f.JobRejected, stamp: Stamp) -> Change:
    job = _job_allowing(cluster, fact.job_id, "job.rejected")
    if job is None or job.admitted:
        return IGNORED
    job.reason = fact.reason
    touched = _end(cluster, job, "job.rejected", stamp)
    return Change((fact.job_id, *touched), forgotten=_forget_oldest(cluster))


def queued(cluster: Cluster, fact: f.JobQueued, stamp: Stamp) -> Change:
    job = _job_allowing(cluster, fact.job_id, "job.queued")
    if job is None or not job.admitted:
        return IGNORED
    job.state = job_life.after(job.state, "job.queued")
    job.queued_ns = stamp.at_ns
    if job.elements is None:
        arrivals.note(cluster.arrivals, job.spec)
    order_fold.queued(cluster, job)
    return Change((fact.job_id,))


def placed(cluster: Cluster, fact: f.JobPlaced, stamp: Stamp) -> Change:
    job, nodes = cluster.jobs.get(fact.job_id), cluster.nodes
    if job is None or job.elements is not None or job.attempt != fact.attempt:
        return IGNORED
    members = {
        m.node_id: MemberView(
            node_id=m.node_id,
            incarnation=m.incarnation,
            rank=m.rank,
            gpus=m.gpus,
            accounted=m.incarnation,
        )
        for m in fact.members
    }
    state = job_life.JOB_LIFE.get((job.state, "job.placed"))
    are_known = 0 < len(members) == len(fact.members) and members.keys() <= nodes.keys()
    holds = list(ledger.holds_of(fact.members))
    views = ledger.free_devices(cluster, holds) if are_known else None
    if state is None or views is None:
        return IGNORED
    job.state, job.members = state, members
    job.placed_ns, job.placed_seq, job.port = stamp.at_ns, stamp.seq, fact.port
    if fact.expires_ns > job.expires_ns:
        job.expires_ns = fact.expires_ns
    cluster.port_last = fact.port or cluster.port_last
    cluster.placed_last = fact.members[-1].node_id
    tenant = tenant_of(cluster, job.tenant)
    tenant.waiting -= 1
    job.preemption.lender = fact.lender
    kept = preemption_fold.free(cluster, job) if job.preemption.reserved else ()
    ledger.hold(cluster, job, tenant=tenant, views=views, holds=holds)
    homes = member_fold.homes_of(members, views)
    for node_id, member in members.items():
        node = nodes[node_id]
        node.members[fact.job_id] = fact.attempt
        if member.incarnation <= node.lost or member.incarnation < node.incarnation:
            _lose_late(cluster, job, node, member)
    return Change((fact.job_id,), homes + kept)


def _lose_late(cluster: Cluster, job: Job, node: Node, member: MemberView) -> None:
    """Mark the member lost if its node was lost, or restarted, since the placement was decided."""
    if member.incarnation <= node.gone:
        member_fold.lose_member(cluster, job, member)
    member_fold.lose_if_gone(cluster, job, node.node_id)


def dated(cluster: Cluster, fact: f.JobPlaced | f.JobPreempted, stamp: Stamp) -> Change:
    """Set the times of a decision that was folded ahead of the log and is now acknowledged.

    Only now its time is known, which may be long after the decision.
    """
    job = cluster.jobs.get(fact.job_id)
    if job is not None and isinstance(fact, f.JobPlaced) and job.attempt == fact.attempt:
        job.placed_ns, job.placed_seq = stamp.at_ns, stamp.seq
    elif job is not None and isinstance(fact, f.JobPreempted) and fact.sliced:
        job.preemption.sliced_ns = stamp.at_ns  # the next attempt's place in the queue
    else:
        return IGNORED
    return Change((fact.job_id,))


def stop_ordered(cluster: Cluster, fact: f.JobStopOrdered, stamp: Stamp) -> Change:
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    return _stop(job, fact.reason, fact.signal, fact.grace_ms) if job is not None else IGNORED


def preempted(cluster: Cluster, fact: f.JobPreempted, stamp: Stamp) -> Change:
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    if job is None or job.state not in job_life.ON_NODES:
        return IGNORED
    if fact.by == job.job_id:
        job.preemption.grown += 1
        return _stop(job, reasons.GROWN, fact.signal, fact.grace_ms)
    job.preemption.times, job.preemption.by = job.preemption.times + 1, fact.by
    job.preemption.sliced_ns = stamp.at_ns if fact.sliced else job.preemption.sliced_ns
    return _stop(job, reasons.PREEMPTED, fact.signal, fact.grace_ms)


def _stop(job: Job, reason: str, signal: int, grace_ms: int) -> Change:
    """Note a stop. The first reason stays, and the shortest grace counts, as on the node."""
    if job.state not in job_life.ON_NODES:
        return IGNORED
    if not job.stop_reason or grace_ms < job.stop_grace_ms:
        job.stop_signal, job.stop_grace_ms = signal, grace_ms
    job.stop_reason = job.stop_reason or reason
    return Change((job.job_id,))


def requeued(cluster: Cluster, fact: f.JobRequeued, stamp: Stamp) -> Change:
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    if job is None or not job_life.allows(job.state, "job.requeued") or not all_over(job):
        return IGNORED
    nodes = member_fold.homes(cluster, job.members.values())
    _note_charge(cluster, job, stamp)
    array_fold.cut(job, fact.elements)
    _note_refusals(job, fact)
    _forget_attempt(cluster, job)
    job.state = job_life.after(job.state, "job.requeued")
    job.reason = fact.reason
    job.attempt += 1
    job.retries_used += int(fact.counted)
    job.queued_ns, job.placed_ns, job.started_ns = stamp.at_ns, 0, 0
    tenant_of(cluster, job.tenant).waiting += 1
    return Change((fact.job_id,), nodes)


def _note_refusals(job: Job, fact: f.JobRequeued) -> None:
    """Record until when the next attempt waits, and which nodes it avoids.

    Facts of earlier versions set neither.
    """
    refused = [member for member in job.members.values() if member.state == job_life.REFUSED]
    if job.started_ns and not refused:
        job.refusals = job.refusals.after_a_run()
    if fact.not_before_ns:
        nodes, reason = [member.node_id for member in refused], refused[0].reason if refused else ""
        job.refusals = job.refusals.with_one_more(
            nodes, reason, fact.not_before_ns, fact.excluded_until_ns
        )


def closed(cluster: Cluster, fact: f.JobClosed, stamp: Stamp) -> Change:
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    if (
        job is None
        or not job_life.allows(job.state, f"job.closed:{fact.outcome}")
        or not all_over(job)
    ):
        return IGNORED
    nodes = member_fold.homes(cluster, job.members.values())
    _note_charge(cluster, job, stamp)
    if job.members:
        array_fold.cut(job, fact.elements)
    if fact.outcome == job_life.COMPLETED:
        order_fold.completed(cluster, job)
    _leave_nodes(cluster, job)
    nodes += preemption_fold.free(cluster, job)
    job.reason, job.exit_code = fact.reason, fact.exit_code
    touched = _end(cluster, job, f"job.closed:{fact.outcome}", stamp)
    return Change(
        jobs=(fact.job_id, *touched),
        nodes=nodes,
        models=model_fold.closed(cluster, job, fact, stamp),
        forgotten=_forget_oldest(cluster),
    )


def _note_charge(cluster: Cluster, job: Job, stamp: Stamp) -> None:
    """Note the charge that quota owes for an attempt that has ended, and the use of its devices."""
    placed_ms = max(0, stamp.at_ns - job.placed_ns) // 1_000_000
    job.idle = None
    cluster.idle.pop(job.job_id, None)
    if job.members and job.charged < job.attempt:
        run_ms = {node_id: _used_ms(member, placed_ms) for node_id, member in job.members.items()}
        charge = efficiency_fold.charge_of(cluster, job, run_ms, stamp)
        cluster.uncharged[attempt_key(job.job_id, job.attempt)] = charge
        job.use = efficiency.of_attempts(job.use, charge.use)


def _used_ms(member: MemberView, placed_ms: int) -> int:
    """Return the member's run time by its own machine's clock, or the placed span if its node
    measured none. A member that refused to start did not run.

    Two schedulers' wall clocks may be far apart. The run time is bounded by the time from placement
    to close, with a margin: the scheduler's clock may go at half speed after a take-over
    (`Writer.now_ns`), and stand still during one. The member keeps the time that its node reported,
    because a scheduler that works ahead folds its own JobClosed with another time than the log's.
    """
    if member.state == job_life.REFUSED:
        return 0
    return min(member.run_ms, SPAN_PARTS * placed_ms + SPAN_MORE_MS) or placed_ms


def _job_allowing(cluster: Cluster, job_id: JobId, event: str) -> Job | None:
    job = cluster.jobs.get(job_id)
    return job if job is not None and job_life.allows(job.state, event) else None


def _leave_nodes(cluster: Cluster, job: Job) -> None:
    for member in job.members.values():
        ledger.release(cluster, job, member)
        cluster.nodes[member.node_id].members.pop(job.job_id, None)
        member.accounted = 0


def _forget_attempt(cluster: Cluster, job: Job) -> None:
    _leave_nodes(cluster, job)
    job.been |= dict.fromkeys(job.members)
    job.members = {}
    job.stop_reason, job.stop_signal, job.stop_grace_ms, job.port, job.placed_seq = "", 0, 0, 0, 0
    job.expires_ns, job.warned_ns = 0, 0


def _end(cluster: Cluster, job: Job, event: str, stamp: Stamp) -> tuple[JobId, ...]:
    """End the job. Return the jobs that waited for it, and the array whose element it was."""
    if job.state in (job_life.PENDING, job_life.QUEUED):
        tenant_of(cluster, job.tenant).waiting -= job.waiting
    if job.elements is not None:
        job.elements.early = {}
    job.state = job_life.after(job.state, event)
    job.ended_ns = stamp.at_ns
    touched = order_fold.end(cluster, job) + array_fold.ended(cluster, job)
    cluster.ended[job.job_id] = stamp.seq
    return touched


def _forget_oldest(cluster: Cluster) -> tuple[JobId, ...]:
    """Remove the job that ended first if too many are kept. Return it."""
    if len(cluster.ended) <= ENDED_JOBS_KEPT:
        return ()
    oldest = next(iter(cluster.ended))
    del cluster.ended[oldest]
    del cluster.jobs[oldest]
    return (oldest,)
