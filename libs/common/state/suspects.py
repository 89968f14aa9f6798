"""Finds suspect devices, jobs and nodes from the errors that each of them had. Pure.

A device is suspect if different jobs had errors on it and nowhere else. A job is suspect if it had
errors on different devices. Errors that take a device away (Xid 79: it fell off its bus) are never
caused by a job; if several devices of a node had those, the node is suspect, its power or its bus.
Errors of an NVSwitch (SXid) count against no device and no job. Only the errors in the state count
(`device.ERRORS_KEPT`). Tests: tests/unit/test_suspects.py.
"""

from typing import Final

from libs.common.devices.error_catalogue import IGNORE, REBOOT_NODE, REPLACE, is_of_fabric
from libs.common.model import GpuId, JobId
from libs.common.state.cluster import Cluster, Job, Node, node_gpus
from libs.common.state.device import GpuError, GpuView

# Number of jobs with errors on this device and nowhere else.
JOBS_OF_A_BAD_DEVICE: Final = 3
DEVICES_OF_A_BAD_JOB: Final = 2
DEVICES_OF_A_BAD_NODE: Final = 3
# Verdicts of errors that no job can cause: it cannot make a device need a reboot or a replacement.
TAKES_THE_DEVICE: Final = (REBOOT_NODE, REPLACE)


def is_suspect(cluster: Cluster, job: Job) -> bool:
    return len(_blamed_devices(cluster, job)) >= DEVICES_OF_A_BAD_JOB


def of_job(cluster: Cluster, job: Job) -> str:
    """Return why the job is suspect; empty if it is not."""
    count = len(_blamed_devices(cluster, job))
    return (
        f"it had errors on {count} different GPUs: suspect the job, not the GPUs"
        if count >= DEVICES_OF_A_BAD_JOB
        else ""
    )


def _blamed_devices(cluster: Cluster, job: Job) -> list[GpuId]:
    """Return the devices on which the job had an error that a job may cause."""
    return [
        uuid
        for uuid in dict.fromkeys(uuid for uuid, _ in job.gpu_errors)
        if _may_have_caused(cluster, job, uuid)
    ]


def _may_have_caused(cluster: Cluster, job: Job, uuid: GpuId) -> bool:
    errors = cluster.gpus[uuid].errors if uuid in cluster.gpus else []
    may = [error for error in errors if _is_own_error(error) and not _disables_device(error)]
    return any(any(ref.job_id == job.job_id for ref in error.jobs) for error in may)


def of_node(cluster: Cluster, node: Node) -> str:
    """Return why the node is suspect; empty if it is not."""
    taken = [
        view
        for view in node_gpus(cluster, node)
        if any(_disables_device(error) for error in view.errors)
    ]
    if len(taken) < DEVICES_OF_A_BAD_NODE:
        return ""
    return (
        f"{len(taken)} of its GPUs had errors that take a device: suspect the node's power or "
        "bus, not the GPUs or their jobs"
    )


def _disables_device(error: GpuError) -> bool:
    return error.verdict in TAKES_THE_DEVICE and _is_own_error(error)


def _is_own_error(error: GpuError) -> bool:
    return error.verdict != IGNORE and not is_of_fabric(error.error)


def of_device(cluster: Cluster, view: GpuView) -> str:
    """Return why the device is suspect; empty if it is not."""
    jobs: dict[JobId, None] = {
        ref.job_id: None for error in view.errors if _is_own_error(error) for ref in error.jobs
    }
    only_here = [
        job_id
        for job_id in jobs
        if job_id not in cluster.jobs or not is_suspect(cluster, cluster.jobs[job_id])
    ]
    if len(only_here) < JOBS_OF_A_BAD_DEVICE:
        return ""
    return (
        f"{len(only_here)} different jobs had errors here and nowhere else: suspect the GPU, not "
        "the jobs"
    )
