"""The answer of a node about its devices' present readings: agent -> gateway. Pure."""

import msgspec

from libs.common.model import GpuId


class DeviceReadings(msgspec.Struct, frozen=True):
    """The last readings of one device; -1 for what the device does not report.

    `stale`: the device did not answer, and these are its last readings. `simulated`: they are those
    of the processes that run there.
    """

    uuid: GpuId
    busy_percent: int = -1
    memory_used_bytes: int = -1
    memory_total_bytes: int = -1
    power_mw: int = -1
    temperature_c: int = -1
    clock_mhz: int = -1
    stale: bool = False
    simulated: bool = False


class ReadingsReport(msgspec.Struct, frozen=True):
    """The readings of a node's devices."""

    devices: tuple[DeviceReadings, ...] = ()
