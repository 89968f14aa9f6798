"""The rule for jobs whose devices are all idle: warn the user, then end the job.

Pure. A tenant's policy says whether and when (IdlePolicySet); without one nothing happens. Agents
record when a job's devices are idle and when one computes again (JobIdleSeen). Replicas are not
concerned: autoscaling ends those without requests. Tests: tests/unit/test_idle_jobs.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common import reasons
from libs.common.facts import AnyFact, JobIdleWarned
from libs.common.life import job_life
from libs.common.state.cluster import Job, Tenant
from libs.common.state.job import IdleWarning, ended_members, idle_since_ns
from libs.common.state.ordering import SECOND_NS
from services.scheduler.decide.stops import stop_order
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
CHECKPOINT: Final = "checkpoint"
RELEASE: Final = "release"
OFF: Final = "off"
SIGTERM: Final = 15
# A job that is released has this time between TERM and KILL.
RELEASE_GRACE_S: Final = 10
# The scheduler checks idle jobs once in this time, because a decision is made for every fact.
LOOK_EVERY_NS: Final = SECOND_NS


def end_idle(state: State, wall_ns: int) -> Sequence[AnyFact]:
    """Warn of a job whose devices are idle for too long, or end one that was warned."""
    if not state.cluster.idle or wall_ns < state.idle_look_ns:
        return NONE
    for job_id in state.cluster.idle:
        job = state.cluster.jobs[job_id]
        tenant = state.cluster.tenants[job.tenant]
        if tenant.idle_action != OFF and (fact := _due(job, tenant, wall_ns)) is not None:
            return (fact,)
    state.idle_look_ns = wall_ns + LOOK_EVERY_NS
    return NONE


def _due(job: Job, tenant: Tenant, wall_ns: int) -> AnyFact | None:
    """Return the warning or the stop that is due for one job."""
    since_ns = idle_since_ns(job)
    if not since_ns or job.state != job_life.RUNNING or job.stop_reason or job.spec.serve:
        return None
    warning = job.idle
    if warning is None or not _counts(warning, tenant):
        if wall_ns < since_ns + tenant.idle_s * SECOND_NS:
            return None
        ends = tenant.idle_action in (CHECKPOINT, RELEASE)
        return JobIdleWarned(
            job_id=job.job_id,
            attempt=job.attempt,
            idle_s=max(0, wall_ns - since_ns) // SECOND_NS,
            action=tenant.idle_action,
            since_ns=since_ns,
            ends_ns=wall_ns + tenant.idle_grace_s * SECOND_NS if ends else 0,
            policy_ns=tenant.idle_set_ns,
            ended=ended_members(job),
        )
    if not 0 < warning.ends_ns <= wall_ns:
        return None
    if warning.action == RELEASE:
        return stop_order(job, reasons.IDLE_GPUS, SIGTERM, RELEASE_GRACE_S)
    spec, saves = job.spec, job.spec.checkpoint_grace_s > 0
    signal = spec.checkpoint_signal if saves else SIGTERM
    return stop_order(job, reasons.IDLE_GPUS, signal, spec.checkpoint_grace_s + spec.grace_s)


def _counts(warning: IdleWarning, tenant: Tenant) -> bool:
    """Return whether the warning was given under the tenant's present policy.

    The warning names its policy. The times of the two are of different machines' clocks, so their
    order says nothing.
    """
    return warning.action == tenant.idle_action and warning.policy_ns == tenant.idle_set_ns
