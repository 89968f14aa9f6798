"""NVML's codes, fields and events, and small conversions of its values."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import (
    Lacking,
    Process,
    Reading,
)
from services.node_agent.drivers.vendors import (
    GONE,
    LASTING,
    PASSING,
)

EVENTS_MAX: Final = 64
# The older call counts the driver's reserved memory as used.
NO_RESERVED: Final = Lacking("this driver does not tell it apart from what is used")
# NVML counts a link's traffic in KiB.
LINK_UNIT: Final = 1 << 10
# NVML's error codes. Lasting: not supported, no such function, another struct, no permission. Gone:
# lost, reset required.
LASTING_CODES: Final = (3, 4, 13, 22, 25, 26)
GONE_CODES: Final = (15, 16, 28)
# Field of a sample -> NVML's field value, with its scope: all links.
ALL_LINKS: Final = 0xFFFFFFFF


FIELDS: Final[dict[str, tuple[int, int]]] = {
    "memory_temperature_c": (82, 0),
    "energy_mj": (83, 0),
    "ecc_corrected": (3, 0),
    "ecc_uncorrected": (4, 0),
    "remapped_corrected": (142, 0),
    "remapped_uncorrected": (143, 0),
    "remap_pending": (144, 0),
    "remap_failed": (145, 0),
    "recovery_action": (230, 0),
    "link_sent_bytes": (138, ALL_LINKS),
    "link_received_bytes": (139, ALL_LINKS),
    "pcie_sent_bytes": (197, 0),
    "pcie_received_bytes": (198, 0),
    "pcie_replays": (94, 0),
}


# CRC, replay and recovery errors of all links together, for drivers without counters per link.
LINK_ERROR_FIELDS: Final = (38, 52, 59)
THROTTLES: Final = {
    0x1: "idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal_software",
    0x40: "thermal_hardware",
    0x80: "power_brake",
    0x100: "display_clock",
}


# An event that NVML attributes to no MIG instance.
NO_INSTANCE: Final = 0xFFFFFFFF
# Corrected errors (0x1) are left out: their counter says more.
EVENT_KINDS: Final = {0x8: r.XID, 0x2: r.ECC}


def judge(error: Any) -> str:  # noqa: ANN401
    """See `vendors.Asking`."""
    return (
        LASTING if error.value in LASTING_CODES else GONE if error.value in GONE_CODES else PASSING
    )


def first_of(found: Any) -> Reading:  # noqa: ANN401
    return found if isinstance(found, Lacking) else int(found[0])


def flag_of(found: Any) -> bool | Lacking:  # noqa: ANN401
    return found if isinstance(found, Lacking) else bool(found)


def process_of(found: Any) -> Process:  # noqa: ANN401
    unknown = Lacking("NVML does not know it of this process")
    return Process(found.pid, unknown if found.usedGpuMemory is None else found.usedGpuMemory)


def is_same(one: Any, other: Any) -> bool:  # noqa: ANN401
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def scaled(value: Reading, factor: int) -> Reading:
    return value if isinstance(value, Lacking) else value * factor


def sum_of_known(values: Sequence[Reading]) -> Reading:
    """Return the sum of the values that are known."""
    there = [value for value in values if not isinstance(value, Lacking)]
    return sum(there) if there else values[0]
