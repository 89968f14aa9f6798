"""What a model is doing, in one word and a sentence: derived from the fold, never stored.

Pure. The gateway shows it, the scheduler's `why` explains it.
"""

from typing import Final

from libs.common import job_life
from libs.common.cluster import Cluster, Job, Model, is_draining, is_ready
from libs.common.model import JobSpec, ModelSpec, Serve

READY: Final = "ready"
STARTING: Final = "starting"
WAITING: Final = "waiting"
REDEPLOYING: Final = "redeploying"
CRASH_LOOPING: Final = "crash_looping"
STOPPING: Final = "stopping"
DRAINING: Final = "draining"
UNDEPLOYED: Final = "undeployed"
# What a model asks for its replicas in a job's own words.
ASKED: Final = tuple(name for name in ModelSpec.__struct_fields__ if name in JobSpec.__struct_fields__)


def replica_spec(spec: ModelSpec, name: str, generation: int) -> JobSpec:
    """A job that is not tried again when it fails: its model makes another."""
    serve = Serve(name, generation, spec.health_path, spec.startup_timeout_s, spec.spread)
    return JobSpec(**{field: getattr(spec, field) for field in ASKED}, name=name, requeue=False, serve=serve)


def replicas(cluster: Cluster, model: Model) -> list[Job]:
    """Those that have not ended, oldest first."""
    return [cluster.jobs[job_id] for job_id in model.jobs]


def ready_count(cluster: Cluster, model: Model) -> int:
    return sum(1 for job in replicas(cluster, model) if is_ready(job))


def state_of(cluster: Cluster, model: Model) -> str:
    """ready, starting, waiting (for devices), redeploying, crash_looping, stopping or undeployed."""
    jobs = replicas(cluster, model)
    if not model.deployed:
        return STOPPING if jobs else UNDEPLOYED
    wanted = [job for job in jobs if job.cancel is None]
    new = [job for job in wanted if model.jobs[job.job_id] == model.generation]
    if len(new) == len(wanted) and sum(1 for job in new if is_ready(job)) >= model.replicas:
        return READY
    if model.crashes > 1:
        return CRASH_LOOPING
    if len(new) < len(wanted):
        return REDEPLOYING
    return WAITING if any(job.state == job_life.QUEUED for job in new) else STARTING


def replica_state(job: Job) -> str:
    """ready, starting (it runs and does not answer yet), draining (it finishes its answers and gets no new requests), or stopping; else the
    job's own state.
    """
    if is_ready(job):
        return READY
    if job.cancel is not None and job.state not in job_life.ENDED:
        return DRAINING if is_draining(job, 0) else STOPPING
    return STARTING if job.state in (job_life.PLACED, job_life.RUNNING) else job.state
