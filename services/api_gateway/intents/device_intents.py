"""Requests of operators to set devices online, draining or offline. Pure.

Jobs on a device keep running, whatever its service state. Only `force` ends them: a job waits for
its next attempt, a replica is replaced, an allocation is released. Tests:
tests/unit/test_gateway_device_intents.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.errors import Refused
from libs.common.facts import CancelRequested, GpuServiceSet, RequeueRequested
from libs.common.life import gpu_life, job_life
from libs.common.model import job_of
from libs.common.state.cluster import Cluster, GpuView, Job
from services.api_gateway.intents import job_intents, order_intents
from services.api_gateway.intents.fields import check_one_of
from services.api_gateway.problems import Problem

SERVICE_FIELDS: Final = ("service", "force", "user")
NAMED_MAX: Final = 8

ServiceFact = GpuServiceSet | RequeueRequested | CancelRequested


def service(body: object, views: Sequence[GpuView], cluster: Cluster) -> list[ServiceFact]:
    """Return the facts for `PUT .../service`; none for devices that are in this state already.

    Raises Refused, and Problem 409 for devices that shall go offline while jobs hold them.
    """
    values = job_intents.body_fields(body, SERVICE_FIELDS)
    state = values.get("service", "")
    force = values.get("force", False)
    user = job_intents.take_user(values)
    check_one_of("service", str(state), gpu_life.SERVICES)
    if not isinstance(force, bool) or (force and state != gpu_life.OFFLINE):
        raise Refused(
            f"force: {force!r} with service {state!r} is not valid: true is accepted only with "
            "service offline, where it ends the jobs on the device"
        )
    changed: list[ServiceFact] = [
        GpuServiceSet(uuid=view.gpu.uuid, service=state, user=user)
        for view in views
        if view.service != state
    ]
    if state != gpu_life.OFFLINE:
        return changed
    holders = list(dict.fromkeys(job_of(key) for view in views for key in view.holds))
    if holders and not force:
        named = ", ".join(holders[:NAMED_MAX]) + (" ..." if len(holders) > NAMED_MAX else "")
        text = (
            f"the device cannot go offline: {named} still holds a part of it: set it draining and "
            "wait, or add force, which ends these jobs"
        )
        raise Problem(409, text, jobs=holders)
    jobs = [cluster.jobs[job_id] for job_id in holders if job_id in cluster.jobs]
    return changed + [
        fact
        for job in jobs
        if job.state in (job_life.PLACED, job_life.RUNNING)
        for fact in _ending(job, user)
    ]


def _ending(job: Job, user: str) -> list[ServiceFact]:
    """Return the fact that ends the job's attempt.

    A job that may run again is requeued. Replicas, allocations and jobs without `requeue` are
    cancelled.
    """
    if job.spec.serve is not None or job.spec.allocation is not None or not job.spec.requeue:
        return [CancelRequested(job_id=job.job_id, grace_s=job.spec.grace_s, user=user)]
    fact = order_intents.requeue(job, user)
    return [fact] if fact is not None else []
