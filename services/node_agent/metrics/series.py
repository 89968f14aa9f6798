"""The names, help texts and units of the device metrics.

Pure: `exposition.py` writes them. Names: docs/howto/watch-devices.md.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from services.node_agent.drivers.readings import Lacking, Reading, Sample

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
MIB: Final = 1 << 20


class Series(NamedTuple):
    """The name of one reading.

    `reading` is a field of Sample, or a function of the sample. The value is multiplied by `times`
    and divided by `per`.
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


OURS: Final = (
    Series(
        "muster_gpu_sampled_seconds",
        "Time of the last sample, in seconds since 1970",
        "at_ns",
        per=10**9,
    ),
    Series(
        "muster_gpu_busy_ratio",
        "Fraction of time in which the device computed",
        "busy_percent",
        per=100,
    ),
    Series(
        "muster_gpu_memory_busy_ratio",
        "Fraction of time in which its memory was read or written",
        "memory_busy_percent",
        per=100,
    ),
    Series(
        "muster_gpu_encoder_busy_ratio",
        "Fraction of time in which the encoder was busy",
        "encoder_percent",
        per=100,
    ),
    Series(
        "muster_gpu_decoder_busy_ratio",
        "Fraction of time in which the decoder was busy",
        "decoder_percent",
        per=100,
    ),
    Series("muster_gpu_memory_bytes", "Memory of the device", "memory_total_bytes"),
    Series("muster_gpu_memory_used_bytes", "Used memory of the device", "memory_used_bytes"),
    Series(
        "muster_gpu_memory_reserved_bytes",
        "Memory that the driver reserves",
        "memory_reserved_bytes",
    ),
    Series("muster_gpu_temperature_celsius", "Temperature of the chip", "temperature_c"),
    Series(
        "muster_gpu_memory_temperature_celsius", "Temperature of the memory", "memory_temperature_c"
    ),
    Series("muster_gpu_power_watts", "Power draw", "power_mw", per=1_000),
    Series("muster_gpu_power_cap_watts", "Power limit", "power_cap_mw", per=1_000),
    Series(
        "muster_gpu_energy_joules_total",
        "Energy since the driver was loaded",
        "energy_mj",
        per=1_000,
        kind=COUNTER,
    ),
    Series("muster_gpu_clock_hertz", "Clock of the processors", "clock_mhz", times=10**6),
    Series("muster_gpu_memory_clock_hertz", "Clock of the memory", "memory_clock_mhz", times=10**6),
    Series(
        "muster_gpu_ecc_corrected_total",
        "Corrected memory errors",
        "ecc_corrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_ecc_uncorrected_total",
        "Uncorrected memory errors",
        "ecc_uncorrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_sram_uncorrected_total",
        "Uncorrected SRAM errors",
        "sram_uncorrected",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_sram_threshold_exceeded",
        "1 if the driver reports that SRAM errors exceeded the threshold",
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
        "muster_gpu_remap_pending", "1 if rows will be remapped at the next reset", "remap_pending"
    ),
    Series("muster_gpu_remap_failed", "1 if a row could not be remapped", "remap_failed"),
    Series(
        "muster_gpu_link_errors_total", "Errors of the direct links", "link_errors", kind=COUNTER
    ),
    Series(
        "muster_gpu_link_sent_bytes_total",
        "Bytes sent over direct links",
        "link_sent_bytes",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_link_received_bytes_total",
        "Bytes received over direct links",
        "link_received_bytes",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_pcie_sent_bytes_total", "Bytes sent over PCIe", "pcie_sent_bytes", kind=COUNTER
    ),
    Series(
        "muster_gpu_pcie_received_bytes_total",
        "Bytes received over PCIe",
        "pcie_received_bytes",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_pcie_replays_total",
        "Packets repeated over PCIe",
        "pcie_replays",
        kind=COUNTER,
    ),
    Series(
        "muster_gpu_fan_ratio", "Fan speed as a fraction of its maximum", "fan_percent", per=100
    ),
    Series("muster_gpu_processes", "Processes that use the device", _processes),
    Series(
        "muster_gpu_sm_active_ratio",
        "Fraction of the multiprocessors that were busy, in the mean of a second",
        "sm_active_permille",
        per=1_000,
    ),
    Series(
        "muster_gpu_sm_occupancy_ratio",
        "Fraction of the possible warps that were active, in the mean of a second",
        "sm_occupancy_permille",
        per=1_000,
    ),
    Series(
        "muster_gpu_tensor_active_ratio",
        "Fraction of time in which tensor cores computed, in the mean of a second",
        "tensor_active_permille",
        per=1_000,
    ),
    Series(
        "muster_gpu_memory_bandwidth_ratio",
        "Used fraction of the memory's bandwidth, in the mean of a second",
        "memory_bandwidth_permille",
        per=1_000,
    ),
    Series(
        "muster_gpu_pcie_sent_bytes_per_second",
        "Bytes sent over PCIe, in the mean of a second",
        "pcie_sent_bytes_per_s",
    ),
    Series(
        "muster_gpu_pcie_received_bytes_per_second",
        "Bytes received over PCIe, in the mean of a second",
        "pcie_received_bytes_per_s",
    ),
    Series(
        "muster_gpu_link_sent_bytes_per_second",
        "Bytes sent over NVLink, in the mean of a second",
        "link_sent_bytes_per_s",
    ),
    Series(
        "muster_gpu_link_received_bytes_per_second",
        "Bytes received over NVLink, in the mean of a second",
        "link_received_bytes_per_s",
    ),
)


# The names and units of dcgm-exporter. Its NVLink and PCIe traffic counters are left out, because
# their unit differs between its releases. Those of its profiling module are NVML's, not DCGM's.
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
    Series("DCGM_FI_PROF_SM_ACTIVE", "Fraction of busy SMs", "sm_active_permille", per=1_000),
    Series(
        "DCGM_FI_PROF_SM_OCCUPANCY", "Fraction of active warps", "sm_occupancy_permille", per=1_000
    ),
    Series(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Fraction of time in which the tensor pipe was active",
        "tensor_active_permille",
        per=1_000,
    ),
    Series(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Fraction of time in which the memory interface was active",
        "memory_bandwidth_permille",
        per=1_000,
    ),
)


# Every NVIDIA device has this, also one that does not answer: an error that takes a device off its
# bus must show.
XID: Final = (
    "DCGM_FI_DEV_XID_ERRORS",
    "Number of the last Xid error since the agent started, 0 if there was none",
)


UP: Final = ("muster_gpu_up", "1 while the device answers its driver")
THROTTLED: Final = ("muster_gpu_throttled", "1 for each reason that slows the clocks now")
SHARES: Final = ("muster_gpu_job_share", "Fraction of the device that a running job has")
INSTANCES: Final = (
    "muster_gpu_instance_memory_slices",
    "Memory slices of the MIG instance in which a job runs",
)
ERRORS: Final = (
    "muster_gpu_errors_total",
    "Errors of the device that the agent recorded since it started, by name",
)


BY_LINK: Final = ("muster_gpu_errors_of_link_total", "Errors of each direct link, by kind")
TROUBLES: Final = ("muster_gpu_trouble", "1 for each reason that keeps work off the device now")
RDMA_ACTIVE: Final = ("muster_rdma_port_active", "1 if the RDMA port is active")
RDMA_COUNTER: Final = (
    "muster_rdma_port_counter_total",
    "Counter of an RDMA port, by the kernel's name; a counter that cannot be read has no line",
)
RDMA_UNKNOWN: Final = (
    "muster_rdma_port_counters_unknown",
    "Counters of an RDMA port that cannot be read",
)
