"""Profiling counters of a device: NVML's GPM, from Hopper on.

A reading is the mean between two samples of the counters, which are about a second apart. Two
buffers per device take turns. They need no profiler and no privilege, and disturb none. Tests:
tests/drivers/test_nvidia_profiling.py.
"""

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.node_agent.drivers.readings import Lacking, Reading
from services.node_agent.drivers.vendors import words

if TYPE_CHECKING:
    from services.node_agent.drivers.vendors.nvidia import Nvidia

MIB: Final = 1 << 20
# NVML gives percent; readings are thousandths.
PERMILLE: Final = 10


class Counter(NamedTuple):
    """NVML's number of a metric, and the factor that makes a reading of its value."""

    number: int
    times: int


# NVML_GPM_METRIC_SM_UTIL, _SM_OCCUPANCY, _ANY_TENSOR_UTIL, _DRAM_BW_UTIL, _PCIE_TX_PER_SEC, ...
COUNTERS: Final[dict[str, Counter]] = {
    "sm_active_permille": Counter(2, PERMILLE),
    "sm_occupancy_permille": Counter(3, PERMILLE),
    "tensor_active_permille": Counter(5, PERMILLE),
    "memory_bandwidth_permille": Counter(10, PERMILLE),
    "pcie_sent_bytes_per_s": Counter(20, MIB),
    "pcie_received_bytes_per_s": Counter(21, MIB),
    "link_received_bytes_per_s": Counter(60, MIB),
    "link_sent_bytes_per_s": Counter(61, MIB),
}
NO_COUNTERS: Final = Lacking("the device has no profiling counters")
FIRST: Final = Lacking("the first sample of the counters was taken now")
# A shorter time between two samples gives no mean.
BETWEEN_NS: Final = 100_000_000


class Profiling:
    """The counters of all devices, with the buffers of their last samples."""

    def __init__(self, nvidia: "Nvidia") -> None:
        self.nvidia = nvidia
        # Of each device: the buffers of its last sample and of the next one, and when the last one
        # was taken; 0: not yet.
        self.buffers: dict[str, tuple[Any, Any, int]] = {}
        self.known: dict[str, dict[str, Reading]] = {}

    def close(self) -> None:
        """Free the buffers, before NVML is closed."""
        for device in list(self.buffers):
            self.forget(device)

    def forget(self, device: str) -> None:
        """Free the buffers of one device."""
        nvml = self.nvidia.nvml
        last, spare, _ = self.buffers.pop(device, (None, None, 0))
        self.known.pop(device, None)
        for buffer in (last, spare):
            if buffer is not None:
                self.nvidia.ask(device, "free of counters", nvml.nvmlGpmSampleFree, buffer)

    def read(self, device: str, handle: Any) -> dict[str, Reading]:  # noqa: ANN401  the binding is not typed
        """Return the means since the last read; reasons at the first one."""
        found = self.nvidia.ask(device, "profiling counters", self._measure, device, handle)
        if isinstance(found, Lacking):
            return dict.fromkeys(COUNTERS, found)
        return found

    def _measure(self, device: str, handle: Any) -> dict[str, Reading] | Lacking:  # noqa: ANN401
        nvml = self.nvidia.nvml
        if device not in self.buffers:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return NO_COUNTERS
            self.buffers[device] = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc(), 0)
        last, spare, last_ns = self.buffers[device]
        now_ns = time.monotonic_ns()
        if last_ns and now_ns - last_ns < BETWEEN_NS:
            return self.known.get(device) or FIRST
        nvml.nvmlGpmSampleGet(handle, spare)
        self.buffers[device] = (spare, last, now_ns)
        if not last_ns:
            return FIRST
        self.known[device] = self._between(last, spare)
        return self.known[device]

    def _between(self, first: Any, second: Any) -> dict[str, Reading]:  # noqa: ANN401
        nvml = self.nvidia.nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = first, second
        asked.numMetrics = len(COUNTERS)
        for position, counter in enumerate(COUNTERS.values()):
            asked.metrics[position].metricId = counter.number
        nvml.nvmlGpmMetricsGet(asked)
        return {
            name: self._value(asked.metrics[position], counter)
            for position, (name, counter) in enumerate(COUNTERS.items())
        }

    def _value(self, metric: Any, counter: Counter) -> Reading:  # noqa: ANN401
        if metric.nvmlReturn != self.nvidia.nvml.NVML_SUCCESS:
            return Lacking(words(self.nvidia.nvml.NVMLError(metric.nvmlReturn)))
        return max(0, round(float(metric.value) * counter.times))
