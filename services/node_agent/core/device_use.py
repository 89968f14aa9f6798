"""The use of an attempt's devices: what its samples add up to, and since when they are all idle.

Pure, in integers only. The agent samples the devices (`devices/use_watch.py`). A sample counts for
the time since the one before. Devices that are silent for long add nothing, and a reading that a
driver does not have is neither use nor idleness. Tests: tests/unit/test_device_use.py.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.common.efficiency import USED_PERCENT
from libs.common.facts import DeviceUse
from libs.common.model import GpuId
from services.node_agent.core.hangs import SECOND_NS

# Two samples that are further apart say nothing about the time between them.
APART_NS: Final = 30 * SECOND_NS
# Idle devices are recorded when they were idle for so long, and again after they have worked.
IDLE_NOTED_NS: Final = 60 * SECOND_NS
NANOSECONDS: Final = 1_000_000
PERCENT: Final = 100
MICRO: Final = 1_000


class Reading(msgspec.Struct, frozen=True):
    """The values that a device shows; None: its driver does not report it.

    `energy_mj` is a counter. `jobs` is the number of attempts that work on the device now.
    """

    busy_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    jobs: int = 1
    simulated: bool = False


class OneDevice(msgspec.Struct):
    """The sums of one device: time in milliseconds, busy time in hundredths of it, energy in
    microjoules (-1: not reported).
    """

    looked_ns: int = 0
    sampled_ms: int = 0
    busy_parts: int = 0
    peak_percent: int = 0
    memory_peak_bytes: int = 0
    memory_bytes: int = 0
    energy_uj: int = -1
    counter_mj: int = -1
    shared: bool = False
    simulated: bool = False


class Use(msgspec.Struct):
    """The use of an attempt's devices.

    All of them are idle since `idle_ns` (0: one works, or it is not known). `works`: one of them
    was busy in the last readings. `told` is what the log says: that they are idle, that they are
    not, or None if an earlier agent recorded it.
    """

    devices: dict[GpuId, OneDevice] = {}
    idle_ns: int = 0
    works: bool = False
    told: bool | None = False


def note(use: Use, gpus: Sequence[GpuId], readings: Mapping[GpuId, Reading], now_ns: int) -> None:
    """Add the readings of the attempt's devices."""
    idle, use.works = bool(gpus), False
    for uuid in gpus:
        found = readings.get(uuid)
        idle = idle and found is not None and _is_idle(found)
        use.works = use.works or (found is not None and (found.busy_percent or 0) >= USED_PERCENT)
        if found is not None:
            idle = _add(use.devices.setdefault(uuid, OneDevice()), found, now_ns) and idle
    use.idle_ns = (use.idle_ns or now_ns) if idle else 0


def _is_idle(reading: Reading) -> bool:
    return reading.busy_percent is not None and reading.busy_percent < USED_PERCENT


def _add(device: OneDevice, reading: Reading, now_ns: int) -> bool:
    """Add one reading; return whether it continues the one before, or is the first."""
    past_ns = now_ns - device.looked_ns if device.looked_ns else 0
    goes_on = past_ns <= APART_NS
    past_ms = past_ns // NANOSECONDS if goes_on else 0
    if reading.busy_percent is not None:
        device.sampled_ms += past_ms
        device.busy_parts += past_ms * reading.busy_percent
        device.peak_percent = max(device.peak_percent, reading.busy_percent)
    device.memory_peak_bytes = max(device.memory_peak_bytes, reading.memory_used_bytes or 0)
    if reading.memory_used_bytes is not None:
        device.memory_bytes = reading.memory_bytes or device.memory_bytes
    _add_energy(device, reading, past_ms)
    device.shared = device.shared or reading.jobs > 1
    device.simulated = device.simulated or reading.simulated
    # Whole milliseconds only, so that nothing is lost between two readings.
    device.looked_ns = (
        now_ns if not goes_on or not past_ns else device.looked_ns + past_ms * NANOSECONDS
    )
    return goes_on


def _add_energy(device: OneDevice, reading: Reading, past_ms: int) -> None:
    """Add the energy since the last reading, from the counter if there is one, else from the power.

    Attempts that share a device have equal parts of it.
    """
    before_mj, device.counter_mj = device.counter_mj, -1
    if reading.energy_mj is not None:
        device.counter_mj = reading.energy_mj
        passed = past_ms and before_mj >= 0
        added_uj = max(0, reading.energy_mj - before_mj) * MICRO if passed else 0
    elif reading.power_mw is not None:
        added_uj = reading.power_mw * past_ms
    else:
        return
    device.energy_uj = max(0, device.energy_uj) + added_uj // max(1, reading.jobs)


def total(use: Use | None) -> DeviceUse | None:
    """Return what the fact of the end says; None without two samples of a device."""
    devices = list(use.devices.values()) if use is not None else []
    sampled_ms = sum(device.sampled_ms for device in devices)
    energies = [device.energy_uj for device in devices if device.energy_uj >= 0]
    if not sampled_ms:
        return None
    return DeviceUse(
        devices=len(devices),
        used=sum(device.peak_percent >= USED_PERCENT for device in devices),
        sampled_ms=sampled_ms,
        busy_ms=sum(device.busy_parts for device in devices) // PERCENT,
        peak_percent=max(device.peak_percent for device in devices),
        memory_peak_bytes=max(device.memory_peak_bytes for device in devices),
        memory_bytes=max(device.memory_bytes for device in devices),
        energy_mj=sum(energies) // MICRO if energies else -1,
        shared=any(device.shared for device in devices),
        simulated=any(device.simulated for device in devices),
    )


def take_idle(use: Use, now_ns: int) -> int | None:
    """Return what must be recorded now: for how many milliseconds the devices have been idle, or 0
    because they are not; None if the log has it.
    """
    idle_ns = now_ns - use.idle_ns if use.idle_ns else 0
    if idle_ns >= IDLE_NOTED_NS and use.told is not True:
        use.told = True
        return idle_ns // NANOSECONDS
    if _has_ended(use):
        use.told = False
        return 0
    return None


def is_due(use: Use, now_ns: int) -> bool:
    """Return whether `take_idle` would return something."""
    if use.idle_ns:
        return now_ns - use.idle_ns >= IDLE_NOTED_NS and use.told is not True
    return _has_ended(use)


def _has_ended(use: Use) -> bool:
    """Return whether the log may still say that the devices are idle, although they are not.

    Devices that do not answer any more are not known to be idle.
    """
    return not use.idle_ns and (use.told is True or (use.told is None and use.works))
