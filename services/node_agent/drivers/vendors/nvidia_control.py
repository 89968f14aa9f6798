"""What an NVIDIA device can be told by NVML, and MIG: which profiles it has, instances made and removed.

An instance that cannot be finished is taken back. A reset is no call of NVML: NVIDIA's own tool does it, while this process has nothing
open.
"""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from ctypes import byref
from typing import Any, Final, NamedTuple, assert_never

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Command, Done, Lacking
from services.node_agent.drivers.vendors import LASTING, Refusal, words

# NVML's compute mode by our word, and its compute instance profile by how many slices of the GPU instance it takes.
COMPUTE_MODES: Final = {"default": 0, "prohibited": 2, "exclusive_process": 3}
WHOLE_INSTANCE: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
COMPUTE_INSTANCES_MAX: Final = 8
RESET_TOOL: Final = "nvidia-smi"


class Profile(NamedTuple):
    name: str
    number: int
    slices: int


def profiles(nvml: Any, handle: Any) -> list[Profile]:  # noqa: ANN401  the binding is not typed
    """Those that the card has, in NVML's order; none of a driver that does not name them."""
    return list(_profiles(nvml, handle))


def _profiles(nvml: Any, handle: Any) -> Iterator[Profile]:  # noqa: ANN401
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            found = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index)
        except nvml.NVMLError:
            continue
        name = found.name if isinstance(found.name, str) else found.name.decode()
        yield Profile(name.removeprefix("MIG "), found.id, found.sliceCount)


def control(vendor: Any, device: str, command: Command) -> Done | Lacking:  # noqa: ANN401  nvidia.Nvidia, which imports this file
    """Raises Refusal, and Lost."""
    nvml, handle = vendor.nvml, vendor.handle(device)
    try:
        return _told(vendor, nvml, device, handle, command)
    except nvml.NVMLError as error:
        if vendor.ask.judge(error) == LASTING:
            return Lacking(words(error), denied=isinstance(error, nvml.NVMLError_NoPermission))
        raise Refusal(words(error)) from error
    finally:
        vendor.ask.lacking.clear()


def _told(vendor: Any, nvml: Any, device: str, handle: Any, command: Command) -> Done | Lacking:  # noqa: ANN401
    match command:
        case r.SetPowerCap(milliwatts):
            nvml.nvmlDeviceSetPowerManagementLimit(handle, milliwatts or nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
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
            nvml.nvmlDeviceSetEccMode(handle, nvml.nvmlDeviceGetDefaultEccMode(handle)[0] if on is None else int(on))
            return _after_reset(nvml.nvmlDeviceGetEccMode(handle))
        case r.SetMigMode(on):
            pending = nvml.nvmlDeviceSetMigMode(handle, int(on))
            return Done(note="it counts after a reset" if pending else "")
        case r.CreateMigInstance(profile, start):
            return _create(nvml, handle, profile, start)
        case r.DestroyMigInstance(instance):
            _destroy(nvml, nvml.nvmlDeviceGetGpuInstanceById(handle, instance))
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
    """What its power limit and its clocks can be set to."""
    nvml = vendor.nvml
    power = vendor.ask(device, "power limits", nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    most = vendor.ask(device, "clock limit", nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM)
    return {
        "power_mw": power if isinstance(power, Lacking) else (int(power[0]), int(power[1])),
        "clocks_mhz": most if isinstance(most, Lacking) else (1, int(most)),
    }


def _create(nvml: Any, handle: Any, name: str, start: int) -> Done:  # noqa: ANN401
    profile = next((each for each in profiles(nvml, handle) if each.name == name), None)
    if profile is None:
        raise Refusal(f"the card has no profile {name}")
    if start < 0:
        made = nvml.nvmlDeviceCreateGpuInstance(handle, profile.number)
    else:
        place = nvml.c_nvmlGpuInstancePlacement_t(start, profile.slices)
        made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.number, byref(place))
    try:
        whole = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(made, WHOLE_INSTANCE[profile.slices], 0)
        nvml.nvmlGpuInstanceCreateComputeInstance(made, whole.id)
    except nvml.NVMLError:
        nvml.nvmlGpuInstanceDestroy(made)
        raise
    number = nvml.nvmlGpuInstanceGetInfo(made).id
    return Done(instance=number, uuid=_uuid(nvml, handle, number))


def _uuid(nvml: Any, handle: Any, instance: int) -> str:  # noqa: ANN401
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        if nvml.nvmlDeviceGetGpuInstanceId(found) == instance:
            return str(nvml.nvmlDeviceGetUUID(found))
    return ""


def _destroy(nvml: Any, instance: Any) -> None:  # noqa: ANN401
    for number in range(COMPUTE_INSTANCES_MAX):
        try:
            inner = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, number)
        except nvml.NVMLError_NotFound:
            continue
        nvml.nvmlComputeInstanceDestroy(inner)
    nvml.nvmlGpuInstanceDestroy(instance)


def _reset(vendor: Any, device: str) -> Done | Lacking:  # noqa: ANN401
    """The agent's deadline is over this one too: the tool dies with this process's group."""
    tool = shutil.which(RESET_TOOL)
    if tool is None:
        return Lacking(f"{RESET_TOOL} is not on PATH")
    vendor.close()
    try:
        done = subprocess.run([tool, "--gpu-reset", "-i", device], capture_output=True, text=True, check=False)
    finally:
        vendor.open()
    if done.returncode != 0:
        raise Refusal(words(done.stdout + done.stderr))
    return Done()
