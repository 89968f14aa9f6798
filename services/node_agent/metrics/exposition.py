"""What a node says of its devices to Prometheus, as text: each reading under a name of ours,
NVIDIA's also under DCGM's names.

Pure. A reading that is lacking has no line: it is never a zero. Labels are those of NVIDIA's
exporter, so that its dashboards serve; a device's job and tenant are among them while it runs one
job alone, and the shares of several are `muster_gpu_job_share`. Series are bounded by devices and
by JOBS_MAX. Written out here, for a line is one format and an agent need not load a library for it.
Names: docs/howto/watch-devices.md. Test: tests/unit/test_exposition.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from libs.common.model import WHOLE_GPU, Gpu, GpuId, JobId
from services.node_agent.core.devices import Devices, Trouble
from services.node_agent.core.state import Attempt
from services.node_agent.drivers.readings import Lacking, Reading, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Of a device's jobs beyond these the shares are counted together.
JOBS_MAX: Final = 16
OTHER_JOBS: Final = "other"
GAUGE: Final = "gauge"
COUNTER: Final = "counter"
NVIDIA: Final = "nvidia"
MIB: Final = 1 << 20


class JobShare(NamedTuple):
    """A job that runs on a device, with `share` hundredths of it."""

    job_id: JobId
    tenant: str
    share: int


class Health(NamedTuple):
    """The agent's record of a device: how often each error was recorded, and the health that each
    trouble gives it.
    """

    errors: Mapping[str, int]
    troubles: Mapping[str, str]


class Series(NamedTuple):
    """A name for one reading: a field of Sample, or what is made of several; the value is `times`
    that, divided by `per`.
    """

    name: str
    help: str
    reading: str | Callable[[Sample], Reading]
    per: int = 1
    times: int = 1
    kind: str = GAUGE


def _free(sample: Sample) -> Reading:
    total, used = sample.memory_total_bytes, sample.memory_used_bytes
    if isinstance(used, Lacking) or isinstance(total, Lacking):
        return used if isinstance(used, Lacking) else total
    reserved = sample.memory_reserved_bytes
    return total - used - (0 if isinstance(reserved, Lacking) else reserved)


def _processes(sample: Sample) -> Reading:
    return sample.processes if isinstance(sample.processes, Lacking) else len(sample.processes)


NO_HEALTH: Final[Mapping[GpuId, Health]] = {}
OURS: Final = (
    Series(
        "muster_gpu_sampled_seconds",
        "When the device was last asked, in seconds since 1970",
        "at_ns",
        per=10**9,
    ),
    Series(
        "muster_gpu_busy_ratio", "Part of the time in which it computed", "busy_percent", per=100
    ),
    Series(
        "muster_gpu_memory_busy_ratio",
        "Part of the time in which its memory was read or written",
        "memory_busy_percent",
        per=100,
    ),
    Series(
        "muster_gpu_encoder_busy_ratio",
        "Part of the time in which it encoded",
        "encoder_percent",
        per=100,
    ),
    Series(
        "muster_gpu_decoder_busy_ratio",
        "Part of the time in which it decoded",
        "decoder_percent",
        per=100,
    ),
    Series("muster_gpu_memory_bytes", "Its memory", "memory_total_bytes"),
    Series("muster_gpu_memory_used_bytes", "What is used of it", "memory_used_bytes"),
    Series(
        "muster_gpu_memory_reserved_bytes",
        "Memory that the driver keeps for itself",
        "memory_reserved_bytes",
    ),
    Series("muster_gpu_temperature_celsius", "Of the chip", "temperature_c"),
    Series("muster_gpu_memory_temperature_celsius", "Of its memory", "memory_temperature_c"),
    Series("muster_gpu_power_watts", "What it draws", "power_mw", per=1_000),
    Series("muster_gpu_power_cap_watts", "What it may draw", "power_cap_mw", per=1_000),
    Series(
        "muster_gpu_energy_joules_total",
        "What it has drawn since its driver was loaded",
        "energy_mj",
        per=1_000,
        kind=COUNTER,
    ),
    Series("muster_gpu_clock_hertz", "Of its processors", "clock_mhz", times=10**6),
    Series("muster_gpu_memory_clock_hertz", "Of its memory", "memory_clock_mhz", times=10**6),
    Series(
        "muster_gpu_ecc_corrected_total",
        "Errors of its memory that were corrected",
        "ecc_corrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_ecc_uncorrected_total",
        "Errors of its memory that were not",
        "ecc_uncorrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_sram_uncorrected_total",
        "Errors of its SRAM that were not corrected",
        "sram_uncorrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_sram_threshold_exceeded",
        "1: its driver says that SRAM errors passed the threshold",
        "sram_threshold",
    ),
    Series(
        "muster_gpu_remapped_corrected_total",
        "Rows remapped for corrected errors",
        "remapped_corrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_remapped_uncorrected_total",
        "Rows remapped for uncorrected errors",
        "remapped_uncorrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_remap_pending", "1: rows are to be remapped at the next reset", "remap_pending"
    ),
    Series("muster_gpu_remap_failed", "1: a row could not be remapped", "remap_failed"),
    Series(
        "muster_gpu_link_errors_total", "Errors of its direct links", "link_errors", kind=COUNTER
    ),
    Series(
        "muster_gpu_link_sent_bytes_total", "Over its direct links", "link_sent_bytes", kind=COUNTER
    ),
    Series(
        "muster_gpu_link_received_bytes_total",
        "Over its direct links",
        "link_received_bytes",
        kind=COUNTER,
    ),
    Series("muster_gpu_pcie_sent_bytes_total", "Over PCIe", "pcie_sent_bytes", kind=COUNTER),
    Series(
        "muster_gpu_pcie_received_bytes_total", "Over PCIe", "pcie_received_bytes", kind=COUNTER
    ),
    Series(
        "muster_gpu_pcie_replays_total",
        "Packets sent again over PCIe",
        "pcie_replays",
        kind=COUNTER,
    ),
    Series("muster_gpu_fan_ratio", "Of its fan's highest speed", "fan_percent", per=100),
    Series("muster_gpu_processes", "Processes that use it", _processes),
)
# As dcgm-exporter names them, in its units. Its counters of NVLink's and PCIe's traffic are not
# among them: their unit is not the same in all of its releases.
DCGM: Final = (
    Series("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz)", "clock_mhz"),
    Series("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz)", "memory_clock_mhz"),
    Series("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C)", "memory_temperature_c"),
    Series("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)", "temperature_c"),
    Series("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)", "power_mw", per=1_000),
    Series("DCGM_FI_DEV_POWER_MGMT_LIMIT", "Power limit (in W)", "power_cap_mw", per=1_000),
    Series(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (in mJ)",
        "energy_mj",
        kind=COUNTER,
    ),
    Series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries", "pcie_replays", kind=COUNTER),
    Series("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)", "busy_percent"),
    Series("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)", "memory_busy_percent"),
    Series("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %)", "encoder_percent"),
    Series("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %)", "decoder_percent"),
    Series("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)", _free, per=MIB),
    Series("DCGM_FI_DEV_FB_USED", "Memory used (in MiB)", "memory_used_bytes", per=MIB),
    Series(
        "DCGM_FI_DEV_FB_RESERVED",
        "Memory that the driver keeps for itself (in MiB)",
        "memory_reserved_bytes",
        per=MIB,
    ),
    Series(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Corrected ECC errors since the driver was loaded",
        "ecc_corrected",
        kind=COUNTER,
    ),
    Series(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrected ECC errors since the driver was loaded",
        "ecc_uncorrected",
        kind=COUNTER,
    ),
    Series(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for correctable errors",
        "remapped_corrected",
        kind=COUNTER,
    ),
    Series(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for uncorrectable errors",
        "remapped_uncorrected",
        kind=COUNTER,
    ),
    Series("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether rows are to be remapped", "remap_pending"),
    Series("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", "remap_failed"),
    Series("DCGM_FI_DEV_FAN_SPEED", "Fan speed (in % of the highest)", "fan_percent"),
)

# For every NVIDIA device, also one that does not answer: an error that takes a device off its bus
# must show.
XID: Final = (
    "DCGM_FI_DEV_XID_ERRORS",
    "Number of the last Xid error since the agent started, 0 if there was none",
)
UP: Final = ("muster_gpu_up", "1 while the device answers its driver")
THROTTLED: Final = ("muster_gpu_throttled", "1 for each reason that slows its clocks now")
SHARES: Final = ("muster_gpu_job_share", "Part of the device that a job has which runs there")
ERRORS: Final = (
    "muster_gpu_errors_total",
    "Errors of the device that the agent has recorded since it began, by their name",
)
BY_LINK: Final = ("muster_gpu_errors_of_link_total", "Errors of each of its direct links, by kind")
TROUBLES: Final = ("muster_gpu_trouble", "1 for each reason that keeps work off the device now")


def job_shares(working: Mapping[GpuId, Sequence[Attempt]]) -> dict[GpuId, list[JobShare]]:
    """Without those that an agent found on disk and has not been told of yet: nobody knows their
    tenant.
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
            JobShare(order.job_id, order.tenant, hold.share)
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
) -> str:
    """Return the metrics of all these devices, also of one that does not answer.

    `nvidia_version` is NVIDIA's driver's, `xids` are the last Xid errors.
    """
    marks = {gpu.uuid: _labels(_device(node, gpu) | _alone(jobs.get(gpu.uuid, ()))) for gpu in gpus}
    answering = [(gpu, samples[gpu.uuid]) for gpu in gpus if gpu.uuid in samples]
    lines = [*_family(*UP, GAUGE, ((marks[gpu.uuid], int(gpu.uuid in samples)) for gpu in gpus))]
    for series in OURS:
        lines += _family(series.name, series.help, series.kind, _values(series, answering, marks))
    nvidias = [gpu for gpu in gpus if gpu.vendor == NVIDIA]
    dcgm = {
        gpu.uuid: ",".join(filter(None, (marks[gpu.uuid], _version(nvidia_version))))
        for gpu in nvidias
    }
    told = [(gpu, sample) for gpu, sample in answering if gpu.vendor == NVIDIA]
    for series in DCGM:
        lines += _family(series.name, series.help, series.kind, _values(series, told, dcgm))
    lines += _family(*XID, GAUGE, ((dcgm[gpu.uuid], xids.get(gpu.uuid, 0)) for gpu in nvidias))
    lines += _family(
        *THROTTLED,
        GAUGE,
        ((_labels(_device(node, gpu) | {"reason": why}), 1) for gpu, why in _throttled(answering)),
    )
    of_links = (
        (gpu, each)
        for gpu, sample in answering
        if not isinstance(sample.link_counts, Lacking)
        for each in sample.link_counts
    )
    by_link = (
        (_labels(_device(node, gpu) | {"link": str(each.link), "kind": each.kind}), each.count)
        for gpu, each in of_links
    )
    lines += _family(*BY_LINK, COUNTER, by_link)
    shares = ((gpu, each) for gpu in gpus for each in _bounded(jobs.get(gpu.uuid, ())))
    lines += _family(
        *SHARES,
        GAUGE,
        (
            (_labels(_device(node, gpu) | _job(each)), each.share / WHOLE_GPU)
            for gpu, each in shares
        ),
    )
    known = [(_device(node, gpu), healths[gpu.uuid]) for gpu in gpus if gpu.uuid in healths]
    errors = (
        (_labels(device | {"error": name}), count)
        for device, each in known
        for name, count in each.errors.items()
    )
    troubles = (
        (_labels(device | {"reason": why, "health": how}), 1)
        for device, each in known
        for why, how in each.troubles.items()
    )
    lines += [*_family(*ERRORS, COUNTER, errors), *_family(*TROUBLES, GAUGE, troubles)]
    return "\n".join([*lines, ""])


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


def _family(name: str, meaning: str, kind: str, values: Iterable[tuple[str, float]]) -> list[str]:
    """Nothing where there is no value."""
    lines = [f"{name}{{{labels}}} {value}" for labels, value in values]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines] if lines else []


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
    return _labels({"DCGM_FI_DRIVER_VERSION": nvidia}) if nvidia else ""


def _pci_bus_id(gpu: Gpu) -> str:
    """Return the address as dcgm-exporter writes it: eight digits of domain, capital letters."""
    return f"{gpu.pci_bus.upper():0>16}" if gpu.vendor == NVIDIA else gpu.pci_bus


def _job(job: JobShare) -> dict[str, str]:
    """`job` is Prometheus' own name for whom it asks."""
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


def _labels(pairs: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
