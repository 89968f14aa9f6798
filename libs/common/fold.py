"""Apply commits to the cluster's state, by the same rule in every reader.

Pure and total. A fact is counted in `ignored` and changes nothing if a life table does not allow
it, if it is about a closed attempt, an older incarnation or an older epoch, or if its writer may
not record it. A node's facts are clamped to `bounds.py`. A node is distrusted until it registers
again if a whole commit of it was ignored (`reading.py`), or a fact was out of all bounds. Facts of
different writers without a causal link commute (tests/property/test_commute.py), so the scheduler
can work ahead of the log.
"""

from typing import Final, cast

from libs.common import bounds, reading, subjects
from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.errors import Corrupt
from libs.common.facts import AnyFact, Commit, Ignored, Unentitled, Unknown
from libs.common.folds import (
    allocation_fold,
    array_fold,
    device_fold,
    diagnosis_fold,
    efficiency_fold,
    fabric_fold,
    job_fold,
    kept_fold,
    key_fold,
    lock_fold,
    member_fold,
    membership_fold,
    model_fold,
    node_fold,
    notification_fold,
    order_fold,
    preemption_fold,
    reservation_fold,
    secret_fold,
    timing_fold,
    usage_fold,
)
from libs.common.model import NodeId, attempt_key
from libs.common.state import plugins
from libs.common.state.cluster import LIVES_MAX, Cluster, WriterMark, epoch_at, tenant_of
from libs.common.state.plugins import Plugins
from libs.common.state.state_hash import StateHash


def apply_entry(cluster: Cluster, seq: int, subject: str, commit: Commit) -> list[Change]:
    """Fold one commit that `reading.read` returned.

    Raises Corrupt for a gap in the stream or in the writer's commit numbers.
    """
    check_place(cluster, seq, subject, commit)
    stamp = enter(cluster, seq, subject, commit)
    return [apply(cluster, fact, stamp) for fact in commit.facts]


def pass_over(cluster: Cluster, seq: int, subject: str, commit: Commit) -> list[Change]:
    """Fold an acknowledged commit whose facts were folded ahead of the log.

    Move the position, and do what depends on the acknowledgement: set times, and forget ended
    claims on locks.
    """
    check_place(cluster, seq, subject, commit)
    stamp = enter(cluster, seq, subject, commit)
    for fact in commit.facts:
        if isinstance(fact, f.LockFreed):
            lock_fold.forget(cluster, fact)
        elif isinstance(fact, f.JobClosed):
            model_fold.dated(cluster, fact, stamp)
    return [
        job_fold.dated(cluster, fact, stamp)
        for fact in commit.facts
        if isinstance(fact, f.JobPlaced | f.JobPreempted)
    ]


def check_place(cluster: Cluster, seq: int, subject: str, commit: Commit) -> None:
    """Check that neither the stream nor the writer's numbers have a gap.

    That detects a commit that the stream lost. Raises Corrupt.
    """
    if seq != cluster.seq + 1:
        raise Corrupt(f"the log jumps from {cluster.seq} to {seq}: read it again from a snapshot")
    mark = cluster.writers.get(subject)
    if not reading.is_ignored(commit) and not reading.follows(mark, commit):
        last = mark.number if mark is not None else 0
        raise Corrupt(
            f"{subject} goes from commit {last} to {commit.number}: a commit is missing from "
            "the log"
        )


def enter(cluster: Cluster, seq: int, subject: str, commit: Commit) -> Stamp:
    """Move the position to this commit, and return the stamp of its facts."""
    ignored = reading.is_ignored(commit)
    cluster.writers[subject] = WriterMark(
        seq, number=commit.number, at_ns=commit.at_ns, epoch=commit.epoch, ignored=ignored
    )
    cluster.seq = seq
    return Stamp(
        seq,
        at_ns=commit.at_ns,
        epoch=commit.epoch,
        writer=subjects.writer_kind(subject),
        writer_id=subjects.node_of(subject),
    )


def apply(cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp) -> Change:
    """Fold one fact."""
    cluster.facts += 1
    if isinstance(fact, Ignored):
        return _distrust(cluster, stamp, fact.reason)
    if isinstance(fact, Unentitled) and fact.distrusts:
        return _distrust(cluster, stamp, fact.distrusts)
    if stamp.writer == subjects.NODE_KIND:
        bounded = _bounded(fact)
        if bounded is None:
            return _distrust(cluster, stamp, bounds.too_long(fact))
        fact = bounded
    change = (
        _FOLDS[type(fact)](cluster, fact, stamp)  # type: ignore[operator]
        if _entitled(cluster, fact, stamp)
        else IGNORED
    )
    if change is IGNORED:
        cluster.ignored += 1
    return change


def _bounded(fact: AnyFact | Unknown) -> AnyFact | Unknown | None:
    return cast("AnyFact | None", bounds.bounded(fact)) if not isinstance(fact, Unknown) else fact


def _distrust(cluster: Cluster, stamp: Stamp, reason: str) -> Change:
    """Distrust the node after an ignored commit or fact.

    A node that has never registered has no record.
    """
    cluster.ignored += 1
    node = (
        cluster.nodes.get(NodeId(stamp.writer_id)) if stamp.writer == subjects.NODE_KIND else None
    )
    if node is None:
        return IGNORED
    node.ignored, node.ignored_seq, node.ignored_reason = node.ignored + 1, stamp.seq, reason
    node.distrusted = reason
    return Change((), (node.node_id,))


def _entitled(cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp) -> bool:
    """Return whether this writer may record this kind of fact now.

    It is the second line of defence, behind the permissions of the NATS server.
    """
    if not subjects.may_record(stamp.writer, stamp.writer_id, fact):
        return False
    if stamp.writer == subjects.SCHEDULER_KIND:
        return (
            cluster.epoch == stamp.epoch
            or isinstance(fact, f.TermBegan)
            or cluster.epoch == epoch_at(cluster, stamp.seq)
        )
    return True


def _term_began(cluster: Cluster, fact: f.TermBegan, stamp: Stamp) -> Change:
    cluster.epoch = epoch_at(cluster, stamp.seq)
    cluster.leader = fact.instance
    cluster.plugins = Plugins(fact.orders, fact.scores, cluster.plugins.disabled)
    return Change()


def _quota_term_began(cluster: Cluster, fact: f.QuotaTermBegan, stamp: Stamp) -> Change:
    """Change nothing: the log's fence refuses what an older quota appends."""
    return Change()


def _plugin_disabled(cluster: Cluster, fact: f.PluginDisabled, stamp: Stamp) -> Change:
    before = cluster.plugins
    name = plugins.ref(fact.extends, fact.name, fact.version)
    if name in before.disabled:
        return IGNORED
    disabled = [*before.disabled.items(), (name, fact.reason)][-plugins.DISABLED_MAX :]
    cluster.plugins = Plugins(before.orders, before.scores, dict(disabled))
    return Change()


def _lease_extended(cluster: Cluster, fact: f.LeaseExtended, stamp: Stamp) -> Change:
    cluster.extension_ms = max(cluster.extension_ms, fact.duration_ms) if fact.duration_ms else 0
    return Change()


def _cluster_restored(cluster: Cluster, fact: f.ClusterRestored, stamp: Stamp) -> Change:
    """Begin the next life: older terms may record nothing more, and nothing is placed for now."""
    if not cluster.life < fact.life <= LIVES_MAX:
        return IGNORED
    cluster.life, cluster.restored_seq, cluster.settling = fact.life, stamp.seq, True
    cluster.restore_id = fact.restore_id
    cluster.epoch = epoch_at(cluster, 0)
    return Change()


def _restore_settled(cluster: Cluster, fact: f.RestoreSettled, stamp: Stamp) -> Change:
    if fact.life != cluster.life or not cluster.settling:
        return IGNORED
    cluster.settling = False
    return Change()


def _state_hashed(cluster: Cluster, fact: f.StateHashed, stamp: Stamp) -> Change:
    if fact.seq <= cluster.state_hash.seq:
        return IGNORED
    cluster.state_hash = StateHash(seq=fact.seq, schema=fact.schema, parts=fact.parts)
    return Change()


def _usage_charged(cluster: Cluster, fact: f.UsageCharged, stamp: Stamp) -> Change:
    tenant = tenant_of(cluster, fact.tenant)
    tenant.used_share_ms += fact.share_ms
    if tenant.month:
        tenant.month_share_ms += fact.share_ms
    order_fold.charged(cluster, fact)
    cluster.uncharged.pop(attempt_key(fact.job_id, fact.attempt), None)
    job = cluster.jobs.get(fact.job_id)
    if job is None:
        return Change()
    job.charged = max(job.charged, fact.attempt)
    usage_fold.charged(job)
    job.order.attained += fact.share_ms
    return Change((fact.job_id,))


def _budget_exhausted(cluster: Cluster, fact: f.BudgetExhausted, stamp: Stamp) -> Change:
    tenant = cluster.tenants.get(fact.tenant)
    if tenant is None:
        return IGNORED
    if fact.month == 0:
        tenant.spent_gpu_hours = max(tenant.spent_gpu_hours, fact.gpu_hours)
    elif fact.month == tenant.month:
        tenant.spent_month_hours = max(tenant.spent_month_hours, fact.gpu_hours)
    else:
        return IGNORED
    return Change()


def _budget_renewed(cluster: Cluster, fact: f.BudgetRenewed, stamp: Stamp) -> Change:
    tenant = cluster.tenants.get(fact.tenant)
    if tenant is None or fact.month <= tenant.month:
        return IGNORED
    tenant.month, tenant.month_share_ms, tenant.spent_month_hours = fact.month, 0, 0
    return Change()


# One row per kind; tests/test_tidy.py checks that none is missing.
_FOLDS: Final = {
    f.JobSubmitted: job_fold.submitted,
    f.CancelRequested: job_fold.cancel_requested,
    f.TenantSet: key_fold.tenant_set,
    f.KeyCreated: key_fold.created,
    f.KeyRotated: key_fold.rotated,
    f.KeyRevoked: key_fold.revoked,
    f.KeyLimitsSet: key_fold.limits_set,
    f.AccessRecorded: key_fold.access_recorded,
    f.SecretSet: secret_fold.was_set,
    f.SecretRemoved: secret_fold.removed,
    f.NodeInvited: membership_fold.invited,
    f.NodeJoined: membership_fold.joined,
    f.NodeRemovalRequested: membership_fold.removal_requested,
    f.NodeRevoked: membership_fold.revoked,
    f.ModelDeployed: model_fold.deployed,
    f.ModelScaled: model_fold.scaled,
    f.ModelUndeployed: model_fold.undeployed,
    f.ModelAliasSet: model_fold.alias_set,
    f.ModelShareSet: model_fold.share_set,
    f.ModelLimitsSet: model_fold.limits_set,
    f.ModelAdapterSet: model_fold.adapter_set,
    f.ModelUsed: usage_fold.model_used,
    f.ModelKeepRequested: kept_fold.requested,
    f.ModelKeepDropped: kept_fold.dropped,
    f.NodeDeclaredDead: node_fold.declared_dead,
    f.LeaseProfileSet: timing_fold.profile_set,
    f.GpuServiceSet: device_fold.service_set,
    f.GpuControlRequested: device_fold.control_requested,
    f.FabricTestRequested: fabric_fold.test_requested,
    f.NodeDrainCleared: fabric_fold.drain_cleared,
    f.NodeHoldCleared: node_fold.hold_over,
    f.QueueSet: order_fold.queue_set,
    f.JobUpdated: order_fold.updated,
    f.RequeueRequested: order_fold.requeue_requested,
    f.AllocationExtended: allocation_fold.extended,
    f.ReservationSet: reservation_fold.was_set,
    f.ReservationCleared: reservation_fold.cleared,
    f.LockRequested: lock_fold.requested,
    f.LockRenewRequested: lock_fold.renew_requested,
    f.LockReleaseRequested: lock_fold.release_requested,
    f.JobDiagnosed: diagnosis_fold.diagnosed,
    f.PriceSet: efficiency_fold.price_set,
    f.IdlePolicySet: efficiency_fold.policy_set,
    f.NotificationSet: notification_fold.was_set,
    f.NotificationRemoved: notification_fold.removed,
    f.JobAdmitted: job_fold.admitted,
    f.JobRejected: job_fold.rejected,
    f.UsageCharged: _usage_charged,
    f.BudgetExhausted: _budget_exhausted,
    f.BudgetRenewed: _budget_renewed,
    f.QuotaTermBegan: _quota_term_began,
    f.TermBegan: _term_began,
    f.PluginDisabled: _plugin_disabled,
    f.ClusterConfigured: timing_fold.configured,
    f.LeaseExtended: _lease_extended,
    f.LeaseProfileSettled: timing_fold.settled,
    f.ClusterRestored: _cluster_restored,
    f.RestoreSettled: _restore_settled,
    f.StateHashed: _state_hashed,
    f.JobQueued: job_fold.queued,
    f.ElementBegun: array_fold.begun,
    f.JobPlaced: job_fold.placed,
    f.JobStopOrdered: job_fold.stop_ordered,
    f.JobPreempted: job_fold.preempted,
    f.DevicesReserved: preemption_fold.reserved,
    f.JobRequeued: job_fold.requeued,
    f.JobClosed: job_fold.closed,
    f.AllocationWarned: allocation_fold.warned,
    f.JobIdleWarned: efficiency_fold.idle_warned,
    f.ModelAutoscaled: model_fold.autoscaled,
    f.ReplicasScaled: model_fold.replicas_scaled,
    f.KeptPlaced: kept_fold.placed,
    f.KeptGranted: kept_fold.granted,
    f.KeptEvicted: kept_fold.evicted,
    f.NodeLost: node_fold.lost,
    f.NodeReturned: node_fold.returned,
    f.NodeHeldBack: node_fold.held_back,
    f.NodeHoldEnded: node_fold.hold_over,
    f.NodeRemoved: membership_fold.removed,
    f.FabricTestBegun: fabric_fold.test_begun,
    f.FabricRoundOrdered: fabric_fold.round_ordered,
    f.FabricRoundClosed: fabric_fold.round_closed,
    f.FabricTestEnded: fabric_fold.test_ended,
    f.PreflightEnded: fabric_fold.preflight_ended,
    f.NodeDrained: fabric_fold.drained,
    f.LockGranted: lock_fold.granted,
    f.LockRenewed: lock_fold.renewed,
    f.LockFreed: lock_fold.freed,
    f.NodeRegistered: node_fold.registered,
    f.JobStarted: member_fold.started,
    f.JobCheckpointed: preemption_fold.checkpointed,
    f.JobOverShare: device_fold.over_share,
    f.JobIdleSeen: efficiency_fold.idle_seen,
    f.ElementsEnded: array_fold.elements_ended,
    f.JobFinished: member_fold.finished,
    f.JobRefused: member_fold.refused,
    f.JobReleased: member_fold.released,
    f.ReplicaReady: model_fold.ready,
    f.ReplicaUnready: model_fold.unready,
    f.KeptObserved: kept_fold.observed,
    f.StandbyPromoted: kept_fold.promoted,
    f.GpuFaulted: device_fold.faulted,
    f.GpuRecovered: device_fold.recovered,
    f.GpuErrorSeen: device_fold.error_seen,
    f.GpuControlled: device_fold.controlled,
    f.FabricProbed: fabric_fold.probed,
    f.LinkChosen: node_fold.link_chosen,
    f.WatchdogChanged: node_fold.watchdog_changed,
}
