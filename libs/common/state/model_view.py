"""The state of a model and of its replicas in words, derived from the cluster's state.

Pure. The gateway shows it, and the scheduler's `why` explains it.
"""

from collections import Counter
from typing import Final

from libs.common.life import job_life
from libs.common.model import JobSpec, Serve
from libs.common.model_spec import ModelSpec
from libs.common.placeholders import HOST, KEY, any_has
from libs.common.reasons import REFUSED
from libs.common.state.cluster import (
    Cluster,
    Endpoint,
    Job,
    Model,
    endpoint_of,
    is_draining,
    is_ready,
    own_replicas,
    ready_replicas,
)

READY: Final = "ready"
STARTING: Final = "starting"
WAITING: Final = "waiting"
REDEPLOYING: Final = "redeploying"
CRASH_LOOPING: Final = "crash_looping"
STOPPING: Final = "stopping"
DRAINING: Final = "draining"
UNREADY: Final = "unready"
UNDEPLOYED: Final = "undeployed"
# Fields of ModelSpec that each replica's JobSpec takes over.
SHARED_FIELDS: Final = tuple(
    name for name in ModelSpec.__struct_fields__ if name in JobSpec.__struct_fields__
)


def replica_spec(
    spec: ModelSpec,
    name: str,
    generation: int,
    standby: bool = False,
    device_weights: bool = False,
) -> JobSpec:
    """Return the JobSpec of a replica.

    It is requeued only if its node refuses it, or its machine ends it before it was ready for a
    minute. After any other end its model creates another replica.
    """
    serve = Serve(
        model=name,
        generation=generation,
        health_path=spec.health_path,
        startup_timeout_s=spec.startup_timeout_s,
        spread=spec.spread,
        health_interval_s=spec.health_interval_s,
        health_timeout_s=spec.health_timeout_s,
        health_failures=spec.health_failures,
        standby=standby,
        device_weights=device_weights,
        served_name=spec.served_name,
        keyed=any_has(spec.env.values(), KEY),
        hosted=any_has(spec.command, HOST),
    )
    return JobSpec(
        **{field: getattr(spec, field) for field in SHARED_FIELDS},
        name=name,
        requeue=False,
        serve=serve,
    )


def replicas(cluster: Cluster, model: Model) -> list[Job]:
    """Return the model's replicas that have not ended, the oldest first."""
    return [cluster.jobs[job_id] for job_id in model.jobs]


def ready_count(cluster: Cluster, model: Model) -> int:
    return sum(1 for job in own_replicas(cluster, model) if is_ready(job))


def may_answer(job: Job) -> bool:
    """Return whether a replica can answer requests.

    It runs, was ready in this attempt, and no stop is ordered or requested. It may be too busy for
    its health probe.
    """
    member = next(iter(job.members.values()), None)
    runs = member is not None and member.state == job_life.STARTED and member.ready_ns > 0
    return runs and job.cancel is None and not job.stop_reason


def routable(cluster: Cluster, name: str) -> list[Endpoint]:
    """Return the replicas that get the model's requests, the oldest first.

    These are the ready ones or, if none is ready, those that may answer.
    """
    if ready := ready_replicas(cluster, name):
        return ready
    model = cluster.models.get(name)
    jobs = own_replicas(cluster, model) if model is not None else []
    return [endpoint_of(cluster, job) for job in jobs if may_answer(job)]


def counts(cluster: Cluster, model: Model, now_ns: int) -> str:
    """Describe how many replicas run without being ready, and how many wait for devices or before
    their next attempt.

    Empty if there are none. `now_ns` is the wall clock.
    """
    jobs = [job for job in replicas(cluster, model) if job.cancel is None and not is_ready(job)]
    unready = sum(1 for job in jobs if may_answer(job))
    starting = sum(1 for job in jobs if job.state in (job_life.PLACED, job_life.RUNNING)) - unready
    queued = [job for job in jobs if job.state == job_life.QUEUED]
    later = Counter(job.reason for job in queued if job.refusals.waits(now_ns))
    for_devices = len(queued) - later.total()
    words = [
        f"{unready} of {model.wanted} replicas run but do not answer their health probe"
        if unready
        else "",
        f"{starting} of {model.wanted} are starting" if starting else "",
        f"{_wait(for_devices)} for devices" if for_devices else "",
        *(
            f"{_wait(number)} after {'a refusal' if reason == REFUSED else reason}"
            for reason, number in sorted(later.items())
        ),
    ]
    return ", ".join(word for word in words if word)


def _wait(number: int) -> str:
    return f"{number} {'waits' if number == 1 else 'wait'}"


def state_of(cluster: Cluster, model: Model) -> str:
    """Return the state of a model.

    ready, starting, waiting (for devices), unready (replicas run but stopped answering their health
    probe), redeploying, crash_looping, stopping or undeployed.
    """
    jobs = replicas(cluster, model)
    if not model.deployed:
        return STOPPING if jobs else UNDEPLOYED
    wanted = [job for job in jobs if job.cancel is None]
    new = [job for job in wanted if model.jobs[job.job_id] == model.generation]
    if len(new) == len(wanted) and sum(1 for job in new if is_ready(job)) >= model.wanted:
        return READY
    if model.crashes > 1:
        return CRASH_LOOPING
    if len(new) < len(wanted):
        return REDEPLOYING
    if any(may_answer(job) and not is_ready(job) for job in new):
        return UNREADY
    return WAITING if any(job.state == job_life.QUEUED for job in new) else STARTING


def replica_state(job: Job) -> str:
    """Return the state of a replica.

    ready, starting (it runs and does not answer yet), unready (it stopped answering its health
    probe), draining (it finishes its answers and gets no new requests), stopping, or the state of
    its job.
    """
    if is_ready(job):
        return READY
    if job.cancel is not None and job.state not in job_life.ENDED:
        return DRAINING if is_draining(job, 0) else STOPPING
    if may_answer(job):
        return UNREADY
    return STARTING if job.state in (job_life.PLACED, job_life.RUNNING) else job.state
