"""What operators say of devices: online, draining or offline, as facts. Pure.

Whatever is said, what runs on a device goes on by itself. Only `force` ends it: a job waits for its
next attempt, a replica is replaced, an allocation is given back. Held by
tests/unit/test_gateway_device_intents.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.errors import Refused
from libs.common.facts import CancelRequested, GpuServiceSet, RequeueRequested
from libs.common.life import gpu_life, job_life
from libs.common.model import job_of
from libs.common.state.cluster import Cluster, GpuView, Job
from services.api_gateway.intents import job_intents as intents
from services.api_gateway.intents import order_intents
from services.api_gateway.intents.fields import check_one_of
from services.api_gateway.problems import Problem

SERVICE_FIELDS: Final = ("service", "force", "user")
NAMED_MAX: Final = 8

ServiceFact = GpuServiceSet | RequeueRequested | CancelRequested


def service(body: object, views: Sequence[GpuView], cluster: Cluster) -> list[ServiceFact]:
    """The facts for `PUT .../service` of these devices; none where it is so already.

    Raises Refused, and Problem 409 for devices that are to go offline while somebody has them.
    """
    values = intents.fields_of(body, SERVICE_FIELDS)
    wish, force, user = (
        values.get("service", ""),
        values.get("force", False),
        intents.user_of(values),
    )
    check_one_of("service", str(wish), gpu_life.SERVICES)
    if not isinstance(force, bool) or (force and wish != gpu_life.OFFLINE):
        raise Refused(
            "force: true ends what runs on a device that goes offline: leave it out elsewhere"
        )
    changed: list[ServiceFact] = [
        GpuServiceSet(uuid=view.gpu.uuid, service=wish, user=user)
        for view in views
        if view.service != wish
    ]
    if wish != gpu_life.OFFLINE:
        return changed
    holders = list(dict.fromkeys(job_of(key) for view in views for key in view.holds))
    if holders and not force:
        named = ", ".join(holders[:NAMED_MAX]) + (" ..." if len(holders) > NAMED_MAX else "")
        raise Problem(
            409,
            (
                f"{named} still has a part of it: say draining and wait, or force, which ends "
                "what runs there"
            ),
            jobs=holders,
        )
    jobs = [cluster.jobs[job_id] for job_id in holders if job_id in cluster.jobs]
    return changed + [
        fact
        for job in jobs
        if job.state in (job_life.PLACED, job_life.RUNNING)
        for fact in _ended(job, user)
    ]


def _ended(job: Job, user: str) -> list[ServiceFact]:
    """What runs again elsewhere does; a replica is replaced, an allocation is over, and so is a job
    that must not run twice.
    """
    if job.spec.serve is not None or job.spec.allocation is not None or not job.spec.requeue:
        return [CancelRequested(job_id=job.job_id, grace_s=job.spec.grace_s, user=user)]
    fact = order_intents.requeue(job, user)
    return [fact] if fact is not None else []
