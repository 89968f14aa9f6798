"""The controls of NVIDIA devices, through NVML. For MIG see `nvidia_mig.py`.

NVML has no call for a reset: NVIDIA's own tool resets, while this process has no device open.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Final, assert_never

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Command, Done, Lacking
from services.node_agent.drivers.vendors import LASTING, Refusal, nvidia_mig, words

# NVML's compute mode by our word.
COMPUTE_MODES: Final = {"default": 0, "prohibited": 2, "exclusive_process": 3}
RESET_TOOL: Final = "nvidia-smi"


def control(vendor: Any, device: str, command: Command) -> Done | Lacking:  # noqa: ANN401  nvidia.Nvidia, which imports this file
    """Carry out a command. Raises Refusal and Lost."""
    nvml, handle = vendor.nvml, vendor.handle(device)
    try:
        return _apply(vendor, nvml, device=device, handle=handle, command=command)
    except nvml.NVMLError as error:
        if vendor.ask.judge(error) == LASTING:
            return Lacking(words(error), denied=isinstance(error, nvml.NVMLError_NoPermission))
        raise Refusal(words(error)) from error
    finally:
        vendor.ask.lacking.clear()


def _apply(vendor: Any, nvml: Any, device: str, handle: Any, command: Command) -> Done | Lacking:  # noqa: ANN401
    match command:
        case r.SetPowerCap(milliwatts):
            nvml.nvmlDeviceSetPowerManagementLimit(
                handle, milliwatts or nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
            )
        case r.LockClocks(0, 0):
            nvml.nvmlDeviceResetGpuLockedClocks(handle)
        case r.LockClocks(low_mhz, high_mhz):
            nvml.nvmlDeviceSetGpuLockedClocks(handle, low_mhz, high_mhz)
        case r.SetPersistence(on):
            nvml.nvmlDeviceSetPersistenceMode(handle, int(on))
        case r.SetComputeMode(mode):
            if mode not in COMPUTE_MODES:
                raise Refusal(f"{mode} is no compute mode: say {', '.join(COMPUTE_MODES)}")
            nvml.nvmlDeviceSetComputeMode(handle, COMPUTE_MODES[mode])
        case r.SetEcc(on):
            nvml.nvmlDeviceSetEccMode(
                handle, nvml.nvmlDeviceGetDefaultEccMode(handle)[0] if on is None else int(on)
            )
            return _after_reset(nvml.nvmlDeviceGetEccMode(handle))
        case r.SetMigMode() | r.CreateMigInstance() | r.DestroyMigInstance() | r.ListMigInstances():
            return nvidia_mig.apply(nvml, handle, command)
        case r.SetPartition():
            return Lacking("NVIDIA's devices are divided by MIG")
        case r.Reset():
            return _reset(vendor, device)
        case _:
            assert_never(command)
    return Done()


def _after_reset(modes: Sequence[int]) -> Done:
    now, pending = modes
    return Done(note="" if now == pending else "it counts after a reset")


def limits(vendor: Any, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the accepted ranges of the power limit and the clocks."""
    nvml = vendor.nvml
    power = vendor.ask(
        device, "power limits", nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle
    )
    most = vendor.ask(
        device, "clock limit", nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM
    )
    return {
        "power_mw": power if isinstance(power, Lacking) else (int(power[0]), int(power[1])),
        "clocks_mhz": most if isinstance(most, Lacking) else (1, int(most)),
    }


def _reset(vendor: Any, device: str) -> Done | Lacking:  # noqa: ANN401
    """Reset with NVIDIA's tool.

    The agent's deadline covers the tool: it is killed with this process's group. If the agent stops
    meanwhile, the tool goes on alone, so its output goes into memory and not through a pipe."""
    tool = shutil.which(RESET_TOOL)
    if tool is None:
        return Lacking(f"{RESET_TOOL} is not on PATH")
    vendor.close()
    with os.fdopen(os.memfd_create(RESET_TOOL), "w+", errors="replace") as said:
        try:
            done = subprocess.run(
                [tool, "--gpu-reset", "-i", device],
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
            )
        finally:
            vendor.open()
        if done.returncode != 0:
            said.seek(0)
            raise Refusal(words(said.read()))
    return Done()
