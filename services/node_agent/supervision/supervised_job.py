"""The jobs that the agent watches: their supervisors' process descriptors and directories."""

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import NamedTuple

from services.node_agent.supervisor import records
from services.node_agent.supervisor.records import ExitRecord

Key = tuple[str, int]


class Known(NamedTuple):
    """An attempt that `SupervisorClient.start` found on disk."""

    job_id: str
    attempt: int
    living: bool
    exit: ExitRecord | None


@dataclass
class SupervisedJob:
    """A job with its supervisor.

    `order` is kept until the supervisor has read it. `orders` counts how often it was sent.
    `tenant` is the one that the marker's note names; empty if it names none.
    """

    key: Key
    job_dir: str
    rank: int
    ignore_lease: bool = False
    tenant: str = ""
    order: bytes = b""
    orders: int = 0
    supervisor_pid: int = 0
    pidfd: int = -1
    started: bool = False
    exited: bool = False


def kill_supervisor(job: SupervisedJob) -> None:
    """Kill the supervisor of a job that has not ended; the job dies with it."""
    if not job.exited and job.pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(job.pidfd, signal.SIGKILL)


def jobs_on_disk(state_dir: str) -> list[SupervisedJob]:
    """Return the jobs whose directory has a marker.

    A directory without one belongs to an attempt that never started or was forgotten.
    """
    jobs = []
    for name in sorted(os.listdir(f"{state_dir}/jobs")):
        job_id, _, attempt = name.rpartition(".")
        job_dir = f"{state_dir}/jobs/{name}"
        if job_id and attempt.isdigit() and os.path.exists(f"{job_dir}/{records.MARKER}"):
            jobs.append(
                SupervisedJob(
                    (job_id, int(attempt)),
                    job_dir,
                    rank=records.read_rank(job_dir),
                    ignore_lease=records.read_ignore_lease(job_dir),
                    tenant=records.read_tenant(job_dir),
                )
            )
    return jobs
