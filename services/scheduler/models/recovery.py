"""Records that a model recovered from crashes, so that its next replica begins with none counted.

Pure. A replica that began after the last crash must be ready for STEADY_NS. Replicas that existed
at the last crash prove nothing: they may serve beside one that crashes again and again. The
scheduler measures from when it first saw the replica ready, because a node's clock may be a minute
behind its own. It records the recovery, so that every fold gets the same count. Tests:
tests/unit/test_scheduler_recovery.py.
"""

from libs.common import reasons
from libs.common.facts import ReplicasScaled
from libs.common.folds.model_fold import STEADY_NS, ordinal_of
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Model, is_ready
from services.scheduler.state.state import State


def recovery(state: State, model: Model, now_ns: int) -> ReplicasScaled | None:
    """Return the fact that the model recovered; None if it has no crashes, or not yet."""
    seen = state.restless.steady.pop(model.name, {})
    if newer := _newer(state.cluster, model):
        state.restless.steady[model.name] = {each: seen.get(each, now_ns) for each in newer}
    if not 0 < recovers_ns(state, model) <= now_ns:
        return None
    return ReplicasScaled(
        model=model.name,
        generation=model.generation,
        reason=reasons.RECOVERED,
        tenant=model.tenant,
        user=model.user,
        recovered=True,
    )


def recovers_ns(state: State, model: Model) -> int:
    """Return when the first replica that began after the last crash has been ready long enough; 0
    if the model has no crashes, or no such replica.
    """
    seen = state.restless.steady.get(model.name)
    return min(seen.values()) + STEADY_NS if seen else 0


def _newer(cluster: Cluster, model: Model) -> list[JobId]:
    """Return the ready replicas that began after the last crash; none if there was no crash."""
    if not model.crashes:
        return []
    return [
        job_id
        for job_id, generation in model.jobs.items()
        if generation == model.generation and ordinal_of(model.name, job_id) >= model.wave
        if is_ready(cluster.jobs[job_id])
    ]
