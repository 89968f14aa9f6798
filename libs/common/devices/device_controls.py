"""The controls that operators can set on a device: one row per control, with its values.

Pure. A value is a short text in the units of its row; empty means the device's default. The node's
report gives the range that a device accepts; without a report its driver decides. How each vendor's
driver applies a control is in `services/node_agent/devices/device_commands.py`.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.model import Gpu

POWER: Final = "power"
CLOCKS: Final = "clocks"
PERSISTENCE: Final = "persistence"
COMPUTE_MODE: Final = "compute-mode"
ECC: Final = "ecc"
MIG: Final = "mig"
COMPUTE_PARTITION: Final = "compute-partition"
MEMORY_PARTITION: Final = "memory-partition"
RESET: Final = "reset"

# The word that users write for the empty value.
DEFAULT: Final = "default"
ON_OFF: Final = ("on", "off")
COMPUTE_MODES: Final = ("default", "exclusive_process", "prohibited")
# The ways to divide an AMD card.
COMPUTE_PARTITIONS: Final = ("SPX", "DPX", "TPX", "QPX", "CPX")
MEMORY_PARTITIONS: Final = ("NPS1", "NPS2", "NPS4", "NPS8")
# Outcomes: done; the device, its driver or its binding lacks the control; the agent lacks the
# permission; any other failure.
DONE: Final = "done"
LACKING: Final = "lacking"
DENIED: Final = "denied"
FAILED: Final = "failed"

MW: Final = 1_000


class Row(NamedTuple):
    """One control. `read` returns a value as it is recorded, and raises Refused.

    `takes` describes the accepted values. `once`: the control is an action, not a state of the
    device. `needs_free`: the agent waits until no job holds the device, and no job is placed there
    meanwhile. `by_itself` is the default of a mode that the node reports; a device that has it
    already need not be free.
    """

    takes: str
    read: Callable[[str, Gpu], str]
    once: bool = False
    needs_free: bool = False
    by_itself: str = ""


def read(control: str, value: str, gpu: Gpu) -> str:
    """Return the value as it is recorded. Raises Refused with the accepted values."""
    row = ROWS.get(control)
    if row is None:
        raise Refused(f"control: {control[:32]!r} is not known: use one of {', '.join(ROWS)}")
    if value == DEFAULT and not row.once:
        return ""
    return row.read(value, gpu)


def lasts(control: str, value: str) -> bool:
    """Return whether the agent restores the value after a reset or a restart of the machine."""
    return bool(value) and control in ROWS and not ROWS[control].once


def needs_free(control: str) -> bool:
    return control in ROWS and ROWS[control].needs_free


def meant(control: str, value: str) -> str:
    """Return the mode that a value means; empty if the control is not a mode."""
    row = ROWS.get(control)
    return (value or row.by_itself) if row is not None and row.by_itself else ""


def range_of(value: str) -> tuple[int, int]:
    """Return the lowest and highest clock of a value of CLOCKS, in MHz; (0, 0) if it is empty."""
    low, _, high = value.partition("-")
    return (int(low or 0), int(high or low or 0))


def part_of(control: str, percent: int, gpu: Gpu) -> str:
    """Return this percentage of the device's maximum as a value; empty if that is unknown."""
    low, high = gpu.power_mw if control == POWER else gpu.clocks_mhz
    value = max(low, high * percent // 100)
    return "" if not high else str(value // MW) if control == POWER else f"{low}-{value}"


def stricter(one: str, other: str) -> str:
    """Return the stricter of two limits; an empty one is no limit."""
    return min(
        (value for value in (one, other) if value), key=lambda value: range_of(value)[1], default=""
    )


def hot_policy(setting: str) -> dict[str, tuple[str, int]]:
    """Return the limits for a device that is too hot, by vendor (`*`: every other one).

    The setting has the form "nvidia=power:60,*=clocks:50", in percent of the maximum. Raises
    Refused.
    """
    found = {}
    for part in filter(None, setting.replace(" ", "").split(",")):
        vendor, _, wish = part.partition("=")
        control, _, percent = wish.partition(":")
        if (
            not vendor
            or control not in (POWER, CLOCKS)
            or not re.fullmatch(r"[1-9][0-9]?", percent)
        ):
            raise Refused(
                f"MUSTER_HEALTH_HOT: {part!r} must be VENDOR=power:PERCENT or "
                "VENDOR=clocks:PERCENT, with a percentage from 1 to 99"
            )
        found[vendor] = (control, int(percent))
    return found


def _power(value: str, gpu: Gpu) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", value):
        raise Refused(
            f"power: {value[:32]!r} is not a power limit: give watts, for example 300, or default"
        )
    low, high = gpu.power_mw
    if high and not low <= int(value) * MW <= high:
        raise Refused(
            f"power: GPU {gpu.uuid} accepts {-(-low // MW)} to {high // MW} W, not {value}"
        )
    return value


def _clocks(value: str, gpu: Gpu) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}(-[1-9][0-9]{0,4})?", value):
        raise Refused(
            f"clocks: {value[:32]!r} is not a range of clocks: give MHz, for example 1200-1500 or "
            "1500, or default"
        )
    (low, high), (least, most) = range_of(value), gpu.clocks_mhz
    if low > high:
        raise Refused(f"clocks: {value} is not a range: give the lower clock first")
    if most and not least <= low <= high <= most:
        raise Refused(f"clocks: GPU {gpu.uuid} accepts {least} to {most} MHz, not {value}")
    return f"{low}-{high}"


def _one_of(control: str, words: tuple[str, ...]) -> Callable[[str, Gpu], str]:
    def read(value: str, gpu: Gpu) -> str:
        if value not in words:
            raise Refused(
                f"{control}: {value[:32]!r} is not known: give one of "
                f"{', '.join(dict.fromkeys((*words, DEFAULT)))}"
            )
        return value

    return read


def _refuse_value(value: str, gpu: Gpu) -> str:
    if value:
        raise Refused(f"value: {value[:32]!r} is given, but a reset takes no value: omit it")
    return ""


ROWS: Final[dict[str, Row]] = {
    POWER: Row("watts, as 300", _power),
    CLOCKS: Row("MHz, as 1200-1500 or 1500", _clocks),
    PERSISTENCE: Row("on or off", _one_of(PERSISTENCE, ON_OFF)),
    COMPUTE_MODE: Row("exclusive_process or prohibited", _one_of(COMPUTE_MODE, COMPUTE_MODES)),
    ECC: Row("on or off", _one_of(ECC, ON_OFF)),
    MIG: Row("on or off", _one_of(MIG, ON_OFF), needs_free=True, by_itself="off"),
    COMPUTE_PARTITION: Row(
        ", ".join(COMPUTE_PARTITIONS),
        _one_of(COMPUTE_PARTITION, COMPUTE_PARTITIONS),
        needs_free=True,
        by_itself=COMPUTE_PARTITIONS[0],
    ),
    MEMORY_PARTITION: Row(
        ", ".join(MEMORY_PARTITIONS),
        _one_of(MEMORY_PARTITION, MEMORY_PARTITIONS),
        needs_free=True,
        by_itself=MEMORY_PARTITIONS[0],
    ),
    RESET: Row("nothing", _refuse_value, once=True, needs_free=True),
}
