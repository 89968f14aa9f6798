"""The rule `scale`: every model has as many replicas as it asked for, of its present generation.

Pure. One decision ends surplus replicas or begins one replica. A dead replica is replaced at once.
A replica on a quiet node counts as dead for that, once. Repeated crashes are replaced after growing
waits. A redeployment begins one new replica above the requested number, and ends an old one only
when enough are ready without it. A replica that was ready and is too busy for its health probe
counts as able to answer: the last such one is not ended for a redeployment. Replicas on a node that
is to be removed are replaced like those of an earlier generation. Tests:
tests/unit/test_scheduler_models.py, tests/unit/test_scheduler_model_owners.py,
tests/unit/test_scheduler_model_moves.py.
"""

from collections.abc import Collection, Sequence
from typing import Final

from libs.common import reasons
from libs.common.facts import ModelAutoscaled, ReplicasScaled
from libs.common.folds.model_fold import ordinal_of, replica_id
from libs.common.life import kept_life
from libs.common.model import JobId, NodeId
from libs.common.model_spec import Replica
from libs.common.state.cluster import Cluster, Job, Model, is_leaving, is_ready
from libs.common.state.kept import kept_key
from libs.common.state.model_crashes import backoff_until_ns
from libs.common.state.model_view import may_answer, replica_spec
from libs.common.state.ordering import SECOND_NS
from services.scheduler.models.recovery import recovers_ns, recovery
from services.scheduler.state.state import State

# Replicas that a redeployment may have above the requested number.
SURGE: Final = 1


def autoscale(state: State, wanted: Sequence[ModelAutoscaled]) -> Sequence[ModelAutoscaled]:
    """Record the next change of a model's number by the autoscaling law, if it still applies."""
    for fact in wanted:
        model = state.cluster.models.get(fact.name)
        if (
            model is not None
            and model.deployed
            and model.generation == fact.generation
            and model.wanted != fact.replicas
        ):
            return (fact,)
    return ()


def scale(state: State, now_ns: int, quiet: Collection[NodeId]) -> Sequence[ReplicasScaled]:
    """Return the next change of any model's replicas.

    `quiet` are the nodes that missed some heartbeats.
    """
    state.restless.wake(state.cluster.models, now_ns, tuple(quiet))
    for name in sorted(state.restless.models):
        model = state.cluster.models.get(name)
        if model is None:
            # An undeployed model may have left the state.
            state.restless.steady.pop(name, None)
            state.restless.rest(name, 0, now_ns)
            continue
        decided = recovery(state, model, now_ns) or scaling(state.cluster, model, now_ns, quiet)
        if decided is not None:
            return (decided,)
        waits_ns = backoff_until_ns(model), recovers_ns(state, model)
        until_ns = min((each for each in waits_ns if each > now_ns), default=0)
        state.restless.rest(name, until_ns, now_ns)
    return ()


def scaling(
    cluster: Cluster, model: Model, now_ns: int, quiet: Collection[NodeId]
) -> ReplicasScaled | None:
    """Return the change that this model needs now; None if there is none, or not yet."""
    present = [job for job in (cluster.jobs[job_id] for job_id in model.jobs) if job.cancel is None]
    if not model.deployed:
        return (
            _retirement(model, [job.job_id for job in present], reasons.UNDEPLOYED, now_ns)
            if present
            else None
        )
    if foreign := [job.job_id for job in present if job.tenant != model.tenant]:
        # The name changed its owner: another tenant's process must not serve this one's requests.
        return _retirement(model, foreign, reasons.UNDEPLOYED, now_ns)
    heard = [job for job in present if not any(node_id in quiet for node_id in job.members)]
    if outdated := _outdated(cluster, model, present, heard):
        is_redeployed = any(model.jobs[job_id] < model.generation for job_id in outdated)
        reason = reasons.REDEPLOYED if is_redeployed else reasons.NODE_REMOVED
        return _retirement(model, outdated, reason, now_ns)
    new = [job for job in heard if not _is_old(cluster, model, job)]
    if excess := _excess(model, new):
        return _retirement(model, excess, reasons.TOO_MANY, now_ns)
    missing = min(
        model.wanted - len(new),
        model.wanted + SURGE - len(heard),
        2 * model.wanted + SURGE - len(present),
    )
    return _addition(cluster, model) if missing > 0 and now_ns >= backoff_until_ns(model) else None


def _outdated(cluster: Cluster, model: Model, present: list[Job], heard: list[Job]) -> list[JobId]:
    """Return the old replicas to end: all that cannot answer, and as many of the others as can be
    spared.

    A replica that is too busy for its health probe may answer: it ends only when as many as asked
    for may answer without it, and a ready one only when as many are ready without it.
    """
    old = {job.job_id for job in present if _is_old(cluster, model, job)}
    if idle := [job.job_id for job in present if job.job_id in old and not may_answer(job)]:
        return idle
    able = [job for job in heard if may_answer(job)]
    ready = [job for job in able if is_ready(job)]
    unready_old = [job.job_id for job in able if job.job_id in old and not is_ready(job)][
        : max(0, len(able) - model.wanted)
    ]
    return (
        unready_old
        + [job.job_id for job in ready if job.job_id in old][: max(0, len(ready) - model.wanted)]
    )


def _is_old(cluster: Cluster, model: Model, job: Job) -> bool:
    """Return whether the replica is of an earlier generation, or on a node that is to be
    removed.
    """
    return model.jobs[job.job_id] < model.generation or any(
        is_leaving(cluster, node_id) for node_id in job.members
    )


def _excess(model: Model, new: list[Job]) -> list[JobId]:
    """Return the surplus replicas: queued ones first, then those that were never ready, then those
    that are not ready now, the newest first.
    """
    by_worth = sorted(
        new,
        key=lambda job: (
            is_ready(job),
            may_answer(job),
            bool(job.members),
            -ordinal_of(model.name, job.job_id),
        ),
    )
    return [job.job_id for job in by_worth[: max(0, len(new) - model.wanted)]]


def _retirement(model: Model, retire: list[JobId], reason: str, now_ns: int) -> ReplicasScaled:
    """Return the fact that retires these replicas with the model's present grace, also those of
    earlier generations.
    """
    grace_s = model.spec.grace_s
    return ReplicasScaled(
        model=model.name,
        generation=model.generation,
        retire=tuple(retire),
        reason=reason,
        tenant=model.tenant,
        user=model.user,
        grace_s=grace_s,
        drain_until_ns=now_ns + grace_s * SECOND_NS if grace_s else 0,
    )


def _addition(cluster: Cluster, model: Model) -> ReplicasScaled:
    """Return the fact that adds one replica; one at a time, so that a fact holds the command and
    its environment once. What nodes keep is for replicas on one node.
    """
    standby, device_weights = (
        (kept := cluster.kept.get(kept_key(model.name, tier))) is not None
        and kept.tenant == model.tenant
        and model.spec.nodes == 1
        for tier in (kept_life.STANDBY, kept_life.GPU)
    )
    return ReplicasScaled(
        model=model.name,
        generation=model.generation,
        add=(
            Replica(
                replica_id(model.name, model.free_ordinal),
                replica_spec(
                    model.spec,
                    model.name,
                    model.generation,
                    standby=standby,
                    device_weights=device_weights,
                ),
            ),
        ),
        reason=reasons.CRASHED if model.crashes else reasons.WANTED,
        tenant=model.tenant,
        user=model.user,
    )
