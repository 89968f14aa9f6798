"""Whether a device or a job is the bad one, by who had errors where. Pure.

The same device under different jobs that had none elsewhere: the device. The same job on different devices: the job. Only what the log
still keeps of each counts (`device.ERRORS_KEPT`).
"""

from typing import Final

from libs.common.cluster import Cluster, Job
from libs.common.device import GpuView
from libs.common.error_catalogue import IGNORE
from libs.common.model import JobId

# So many jobs with errors here and nowhere else.
JOBS_OF_A_BAD_DEVICE: Final = 3
DEVICES_OF_A_BAD_JOB: Final = 2


def is_suspect(job: Job) -> bool:
    return len(dict.fromkeys(uuid for uuid, _ in job.gpu_errors)) >= DEVICES_OF_A_BAD_JOB


def of_job(job: Job) -> str:
    """Empty where nothing speaks against it."""
    count = len(dict.fromkeys(uuid for uuid, _ in job.gpu_errors))
    return f"it had errors on {count} different GPUs: the job is suspect rather than they" if is_suspect(job) else ""


def of_device(cluster: Cluster, view: GpuView) -> str:
    """Empty where nothing speaks against it."""
    jobs: dict[JobId, None] = {ref.job_id: None for error in view.errors if error.verdict != IGNORE for ref in error.jobs}
    only_here = [job_id for job_id in jobs if job_id not in cluster.jobs or not is_suspect(cluster.jobs[job_id])]
    if len(only_here) < JOBS_OF_A_BAD_DEVICE:
        return ""
    return f"{len(only_here)} different jobs had errors here and nowhere else: the GPU is suspect rather than they"
