"""Facts about a device's health and service. Pure; part of the union in `facts.py`.

A device has one health at a time, and its node's agent alone says which: of several causes the
worst (`services/node_agent/health/`). Whether operators let work onto it is another thing, and the
gateways' to say: neither undoes the other. What operators want a device to be told is the gateways'
to say too, and the agent's what became of it.
"""

from libs.common.facts.fact import Fact
from libs.common.model import AttemptRef, GpuId, JobId, NodeId


class GpuFaulted(Fact, frozen=True, tag="gpu.faulted"):
    """`health` is degraded, resetting or offline; `reason` a stable word (quarantined, xid, thermal
    ...).

    Said again, the last counts.

    `verdict` (`error_catalogue.VERDICTS`) is what it takes to bring the device back, `source` the
    reporter of the fault (driver, kernel_log, release ...); empty if unknown. `alone`: the device
    serves only jobs with one GPU of the node, because its fabric is not up.
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
    """The device was looked at and is well.

    `checks` names what was proved; empty of one whose cause has simply passed.
    """

    node_id: NodeId
    uuid: GpuId
    checks: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)


class GpuErrorSeen(Fact, frozen=True, tag="gpu.error_seen"):
    """A device's driver, or the kernel, told of an error: once, however many of them did and
    however often.

    `error` is its stable name ("xid 31", "ecc", "lost"), `jobs` are the attempts that had the
    device then. What follows from it for the device is in GpuFaulted, for a job in JobFinished;
    with `shadow` nothing does, for the agent only says what it would do.
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
    """A job with a plain part of a device uses more of its memory than that part; after `grace_s`
    of it (0: never) it is ended for it.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    uuid: GpuId
    used_bytes: int
    share_bytes: int
    grace_s: int


class GpuServiceSet(Fact, frozen=True, tag="gpu.service_set"):
    """An operator's word: online, draining (what runs goes on, nothing new comes) or offline.

    The last counts, whatever its health.
    """

    uuid: GpuId
    service: str
    user: str = ""


class GpuControlRequested(Fact, frozen=True, tag="gpu.control_requested"):
    """An operator's word: `control` is one of `device_controls.ROWS`, `value` as its row reads it;
    empty takes it off.

    The last counts. The sequence of its commit names it (`request` in GpuControlled).
    """

    uuid: GpuId
    control: str
    value: str = ""
    user: str = ""


class GpuControlled(Fact, frozen=True, tag="gpu.controlled"):
    """What became of it: `outcome` is done, lacking, denied or failed (`device_controls.py`), and
    `detail` says why, or what is still to be done.

    `request` 0: the agent did it by itself.
    """

    node_id: NodeId
    uuid: GpuId
    control: str
    value: str
    request: int
    outcome: str
    detail: str = ""
