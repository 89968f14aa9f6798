"""Which way the parts of an attempt's devices are kept apart, and the variables that say so to the
vendors' libraries.

Pure. `mps` is NVIDIA's; on an AMD device a mask of compute units takes its place, on a simulated
one nothing does, and an Intel device has no such thing. All of it is read by libraries in the job's
own process: it keeps jobs from each other's way, not from harm. Tests:
tests/unit/test_sharing_ways.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.model import MPS, WHOLE_GPU, Gpu, GpuHold, GpuId

CU_MASK: Final = "cu_mask"
SIMULATED: Final = "simulated"
WAYS: Final = {"nvidia": MPS, "amd": CU_MASK, "simulated": SIMULATED}
NAME_DIGITS: Final = 12
MIB: Final = 1 << 20


class Used(msgspec.Struct, frozen=True):
    """Kept beside the attempt's marker.

    `way` is what JobStarted says; `daemon` names the attempt's MPS daemon; `masks` are the compute
    units that it was given of each AMD device, one bit each, in hexadecimal.
    """

    way: str = ""
    daemon: str = ""
    masks: dict[GpuId, str] = {}


def way_of(holds: Sequence[GpuHold], held: Sequence[Gpu]) -> str:
    """Empty where nothing is to be done. Raises Refused for devices that cannot be shared so."""
    if not any(hold.isolation == MPS for hold in holds):
        return ""
    vendors = sorted({gpu.vendor for gpu in held})
    ways = {WAYS.get(vendor, "") for vendor in vendors}
    if len(ways) != 1 or "" in ways:
        found = ", ".join(vendors) or "unknown vendors"
        raise Refused(
            f"isolation mps is not available on GPUs of {found}: ask for one vendor "
            "(--vendor nvidia)"
        )
    return ways.pop()


def daemon_name(tenant: str, user: str, uuids: Iterable[GpuId]) -> str:
    """One daemon for each set of devices, tenant and user of the machine: a daemon serves one user
    at a time.
    """
    return sha256("\n".join((tenant, user, *sorted(uuids))).encode()).hexdigest()[:NAME_DIGITS]


def mps_variables(
    folder: str, holds: Sequence[GpuHold], held: Sequence[Gpu], memory_bytes: int
) -> dict[str, str]:
    """`folder` is the daemon's, `memory_bytes` what the job asked for of each device (0: by its
    share).

    Devices count as the daemon numbers them: by their names, in order.
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
    """What the daemon itself is told."""
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
    """Devices count in the order in which they are visible.

    HIP's own variable knows one mask for all of them.
    """
    each = [masks[gpu.uuid] for gpu in held]
    sets = ";".join(f"{number}:0x{mask}" for number, mask in enumerate(each))
    return {
        "HSA_CU_MASK": sets,
        **({"ROC_GLOBAL_CU_MASK": f"0x{each[0]}"} if len(set(each)) == 1 else {}),
    }


def allotted(units: int, share: int, taken: Iterable[str]) -> str:
    """Compute units that nobody else has, the lowest first, at least one.

    `units` is how many the device has. Raises Refused when there are too few, which promises within
    a whole device never come to.
    """
    free = (1 << units) - 1
    for other in taken:
        free &= ~int(other, 16)
    wanted, mask = max(1, units * share // WHOLE_GPU), 0
    for _ in range(wanted):
        if not free:
            raise Refused(f"of its {units} compute units fewer than {wanted} are free")
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
