"""The commits that concern each job, and a one-line summary of each kind of fact.

Pure. The history keeps sequence numbers only; the gateway reads the entries from the log. A job has
at most SEQS_PER_JOB numbers. The first and the latest ones tell most, so the middle goes first.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from libs.common import facts as f
from libs.common.change import Change
from libs.common.devices.device_controls import DEFAULT, ROWS
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.life.gpu_life import QUARANTINED
from libs.common.model import JobId
from libs.common.quantities import counted
from services.api_gateway.times import rfc3339
from services.api_gateway.views.element_words import ELEMENT_WORDS
from services.api_gateway.views.fabric_words import FABRIC_WORDS
from services.api_gateway.views.lock_words import LOCK_WORDS
from services.api_gateway.views.tenant_words import TENANT_WORDS
from services.api_gateway.views.use_words import USE_WORDS
from services.api_gateway.views.user_words import user_named as _user

SEQS_PER_JOB: Final = 1_000
FIRST_KEPT: Final = 100
# A release check that begins with one of these did not prove its part clean.
NOT_CLEAN: Final = ("held", "left", "not known", "not looked for", "failed")
# How the node isolates the job's fractions of GPUs, by `isolation` of JobStarted.
ISOLATED_BY: Final = {
    "mps": ", isolated by MPS",
    "cu_mask": ", isolated by masks of compute units",
    "simulated": ", on simulated devices, where MPS isolates nothing",
}


class History(msgspec.Struct):
    """The ordered sequence numbers of the commits that concern each job."""

    seqs: dict[JobId, list[int]] = {}

    def note(self, seq: int, commit: Commit, changes: list[Change]) -> None:
        """Note the jobs that a folded commit names or changed. A fact that the fold ignored counts
        too.
        """
        for fact, change in zip(commit.facts, changes, strict=True):
            named = getattr(fact, "job_id", "")
            if named:
                self._add(JobId(named), seq)
            for job_id in change.jobs:
                self._add(job_id, seq)

    def of(self, job_id: JobId) -> list[int]:
        return self.seqs.get(job_id, [])

    def parts(self, job_id: JobId) -> tuple[list[int], list[int]]:
        """Return the sequences before and after the missing middle; without one, all are before."""
        seqs = self.of(job_id)
        is_whole = len(seqs) < SEQS_PER_JOB
        return (seqs, []) if is_whole else (seqs[:FIRST_KEPT], seqs[FIRST_KEPT:])

    def changed(self, job_id: JobId) -> int:
        """Return the last sequence that concerns the job; 0 if there is none."""
        seqs = self.seqs.get(job_id)
        return seqs[-1] if seqs else 0

    def _add(self, job_id: JobId, seq: int) -> None:
        seqs = self.seqs.setdefault(job_id, [])
        if seqs and seqs[-1] == seq:
            return
        seqs.append(seq)
        if len(seqs) > SEQS_PER_JOB:
            del seqs[FIRST_KEPT]


def _setting(fact: f.GpuControlRequested | f.GpuControlled) -> str:
    """Return the control with its value: `power 300`, `power default` or `reset`."""
    return (
        fact.control
        if fact.control in ROWS and ROWS[fact.control].once
        else f"{fact.control} {fact.value or DEFAULT}"
    )


def row(seq: int, commit: Commit, fact: AnyFact | Unknown) -> dict[str, Any]:
    """Return one fact of the log as the API shows it."""
    return {
        "seq": seq,
        "at": rfc3339(commit.at_ns),
        "writer": commit.writer,
        "epoch": commit.epoch,
        "kind": f.kind_of(fact),
        "summary": summary(fact),
        "fact": _content(fact),
    }


def concerns(fact: AnyFact | Unknown, job_id: str) -> bool:
    """Return whether a fact concerns the job.

    The caller passes commits from the job's history only, so a fact about a node concerns the job.
    """
    if isinstance(fact, f.ReplicasScaled):
        return job_id in fact.retire or any(replica.job_id == job_id for replica in fact.add)
    named = getattr(fact, "job_id", "")
    return (
        named == job_id
        if named
        else isinstance(fact, f.NodeLost | f.NodeReturned | f.NodeRegistered)
    )


def _content(fact: AnyFact | Unknown) -> Any:  # noqa: ANN401  a fact as JSON values
    if isinstance(fact, f.Ignored | f.Unentitled):
        return {"kind": fact.name, "reason": fact.reason}
    return {"kind": fact.name, "raw": fact.raw} if isinstance(fact, Unknown) else fact


def summary(fact: AnyFact | Unknown) -> str:
    """Return a one-line summary of the fact."""
    summarise = _SUMMARY.get(type(fact))
    return summarise(fact) if summarise else f.kind_of(fact)


def _placed(fact: f.JobPlaced) -> str:
    where = ", ".join(
        f"{member.node_id} ({counted(len(member.gpus), 'GPU')})" for member in fact.members[:4]
    )
    more = f" and {len(fact.members) - 4} more" if len(fact.members) > 4 else ""
    return f"attempt {fact.attempt} placed on {where}{more}"


def _reserved(fact: f.DevicesReserved) -> str:
    where = ", ".join(f"{member.node_id} ({len(member.gpus)} GPUs)" for member in fact.members)
    return (
        f"reserved for attempt {fact.attempt}: {where}"
        if where
        else "no devices are reserved for the job any more"
    )


def _preempted(fact: f.JobPreempted) -> str:
    why = "to run with more nodes" if fact.by == fact.job_id else f"to make room for {fact.by}"
    return (
        f"attempt {fact.attempt} preempted {why}: signal {fact.signal}, at most "
        f"{fact.grace_ms // 1000} s to save and end"
    )


def _released(fact: f.JobReleased) -> str:
    """Describe a release.

    The devices are clean only if every check of the receipt says so. A GpuFaulted names the device
    that is still held, and the process that holds it.
    """
    failed = [
        f"{name} {result}" for name, result in fact.checks.items() if result.startswith(NOT_CLEAN)
    ]
    where = f"attempt {fact.attempt} on {fact.node_id}"
    return (
        f"{where} released, but its devices are not proved clean: {'; '.join(failed)}"
        if failed
        else f"devices of {where} proved clean"
    )


def _faulted(fact: f.GpuFaulted) -> str:
    what = f"{fact.reason}: {fact.detail}" if fact.detail else fact.reason
    health = "quarantined" if fact.reason == QUARANTINED else f"{fact.health} ({what})"
    return f"GPU {fact.uuid} on {fact.node_id} is {health}" + (
        f": {fact.detail}" if health == QUARANTINED and fact.detail else ""
    )


def _finished(fact: f.JobFinished) -> str:
    how = f"signal {fact.signal}" if fact.signal else f"exit code {fact.exit_code}"
    return f"ended on {fact.node_id}: {how} ({fact.reason})"


def _registered(fact: f.NodeRegistered) -> str:
    return (
        f"node {fact.node_id} registered with {counted(len(fact.gpus), 'GPU')}, incarnation "
        f"{fact.incarnation}"
    )


def _replicas(fact: f.ReplicasScaled) -> str:
    added = f"starts {', '.join(replica.job_id for replica in fact.add)}" if fact.add else ""
    retired = f"retires {', '.join(fact.retire[:8])}" if fact.retire else ""
    recovered = "recovered from its crashes" if fact.recovered else ""
    change = " and ".join(filter(None, (added, retired, recovered)))
    return f"model {fact.model} {change}, generation {fact.generation} ({fact.reason})"


def _share(value: int) -> str:
    return f"{value / 100:.2f} GPUs" if value else "no limit"


def _tenant(fact: f.TenantSet) -> str:
    return f"tenant {fact.tenant} " + (
        "removed" if fact.removed else f"set: {_share(fact.max_gpu_share)}, weight {fact.weight}"
    )


def _updated(fact: f.JobUpdated) -> str:
    changes = [f"priority {fact.priority}"] if fact.priority is not None else []
    changes += [f"time limit {fact.time_limit_s} s"] if fact.time_limit_s is not None else []
    changes += ["held" if fact.held else "released"] if fact.held is not None else []
    return f"changed by {_user(fact.user)}: {', '.join(changes) or 'nothing'}"


def _reservation(fact: f.ReservationSet) -> str:
    owners = ", ".join((*fact.tenants, *fact.users)) or "maintenance"
    nodes = ", ".join(fact.nodes[:4]) + (
        f" and {len(fact.nodes) - 4} more" if len(fact.nodes) > 4 else ""
    )
    span = f"from {rfc3339(fact.start_ns)} to {rfc3339(fact.end_ns)}"
    return (
        f"reservation {fact.reservation} for {owners} on {nodes}, {span}, set by {_user(fact.user)}"
    )


def _limits(fact: f.KeyLimitsSet | f.ModelLimitsSet) -> str:
    words = [
        counted(fact.requests_per_minute, "request") if fact.requests_per_minute else "",
        counted(fact.tokens_per_minute, "token") if fact.tokens_per_minute else "",
    ]
    found = " and ".join(word for word in words if word)
    return f"{found} a minute" if found else "none"


_SUMMARY: Final[dict[type, Callable[[Any], str]]] = {
    f.JobSubmitted: lambda x: f"submitted by {_user(x.user)}: {' '.join(x.spec.command)[:80]}",
    f.CancelRequested: lambda x: (
        f"cancel requested by {_user(x.user)}: signal {x.signal}, {x.grace_s} s grace"
    ),
    f.TenantSet: _tenant,
    f.KeyCreated: lambda x: (
        f"key {x.key_id} ({x.role} {x.user} of {x.tenant}) created by {_user(x.by)}"
    ),
    f.KeyRotated: lambda x: f"key {x.key_id} rotated by {_user(x.user)}",
    f.KeyRevoked: lambda x: f"key {x.key_id} revoked by {_user(x.user)}",
    f.KeyLimitsSet: lambda x: f"limits of key {x.key_id}: {_limits(x)}, set by {_user(x.user)}",
    f.AccessRecorded: lambda x: (
        f"{counted(x.count, 'request')}{f'; {x.dropped} earlier ones lost' if x.dropped else ''}"
    ),
    f.ModelDeployed: lambda x: (
        f"model {x.name} deployed by {_user(x.user)}: {x.spec.replicas} x "
        f"{' '.join(x.spec.command)[:80]}"
    ),
    f.ModelAutoscaled: lambda x: (
        f"model {x.name} scaled to {counted(x.replicas, 'replica')} by the scheduler: {x.law}"
    ),
    f.ModelScaled: lambda x: (
        f"model {x.name} scaled to {counted(x.replicas, 'replica')} by {_user(x.user)}"
    ),
    f.ModelUndeployed: lambda x: f"model {x.name} undeployed by {_user(x.user)}",
    f.ModelUsed: lambda x: f"{counted(sum(use.requests for use in x.uses), 'request')} to models",
    f.ModelAliasSet: lambda x: (
        f"model {x.name} {'loses' if x.removed else 'gets'} the alias {x.alias}, by {_user(x.user)}"
    ),
    f.ModelAdapterSet: lambda x: (
        f"model {x.name} {'loses' if x.removed else 'gets'} the adapter {x.adapter}"
        f"{f' from {x.path}' if x.path else ''}, by {_user(x.user)}"
    ),
    f.ModelShareSet: lambda x: (
        f"model {x.name} is {'no longer ' if x.removed else ''}shared with "
        f"{'all tenants' if x.guest == '*' else x.guest}, by {_user(x.user)}"
    ),
    f.ModelLimitsSet: lambda x: (
        f"limits of {'each guest' if x.guest == '*' else x.guest} at model {x.name}: "
        f"{_limits(x)}, set by {_user(x.user)}"
    ),
    f.ModelKeepRequested: lambda x: (
        f"model {x.model} keeps the tier {x.tier}, requested by {_user(x.user)}"
    ),
    f.ModelKeepDropped: lambda x: (
        f"model {x.model} no longer keeps the tier {x.tier}, by {_user(x.user)}"
    ),
    f.KeptPlaced: lambda x: f"node {x.node_id} keeps {x.model}/{x.tier}",
    f.KeptGranted: lambda x: (
        f"node {x.node_id} has {x.host_bytes + sum(x.gpu_bytes.values())} bytes for "
        f"{x.model}/{x.tier}"
    ),
    f.KeptEvicted: lambda x: f"node {x.node_id} gives up {x.model}/{x.tier}: {x.reason}",
    f.KeptObserved: lambda x: (
        f"{x.model}/{x.tier} on {x.node_id} is {x.state}" + (f": {x.detail}" if x.detail else "")
    ),
    f.StandbyPromoted: lambda x: (
        f"the standby on {x.node_id} took over after {x.took_ms} ms, on port {x.port}: {x.reason}"
    ),
    f.NodeInvited: lambda x: (
        f"{'invitation' if x.secret_hash else 'end of the invitation'} of node {x.node_id} by "
        f"{_user(x.user)}"
    ),
    f.NodeJoined: lambda x: f"node {x.node_id} joined from {x.address or 'an unknown address'}",
    f.NodeRevoked: lambda x: f"the servers refuse the key of node {x.node_id}: {x.reason}",
    f.NodeRemovalRequested: lambda x: f"removal of node {x.node_id} requested by {_user(x.user)}",
    f.AllocationExtended: lambda x: f"extended by {_user(x.user)} until {rfc3339(x.expires_ns)}",
    f.AllocationWarned: lambda x: f"warned that it ends at {rfc3339(x.expires_ns)}",
    f.JobAdmitted: lambda x: "admitted",
    f.JobRejected: lambda x: f"rejected: {x.reason}",
    f.UsageCharged: lambda x: (
        f"attempt {x.attempt} charged to {x.tenant}: {x.share_ms / 100_000:.2f} GPU seconds"
    ),
    **USE_WORDS,
    f.BudgetExhausted: lambda x: (
        f"tenant {x.tenant} has used up its {x.gpu_hours} GPU hours"
        + (f" of {x.month}" if x.month else "")
    ),
    f.BudgetRenewed: lambda x: f"tenant {x.tenant} has its GPU hours of {x.month}",
    f.QuotaTermBegan: lambda x: f"quota {x.instance} began a term",
    f.TermBegan: lambda x: f"scheduler {x.instance} began a term",
    f.PluginDisabled: lambda x: (
        f"plug-in disabled: {x.extends} {x.name}, version {x.version}: {x.reason}"
    ),
    f.ClusterConfigured: lambda x: (
        f"cluster {x.cluster_id} configured: lease {x.timing.lease_ms} ms"
    ),
    f.LeaseProfileSet: lambda x: (
        f"lease profile {x.profile} chosen by {_user(x.user)}: lease {x.timing.lease_ms} ms"
    ),
    f.LeaseProfileSettled: lambda x: f"all agents go by the lease profile of commit {x.seq}",
    f.LeaseExtended: lambda x: (
        f"planned stop: leases of {x.duration_ms // 1000} s"
        if x.duration_ms
        else "the long leases of the last planned stop are over"
    ),
    f.ClusterRestored: lambda x: f"restored from a backup: life {x.life} of the cluster began",
    f.RestoreSettled: lambda x: f"jobs may start again in life {x.life}",
    f.JobQueued: lambda x: "queued",
    f.JobUpdated: _updated,
    f.RequeueRequested: lambda x: f"requeue of attempt {x.attempt} requested by {_user(x.user)}",
    f.QueueSet: lambda x: (
        f"queue {x.queue} set by {_user(x.user)}: policy {x.policy}, weight {x.weight}"
    ),
    f.ReservationSet: _reservation,
    f.StateHashed: lambda x: f"hash of the state after commit {x.seq}",
    **LOCK_WORDS,
    **TENANT_WORDS,
    f.ReservationCleared: lambda x: f"reservation {x.reservation} removed by {_user(x.user)}",
    **ELEMENT_WORDS,
    f.JobPlaced: _placed,
    f.JobStopOrdered: lambda x: f"attempt {x.attempt} ordered to stop: {x.reason}",
    f.JobPreempted: _preempted,
    f.DevicesReserved: _reserved,
    f.JobCheckpointed: lambda x: (
        f"attempt {x.attempt} saved a checkpoint{', as requested' if x.asked else ''}"
    ),
    f.JobOverShare: lambda x: (
        (
            f"attempt {x.attempt} uses {x.used_bytes >> 20} MiB of GPU {x.uuid}, and its share is "
            f"{x.share_bytes >> 20} MiB"
        )
        + (f": the agent ends it after {x.grace_s} s over its share" if x.grace_s else "")
    ),
    f.JobRequeued: lambda x: (
        f"attempt {x.attempt} ended ({x.reason}), job requeued"
        + (" with a delay" if x.not_before_ns else "")
    ),
    f.JobClosed: lambda x: (
        f"{x.outcome}{': ' + x.reason if x.reason not in ('', x.outcome) else ''}"
    ),
    f.ReplicasScaled: _replicas,
    f.NodeDeclaredDead: lambda x: (
        f"node {x.node_id} declared dead by {_user(x.user)}: incarnation {x.incarnation}"
    ),
    f.NodeLost: lambda x: f"node {x.node_id} lost: {x.reason}",
    f.NodeReturned: lambda x: f"node {x.node_id} returned",
    f.NodeHeldBack: lambda x: f"node {x.node_id} held back: {x.reason}",
    f.NodeHoldEnded: lambda x: f"node {x.node_id} is not held back any more",
    f.NodeHoldCleared: lambda x: f"hold of node {x.node_id} ended by {_user(x.user)}",
    f.NodeRemoved: lambda x: f"node {x.node_id} removed",
    f.NodeRegistered: _registered,
    f.JobStarted: lambda x: (
        f"attempt {x.attempt} started on {x.node_id}{ISOLATED_BY.get(x.isolation, '')}"
        f"{', image ' + x.image if x.image else ''}"
    ),
    f.JobFinished: _finished,
    f.JobRefused: lambda x: f"{x.node_id} refused attempt {x.attempt}: {x.reason}",
    f.JobReleased: _released,
    f.ReplicaReady: lambda x: f"replica ready on {x.node_id}",
    f.ReplicaUnready: lambda x: f"replica not ready on {x.node_id}: {x.reason}",
    f.GpuFaulted: _faulted,
    f.GpuErrorSeen: lambda x: (
        f"GPU {x.uuid} on {x.node_id}: {x.error} ({x.source}), verdict "
        f"{x.verdict}{', shadow' if x.shadow else ''}"
    ),
    f.GpuServiceSet: lambda x: f"GPU {x.uuid} {x.service}, by {_user(x.user)}",
    f.GpuControlRequested: lambda x: f"GPU {x.uuid} {_setting(x)}, by {_user(x.user)}",
    f.GpuControlled: lambda x: (
        f"GPU {x.uuid} on {x.node_id} {_setting(x)}: {x.outcome}"
        + (f" ({x.detail})" if x.detail else "")
    ),
    f.GpuRecovered: lambda x: f"GPU {x.uuid} on {x.node_id} recovered",
    **FABRIC_WORDS,
}
