"""A device's two independent states, use and health, and the state that people see.

Pure. The scheduler's ledger holds the use: available, allocated or in use. The agent records the
health: healthy, degraded, resetting or offline. Use and health never wait for each other: the fold
keeps both, and a placement considers both. docs/gpu-life.md is generated from this table.
"""

from typing import Final

AVAILABLE: Final = "available"
ALLOCATED: Final = "allocated"
IN_USE: Final = "in_use"

HEALTHY: Final = "healthy"
DEGRADED: Final = "degraded"
RESETTING: Final = "resetting"
OFFLINE: Final = "offline"

HEALTH_LIFE: Final[dict[tuple[str, str], str]] = {
    (HEALTHY, "gpu.faulted:degraded"): DEGRADED,
    (HEALTHY, "gpu.faulted:resetting"): RESETTING,
    (HEALTHY, "gpu.faulted:offline"): OFFLINE,
    (DEGRADED, "gpu.faulted:degraded"): DEGRADED,
    (DEGRADED, "gpu.faulted:resetting"): RESETTING,
    (DEGRADED, "gpu.faulted:offline"): OFFLINE,
    (DEGRADED, "gpu.recovered"): HEALTHY,
    (RESETTING, "gpu.faulted:degraded"): DEGRADED,
    (RESETTING, "gpu.faulted:resetting"): RESETTING,
    (RESETTING, "gpu.faulted:offline"): OFFLINE,
    (RESETTING, "gpu.recovered"): HEALTHY,
    (OFFLINE, "gpu.faulted:degraded"): DEGRADED,
    (OFFLINE, "gpu.faulted:resetting"): RESETTING,
    (OFFLINE, "gpu.faulted:offline"): OFFLINE,
    (OFFLINE, "gpu.recovered"): HEALTHY,
}

# Services: operators decide whether a device takes work.
ONLINE: Final = "online"
SERVICES: Final = (ONLINE, "draining", OFFLINE)

# The healths on which new work may be placed.
USABLE: Final = (HEALTHY, DEGRADED)

SHOWN: Final[dict[tuple[str, str], str]] = {
    (AVAILABLE, HEALTHY): "AVAILABLE",
    (ALLOCATED, HEALTHY): "ALLOCATED",
    (IN_USE, HEALTHY): "IN_USE",
    (AVAILABLE, DEGRADED): "DEGRADED",
    (ALLOCATED, DEGRADED): "DEGRADED",
    (IN_USE, DEGRADED): "DEGRADED",
    (AVAILABLE, RESETTING): "RESETTING",
    (ALLOCATED, RESETTING): "RESETTING",
    (IN_USE, RESETTING): "RESETTING",
    (AVAILABLE, OFFLINE): "OFFLINE",
    (ALLOCATED, OFFLINE): "OFFLINE",
    (IN_USE, OFFLINE): "OFFLINE",
}

QUARANTINED: Final = "quarantined"
DRAINING: Final = "draining"
MAINTENANCE: Final = "MAINTENANCE"
ERROR: Final = "ERROR"
STATES: Final = (*dict.fromkeys(SHOWN.values()), MAINTENANCE, ERROR)


def shown(use: str, health: str, reason: str, service: str = ONLINE) -> str:
    """Return the state that people see, one of STATES."""
    if reason == QUARANTINED:
        return ERROR
    if reason == DRAINING or service != ONLINE:
        return MAINTENANCE
    return SHOWN[use, health]
