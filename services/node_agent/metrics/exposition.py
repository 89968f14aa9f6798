"""The metrics of a node's devices for Prometheus, as text.

Pure. Each reading has a name of ours; NVIDIA's also have DCGM's. A missing reading has no line: it
is never written as zero. The labels are those of NVIDIA's exporter, so that its dashboards work. A
device's job and tenant are labels while it runs one job alone; `muster_gpu_job_share` has the
shares of several. Devices and JOBS_MAX bound the number of series. No library is used: the format
is one line per value. Names: `series.py`, docs/howto/watch-devices.md. Tests:
tests/unit/test_exposition.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from libs.common.devices.topology import RdmaPort
from libs.common.model import WHOLE_GPU, Gpu, GpuId, JobId
from services.node_agent.core.devices import Devices, Trouble
from services.node_agent.core.state import Attempt
from services.node_agent.drivers.readings import Lacking, Reading, Sample
from services.node_agent.metrics.lines import family, labels
from services.node_agent.metrics.series import (
    BY_LINK,
    COUNTER,
    DCGM,
    ERRORS,
    GAUGE,
    INSTANCES,
    OURS,
    RDMA_ACTIVE,
    RDMA_COUNTER,
    RDMA_UNKNOWN,
    SHARES,
    THROTTLED,
    TROUBLES,
    UP,
    XID,
    Series,
)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# The shares of further jobs on a device are counted together.
JOBS_MAX: Final = 16
OTHER_JOBS: Final = "other"
NVIDIA: Final = "nvidia"
ACTIVE: Final = "ACTIVE"


class JobShare(NamedTuple):
    """A job that runs on a device, with `share` hundredths of it.

    In a MIG instance it has `profile`, and the memory slices `slices` as bits.
    """

    job_id: JobId
    tenant: str
    share: int
    profile: str = ""
    slices: int = 0


class Health(NamedTuple):
    """The errors that the agent recorded for a device, and the health that each trouble
    gives it.
    """

    errors: Mapping[str, int]
    troubles: Mapping[str, str]


NO_HEALTH: Final[Mapping[GpuId, Health]] = {}


def job_shares(working: Mapping[GpuId, Sequence[Attempt]]) -> dict[GpuId, list[JobShare]]:
    """Return the shares of the running jobs by device.

    Jobs that an agent found on disk are missing until their order arrives: their tenant is unknown.
    """
    return {
        uuid: [share for attempt in found for share in _shares(attempt, uuid)]
        for uuid, found in working.items()
    }


def _shares(attempt: Attempt, uuid: GpuId) -> list[JobShare]:
    order = attempt.order
    return (
        []
        if order is None
        else [
            JobShare(
                order.job_id, order.tenant, hold.share, hold.mig_profile, slices=hold.mig_slices
            )
            for hold in order.gpus
            if hold.uuid == uuid
        ]
    )


def health(devices: Devices) -> dict[GpuId, Health]:
    """Return the health of the devices that had an error or have a trouble."""
    found = dict.fromkeys((*devices.counts, *devices.troubles))
    return {
        uuid: Health(devices.counts.get(uuid, {}), _healths(devices.troubles.get(uuid, {})))
        for uuid in found
    }


def _healths(troubles: Mapping[str, Trouble]) -> dict[str, str]:
    return {reason: trouble.health for reason, trouble in troubles.items()}


def text(
    node: str,
    gpus: Sequence[Gpu],
    samples: Mapping[GpuId, Sample],
    jobs: Mapping[GpuId, Sequence[JobShare]],
    nvidia_version: str = "",
    xids: Mapping[GpuId, int] = MappingProxyType({}),
    healths: Mapping[GpuId, Health] = NO_HEALTH,
    rdma: Sequence[RdmaPort] = (),
    more: Sequence[str] = (),
) -> str:
    """Return the metrics of all these devices, also of one that does not answer.

    `nvidia_version` is NVIDIA's driver's, `xids` are the last Xid errors, `more` are further lines.
    """
    marks = {gpu.uuid: labels(_device(node, gpu) | _alone(jobs.get(gpu.uuid, ()))) for gpu in gpus}
    answering = [(gpu, samples[gpu.uuid]) for gpu in gpus if gpu.uuid in samples]
    up = ((marks[gpu.uuid], int(gpu.uuid in samples)) for gpu in gpus)
    lines = family(*UP, GAUGE, up)
    for series in OURS:
        lines += family(series.name, series.help, series.kind, _values(series, answering, marks))
    lines += _dcgm_lines(gpus, answering, marks=marks, version=nvidia_version, xids=xids)
    lines += _throttle_lines(node, answering)
    lines += _link_lines(node, answering)
    lines += _share_lines(node, gpus, jobs)
    lines += _health_lines(node, gpus, healths)
    lines += _rdma_lines(node, rdma)
    return "\n".join([*lines, *more, ""])


def _dcgm_lines(
    gpus: Sequence[Gpu],
    answering: Sequence[tuple[Gpu, Sample]],
    marks: Mapping[GpuId, str],
    version: str,
    xids: Mapping[GpuId, int],
) -> list[str]:
    """Return the readings of NVIDIA's devices under DCGM's names."""
    nvidias = [gpu for gpu in gpus if gpu.vendor == NVIDIA]
    names = {
        gpu.uuid: ",".join(filter(None, (marks[gpu.uuid], _version(version)))) for gpu in nvidias
    }
    samples = [(gpu, sample) for gpu, sample in answering if gpu.vendor == NVIDIA]
    lines: list[str] = []
    for series in DCGM:
        lines += family(series.name, series.help, series.kind, _values(series, samples, names))
    last_xids = ((names[gpu.uuid], xids.get(gpu.uuid, 0)) for gpu in nvidias)
    return lines + family(*XID, GAUGE, last_xids)


def _throttle_lines(node: str, answering: Sequence[tuple[Gpu, Sample]]) -> list[str]:
    values = (
        (labels(_device(node, gpu) | {"reason": why}), 1) for gpu, why in _throttled(answering)
    )
    return family(*THROTTLED, GAUGE, values)


def _link_lines(node: str, answering: Sequence[tuple[Gpu, Sample]]) -> list[str]:
    counts = (
        (gpu, count)
        for gpu, sample in answering
        if not isinstance(sample.link_counts, Lacking)
        for count in sample.link_counts
    )
    values = (
        (labels(_device(node, gpu) | {"link": str(each.link), "kind": each.kind}), each.count)
        for gpu, each in counts
    )
    return family(*BY_LINK, COUNTER, values)


def _share_lines(
    node: str, gpus: Sequence[Gpu], jobs: Mapping[GpuId, Sequence[JobShare]]
) -> list[str]:
    shares = ((gpu, job) for gpu in gpus for job in _bounded(jobs.get(gpu.uuid, ())))
    values = (
        (labels(_device(node, gpu) | _job(job)), job.share / WHOLE_GPU) for gpu, job in shares
    )
    cut = ((gpu, job) for gpu in gpus for job in jobs.get(gpu.uuid, ()) if job.slices)
    instances = (
        (labels(_device(node, gpu) | _instance(job) | _job(job)), job.slices.bit_count())
        for gpu, job in cut
    )
    return [*family(*SHARES, GAUGE, values), *family(*INSTANCES, GAUGE, instances)]


def _instance(job: JobShare) -> dict[str, str]:
    """Return the labels of a MIG instance: its profile and its first memory slice."""
    first = (job.slices & -job.slices).bit_length() - 1
    return {"GPU_I_PROFILE": job.profile, "first_slice": str(first)}


def _health_lines(node: str, gpus: Sequence[Gpu], healths: Mapping[GpuId, Health]) -> list[str]:
    known = [(_device(node, gpu), healths[gpu.uuid]) for gpu in gpus if gpu.uuid in healths]
    errors = (
        (labels(device | {"error": name}), count)
        for device, health in known
        for name, count in health.errors.items()
    )
    troubles = (
        (labels(device | {"reason": why, "health": how}), 1)
        for device, health in known
        for why, how in health.troubles.items()
    )
    return [*family(*ERRORS, COUNTER, errors), *family(*TROUBLES, GAUGE, troubles)]


def _rdma_lines(node: str, ports: Sequence[RdmaPort]) -> list[str]:
    """Return the ports that the kernel shows; a counter that cannot be read has no line."""
    marks = [(port, _port(node, port)) for port in ports]
    states = ((labels(mark), int(port.state == ACTIVE)) for port, mark in marks if port.state)
    counts = (
        (labels(mark | {"counter": name}), count)
        for port, mark in marks
        for name, count in port.counters.items()
    )
    unknown = ((labels(mark), len(port.unknown)) for port, mark in marks)
    return [
        *family(*RDMA_ACTIVE, GAUGE, states),
        *family(*RDMA_COUNTER, COUNTER, counts),
        *family(*RDMA_UNKNOWN, GAUGE, unknown),
    ]


def _port(node: str, port: RdmaPort) -> dict[str, str]:
    return {"device": port.device, "port": str(port.port), "Hostname": node}


def _values(
    series: Series, answering: Iterable[tuple[Gpu, Sample]], marks: Mapping[GpuId, str]
) -> Iterator[tuple[str, float]]:
    read: Callable[[Sample], Reading] = (
        attrgetter(series.reading) if isinstance(series.reading, str) else series.reading
    )
    for gpu, sample in answering:
        value = read(sample)
        if not isinstance(value, Lacking):
            yield (
                marks[gpu.uuid],
                value * series.times if series.per == 1 else value * series.times / series.per,
            )


def _throttled(answering: Iterable[tuple[Gpu, Sample]]) -> Iterator[tuple[Gpu, str]]:
    for gpu, sample in answering:
        if not isinstance(sample.throttled, Lacking):
            yield from ((gpu, why) for why in sample.throttled)


def _device(node: str, gpu: Gpu) -> dict[str, str]:
    return {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": _pci_bus_id(gpu),
        "device": f"{gpu.vendor}{gpu.index}",
        "modelName": gpu.model,
        "vendor": gpu.vendor,
        "Hostname": node,
    }


def _version(nvidia: str) -> str:
    return labels({"DCGM_FI_DRIVER_VERSION": nvidia}) if nvidia else ""


def _pci_bus_id(gpu: Gpu) -> str:
    """Return the address as dcgm-exporter writes it: eight digits of domain, capital letters."""
    return f"{gpu.pci_bus.upper():0>16}" if gpu.vendor == NVIDIA else gpu.pci_bus


def _job(job: JobShare) -> dict[str, str]:
    """Return the labels of a job. `job` itself is Prometheus' own label for its target."""
    return {"hpc_job": job.job_id, "tenant": job.tenant}


def _alone(jobs: Sequence[JobShare]) -> dict[str, str]:
    return _job(jobs[0]) if len(jobs) == 1 else {}


def _bounded(jobs: Sequence[JobShare]) -> list[JobShare]:
    if len(jobs) <= JOBS_MAX:
        return list(jobs)
    return [
        *jobs[:JOBS_MAX],
        JobShare(JobId(OTHER_JOBS), "", sum(job.share for job in jobs[JOBS_MAX:])),
    ]
