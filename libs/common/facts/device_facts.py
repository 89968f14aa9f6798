"""Facts about a device's health, service and controls. Pure; part of `facts/__init__.py`.

A device has one health at a time. Only its node's agent records it: the worst of several causes
(`services/node_agent/health/`). The service is what operators decided; gateways record it. Health
and service do not change each other. Gateways also record which control an operator requested, and
the agent records the outcome.
"""

from libs.common.facts.fact import Fact
from libs.common.model import AttemptRef, GpuId, JobId, NodeId


class GpuFaulted(Fact, frozen=True, tag="gpu.faulted"):
    """A device is not healthy.

    `health` is degraded, resetting or offline. `reason` is a stable word (quarantined, xid, thermal
    and others). The newest fact about a device counts.

    `verdict` (`error_catalogue.VERDICTS`) names the repair, `source` the reporter of the fault
    (driver, kernel_log, release and others); empty if unknown. `alone`: the device serves only jobs
    with one GPU of the node, because its fabric is not up.
    """

    node_id: NodeId
    uuid: GpuId
    health: str
    reason: str
    detail: str = ""
    verdict: str = ""
    source: str = ""
    alone: bool = False


class GpuRecovered(Fact, frozen=True, tag="gpu.recovered"):
    """A device is healthy again.

    `checks` names the checks that it passed. Empty if the cause of the fault ended by itself.
    """

    node_id: NodeId
    uuid: GpuId
    checks: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)


class GpuErrorSeen(Fact, frozen=True, tag="gpu.error_seen"):
    """A driver or the kernel reported an error of a device.

    The agent records one fact even if several sources report the error, or one reports it often.

    `error` is a stable name ("xid 31", "ecc", "lost"). `jobs` are the attempts that held the device
    at that time. GpuFaulted records the consequence for the device, JobFinished for a job. With
    `shadow` there is none: the agent only records what it would do.
    """

    node_id: NodeId
    uuid: GpuId
    error: str
    verdict: str
    source: str
    jobs: tuple[AttemptRef, ...] = ()
    shadow: bool = False
    detail: str = ""


class JobOverShare(Fact, frozen=True, tag="job.over_share"):
    """A job uses more memory of a device than its fraction of the device.

    The agent ends the job after `grace_s` seconds of it; 0: never.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    uuid: GpuId
    used_bytes: int
    share_bytes: int
    grace_s: int


class GpuServiceSet(Fact, frozen=True, tag="gpu.service_set"):
    """An operator set the service of a device: online, draining or offline.

    On a draining device running jobs go on, and no new work is placed. The newest fact counts,
    whatever the device's health.
    """

    uuid: GpuId
    service: str
    user: str = ""


class GpuControlRequested(Fact, frozen=True, tag="gpu.control_requested"):
    """An operator requested a setting of a device.

    `control` is one of `device_controls.ROWS`, `value` is in the format of its row; empty restores
    the default. The newest request for a control counts. Its id is the sequence of its commit
    (`request` in GpuControlled).
    """

    uuid: GpuId
    control: str
    value: str = ""
    user: str = ""


class GpuControlled(Fact, frozen=True, tag="gpu.controlled"):
    """The agent carried out a control of a device, or could not.

    `outcome` is done, lacking, denied or failed (`device_controls.py`). `detail` is the cause, or
    the step that is still missing. `request` 0: the agent acted without a request.
    """

    node_id: NodeId
    uuid: GpuId
    control: str
    value: str
    request: int
    outcome: str
    detail: str = ""
