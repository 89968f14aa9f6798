"""The use of devices: how it adds up, what of a charge was busy or idle, and what a job could do
better.

Pure, in integers only. Tests: tests/unit/test_efficiency.py.
"""

from collections.abc import Callable
from typing import Final

from libs.common.facts.efficiency_facts import DeviceUse
from libs.common.quantities import counted

# From this busy percentage on a device counts as used, and below it as idle.
USED_PERCENT: Final = 5
# A hint is given below this average, and below this part of the memory.
LOW_PERCENT: Final = 30
LOW_MEMORY_PERCENT: Final = 25
# Devices that were sampled for less than this in all get no hint.
JUDGED_MS: Final = 30_000
GIB: Final = 1 << 30


def of_members(one: DeviceUse | None, other: DeviceUse | None) -> DeviceUse | None:
    """Add up the use of two members of an attempt, which have different devices."""
    return _added(one, other, lambda first, second: first + second)


def of_attempts(one: DeviceUse | None, other: DeviceUse | None) -> DeviceUse | None:
    """Add up the use of two attempts of a job. The number of devices is that of the larger one."""
    return _added(one, other, max)


def _added(
    one: DeviceUse | None, other: DeviceUse | None, count: Callable[[int, int], int]
) -> DeviceUse | None:
    if one is None or other is None:
        return one if other is None else other
    return DeviceUse(
        devices=count(one.devices, other.devices),
        used=count(one.used, other.used),
        sampled_ms=one.sampled_ms + other.sampled_ms,
        busy_ms=one.busy_ms + other.busy_ms,
        peak_percent=max(one.peak_percent, other.peak_percent),
        memory_peak_bytes=max(one.memory_peak_bytes, other.memory_peak_bytes),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        energy_mj=_energy(one.energy_mj, other.energy_mj),
        shared=one.shared or other.shared,
        simulated=one.simulated or other.simulated,
    )


def _energy(one: int, other: int) -> int:
    """Add energies up; one that was not reported does not count."""
    return max(one, other) if min(one, other) < 0 else one + other


def measured(share_ms: int, devices_ms: int, use: DeviceUse | None) -> tuple[int, int]:
    """Return the parts of a share in which the devices computed, and did not; the rest was not
    measured.

    `devices_ms` is the run time of all devices together.
    """
    if use is None:
        return 0, 0
    whole, busy_ms = max(devices_ms, use.sampled_ms, 1), min(use.busy_ms, use.sampled_ms)
    return share_ms * busy_ms // whole, share_ms * (use.sampled_ms - busy_ms) // whole


def average_percent(use: DeviceUse) -> int:
    """Return the average busy percentage of the devices, rounded."""
    whole = max(1, use.sampled_ms)
    return (200 * min(use.busy_ms, use.sampled_ms) + whole) // (2 * whole)


def hints(use: DeviceUse | None) -> list[str]:
    """Return what a job could do better, in plain words.

    A job that shared a device, or that was sampled for too short a time, gets no hint.
    """
    if use is None or use.shared or use.sampled_ms < JUDGED_MS or not use.devices:
        return []
    gpus = counted(use.devices, "GPU")
    if not use.used:
        return [f"used none of its {gpus}: ask for none, or check that the program finds them"]
    if use.used < use.devices:
        return [f"used {use.used} of {gpus}: ask for {use.used}"]
    found, average = [], average_percent(use)
    if average < LOW_PERCENT:
        found.append(
            f"its {gpus} computed {average} % of the time: check what the job waits for, or share "
            "a GPU"
        )
    if 100 * use.memory_peak_bytes < LOW_MEMORY_PERCENT * use.memory_bytes:
        peak, size = use.memory_peak_bytes / GIB, use.memory_bytes / GIB
        found.append(f"used at most {peak:.1f} of {size:.0f} GiB of GPU memory: a part may do")
    return found
