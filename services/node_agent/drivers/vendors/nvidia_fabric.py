"""Reads whether the NVLink fabric of a device is up (nvmlDeviceGetGpuFabricInfoV, with the older
call as a fallback).

A fabric manager registers each device with the fabric of NVSwitches; until then no kernel on the
device reaches another device over it.
"""

from ctypes import byref
from typing import TYPE_CHECKING, Any, Final

from services.node_agent.drivers.readings import Lacking
from services.node_agent.drivers.vendors import words

if TYPE_CHECKING:
    from services.node_agent.drivers.vendors.nvidia import Nvidia

# NVML's states of a device in its fabric; 0: it has no fabric.
COMPLETED: Final = 3
STATES: Final = {1: "its registration has not started", 2: "its registration is in progress"}


def fabric(nvidia: "Nvidia", device: str, handle: Any) -> str | Lacking:  # noqa: ANN401  the binding is not typed
    """Return why the fabric is not up; empty if it is, or if the device has none."""
    nvml = nvidia.nvml
    found = nvidia.ask(
        device,
        "fabric v",
        _filled,
        nvml.nvmlDeviceGetGpuFabricInfoV,
        handle,
        nvml.c_nvmlGpuFabricInfoV_t,
    )
    if isinstance(found, Lacking):
        found = nvidia.ask(
            device,
            "fabric",
            _filled,
            nvml.nvmlDeviceGetGpuFabricInfo,
            handle,
            nvml.c_nvmlGpuFabricInfo_t,
        )
    if isinstance(found, Lacking):
        return found
    state = found.state & 0xFF  # NVML writes one byte, the binding reads four
    if state in STATES:
        return f"{STATES[state]}: is the fabric manager running?"
    failed = state == COMPLETED and found.status != nvml.NVML_SUCCESS
    return f"its registration failed: {words(nvml.NVMLError(found.status))}" if failed else ""


def _filled(call: Any, handle: Any, kind: Any) -> Any:  # noqa: ANN401
    """Return the struct that the call fills."""
    found = kind()
    call(handle, byref(found))
    return found
