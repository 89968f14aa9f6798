"""The bounds of all values that a node writes in a fact.

Pure. Numbers are clamped and texts are cut, so that no sum over them exceeds what a state can hold.
A list or a device's name that is too long makes the fact ignored. The fold applies these bounds
(`fold.apply`), so every reader gets the same result. Bounds that depend on the state (the time that
a job was placed, the owner of a device) are checked by the folds. Tests: tests/unit/test_bounds.py.
"""

from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from libs.common.facts import Fact, kind_of

# Exact in JSON too; sums and products of a few of these are not stored.
NUMBER_MAX: Final = 1 << 53
TEXT_MAX: Final = 8_192
COUNT_MAX: Final = 16_384
# (smallest, largest) by the name of the field.
NUMBERS: Final = {
    "incarnation": (0, NUMBER_MAX),
    "attempt": (0, 1 << 31),
    "cpus_milli": (0, 1 << 31),
    "memory_bytes": (0, 1 << 50),
    "index": (-1, 1 << 15),
    "numa": (-1, 1 << 15),
    "sockets": (-1, 1 << 15),
    "compute_capability": (0, 1 << 15),
    "power_mw": (0, 1 << 31),
    "clocks_mhz": (0, 1 << 31),
    "exit_code": (-(1 << 31), (1 << 31) - 1),
    "signal": (0, 255),
    "pid": (0, 1 << 31),
    "run_ms": (0, 1 << 38),
    "at_ns": (0, 1 << 62),
    "grace_s": (0, 1 << 31),
    "bandwidth": (0, 1 << 43),
    "small_bandwidth": (0, 1 << 43),
    "rtt_ns": (0, 1 << 38),
    "received": (0, 1 << 43),
    "number": (0, 1 << 31),
    "devices": (0, 256),
    "used": (0, 256),
    "sampled_ms": (0, 1 << 43),
    "busy_ms": (0, 1 << 43),
    "peak_percent": (0, 100),
    "memory_peak_bytes": (0, 1 << 50),
    "energy_mj": (-1, 1 << 43),
    "idle_ms": (0, 1 << 38),
}
COUNTS: Final = {
    "gpus": 256,
    "labels": 256,
    "isolation": 64,
    "drivers": 64,
    "absent": 256,
    "left_out": 64,
    "checks": 64,
    "sockets": 1_024,
    "mig_profiles": 256,
    "jobs": 6_400,
}
# A device's name goes into each placement, which must fit in one commit whatever a single node
# calls its devices.
UUID_MAX: Final = 128
FactT = TypeVar("FactT", bound=msgspec.Struct)


class _TooLong(Exception):
    """Raised for a list or a name that is too long."""


def bounded(fact: Fact) -> Fact | None:
    """Return the fact with its values clamped; None if a list or a device's name is too long.

    If no value is out of bounds, return the same object.
    """
    try:
        return _struct(fact)
    except _TooLong:
        return None


def too_long(fact: Fact) -> str:
    """Return the reason for distrust of a node whose fact is not `bounded`."""
    return f"{kind_of(fact)}: one of its lists is too long"


def _struct(value: FactT) -> FactT:
    changed = {}
    for name in value.__struct_fields__:
        before = getattr(value, name)
        after = _within(name, before)
        if after is not before:
            changed[name] = after
    return replace(value, **changed) if changed else value


def _within(name: str, value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    if type(value) is int:
        least, most = NUMBERS.get(name, (-NUMBER_MAX, NUMBER_MAX))
        return value if least <= value <= most else max(least, min(most, value))
    if type(value) is str:
        if name == "uuid" and len(value) > UUID_MAX:
            raise _TooLong
        return value if len(value) <= TEXT_MAX else value[:TEXT_MAX]
    if type(value) is tuple:
        _check_count(name, value)
        items = tuple(_within(name, item) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if type(value) is dict:
        _check_count(name, value)
        within = {_within(name, key): _within(name, each) for key, each in value.items()}
        return value if within == value else within
    return _struct(value) if isinstance(value, msgspec.Struct) else value


def _check_count(name: str, value: tuple[Any, ...] | dict[Any, Any]) -> None:
    if len(value) > COUNTS.get(name, COUNT_MAX):
        raise _TooLong
