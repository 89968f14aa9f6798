"""Chooses how attempts that share devices are isolated, and sets the variables for it. Pure.

NVIDIA's devices use MPS, AMD's a mask of compute units. Simulated devices need nothing. Intel's
cannot be shared so. Libraries in the job's own process obey the variables, so they prevent
accidents, not attacks. Tests: tests/unit/test_sharing_ways.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

from libs.common.errors import Refused
from libs.common.model import MPS, WHOLE_GPU, Gpu, GpuHold, GpuId

CU_MASK: Final = "cu_mask"
SIMULATED: Final = "simulated"
WAYS: Final = {"nvidia": MPS, "amd": CU_MASK, "simulated": SIMULATED}
NAME_DIGITS: Final = 12
MIB: Final = 1 << 20


def way_of(holds: Sequence[GpuHold], held: Sequence[Gpu]) -> str:
    """Return the way to share these devices; empty if none is needed.

    Raises Refused if the devices have no way, or more than one.
    """
    if not any(hold.isolation == MPS for hold in holds):
        return ""
    vendors = sorted({gpu.vendor for gpu in held})
    ways = {WAYS.get(vendor, "") for vendor in vendors}
    if len(ways) != 1 or "" in ways:
        names = ", ".join(vendors) or "unknown vendors"
        raise Refused(
            f"isolation mps is not available on GPUs of {names}: ask for one vendor "
            "(--vendor nvidia)"
        )
    return ways.pop()


def daemon_name(tenant: str, user: str, uuids: Iterable[GpuId]) -> str:
    """Return the name of the daemon for a set of devices, a tenant and a user.

    A daemon serves one user at a time.
    """
    return sha256("\n".join((tenant, user, *sorted(uuids))).encode()).hexdigest()[:NAME_DIGITS]


def mps_variables(
    folder: str, holds: Sequence[GpuHold], held: Sequence[Gpu], memory_bytes: int
) -> dict[str, str]:
    """Return the environment variables of a job that uses an MPS daemon.

    `folder` is the daemon's, `memory_bytes` the job's request per device (0: by its share). The
    devices are numbered in the order of their names, as the daemon numbers them.
    """
    bounds = []
    for number, (hold, gpu) in enumerate(_named(holds, held)):
        if limit := (memory_bytes or gpu.memory_bytes * hold.share // WHOLE_GPU) // MIB:
            bounds.append(f"{number}={limit}M")
    return {
        "CUDA_MPS_PIPE_DIRECTORY": pipes(folder),
        "CUDA_MPS_LOG_DIRECTORY": logs(folder),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(hold.share for hold in holds)),
        **({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(bounds)} if bounds else {}),
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for _, gpu in _named(holds, held)),
    }


def daemon_variables(folder: str, uuids: Iterable[GpuId]) -> dict[str, str]:
    """Return the daemon's own variables."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": pipes(folder),
        "CUDA_MPS_LOG_DIRECTORY": logs(folder),
        "CUDA_VISIBLE_DEVICES": ",".join(sorted(uuids)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def pipes(folder: str) -> str:
    return f"{folder}/pipe"


def logs(folder: str) -> str:
    return f"{folder}/log"


def mask_variables(masks: Mapping[GpuId, str], held: Sequence[Gpu]) -> dict[str, str]:
    """Return the variables that limit a job to its compute units.

    The devices are numbered in the order in which the job sees them. HIP's own variable has one
    mask for all devices, so it is set only if the masks are equal.
    """
    each = [masks[gpu.uuid] for gpu in held]
    sets = ";".join(f"{number}:0x{mask}" for number, mask in enumerate(each))
    return {
        "HSA_CU_MASK": sets,
        **({"ROC_GLOBAL_CU_MASK": f"0x{each[0]}"} if len(set(each)) == 1 else {}),
    }


def allotted(units: int, share: int, taken: Iterable[str]) -> str:
    """Return a mask of free compute units, the lowest first, at least one.

    `units` is the number of the device. Raises Refused if too few are free, which cannot happen
    while the shares add up to one device.
    """
    free = (1 << units) - 1
    for other in taken:
        free &= ~int(other, 16)
    wanted, mask = max(1, units * share // WHOLE_GPU), 0
    for _ in range(wanted):
        if not free:
            raise Refused(f"compute units: fewer than {wanted} of the device's {units} are free")
        lowest = free & -free
        mask, free = mask | lowest, free ^ lowest
    return f"{mask:x}"


def _named(holds: Sequence[GpuHold], held: Sequence[Gpu]) -> list[tuple[GpuHold, Gpu]]:
    by_name = {gpu.uuid: gpu for gpu in held}
    return [
        (hold, by_name[hold.uuid])
        for hold in sorted(holds, key=lambda hold: hold.uuid)
        if hold.uuid in by_name
    ]
