"""Calls into Level Zero's Sysman through pyzes: errors become exceptions, counters become rates."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from services.node_agent.drivers.readings import (
    Lacking,
    Reading,
)
from services.node_agent.drivers.vendors import (
    GONE,
    LASTING,
    PASSING,
    Lost,
)

# Level Zero's error codes. Lasting: no permission, not available, another version, not supported.
# Gone: lost, requires a reset.
LASTING_CODES: Final = (0x70010000, 0x70010001, 0x78000002, 0x78000003)
NO_PERMISSION: Final = 0x70010000
GONE_CODES: Final = (0x70000001, 0x70000006)
TWO_SAMPLES: Final = Lacking("a rate needs two samples, and this is the first")


class LevelZeroError(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} answered {code:#x}")
        self.code = code


def judge(error: Any) -> str:  # noqa: ANN401
    """See `vendors.Asking`. A function that the library does not have is an AttributeError."""
    if isinstance(error, AttributeError) or error.code in LASTING_CODES:
        return LASTING
    return GONE if error.code in GONE_CODES else PASSING


@contextlib.contextmanager
def loader_by_its_name() -> Iterator[None]:
    """Let the binding find the loader by its name.

    The binding uses one distribution's path; the dynamic linker finds the name on all of them.
    """
    real = ctypes.CDLL

    def find(name: str, *arguments: Any) -> ctypes.CDLL:  # noqa: ANN401
        return real(Path(name).name, *arguments)

    ctypes.CDLL = find  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        ctypes.CDLL = real  # type: ignore[misc]


def per_second(grown: tuple[int, int] | Lacking, factor: int) -> Reading:
    """Return a growth per second; `grown` is in microseconds."""
    return grown if isinstance(grown, Lacking) else grown[0] * factor // grown[1]


class Calls:
    """Calls into the binding for one process.

    `handles` are the devices by address, `indexes` their places in the driver's own list, in which
    a lost device counts too. `parts` are their sensors, engines and domains. `counters` holds each
    counter as the last sample of its device saw it, with its time.
    """

    def __init__(self) -> None:
        self.zes: Any = None
        self.handles: dict[str, Any] = {}
        self.indexes: dict[str, int] = {}
        self.parts: dict[tuple[str, str], list[Any]] = {}
        self.counters: dict[tuple[str, str], tuple[int, int]] = {}

    def handle(self, device: str) -> Any:  # noqa: ANN401
        if device not in self.handles:
            raise Lost(f"intel {device} is lost: Level Zero does not know it any more")
        return self.handles[device]

    def parts_of(self, device: str, kind: str, short: str) -> list[Any]:
        """Return a device's sensors, engines or domains. They do not change."""
        if (device, kind) not in self.parts:
            self.parts[device, kind] = self.listed(
                f"zesDeviceEnum{kind}",
                getattr(self.zes, f"zes_{short}_handle_t"),
                self.handle(device),
            )
        return self.parts[device, kind]

    def grown(
        self, device: str, name: str, now: tuple[int, int] | Lacking
    ) -> tuple[int, int] | Lacking:
        """Return by how much a counter grew, and in how many microseconds."""
        if isinstance(now, Lacking):
            return now
        before = self.counters.get((device, name))
        self.counters[device, name] = now
        return (
            TWO_SAMPLES
            if before is None or now[1] <= before[1]
            else (now[0] - before[0], now[1] - before[1])
        )

    def listed(self, name: str, kind: Callable[[], Any], *of: Any, stype: str = "") -> list[Any]:  # noqa: ANN401
        """Return a list of the binding: the first call counts, the second fills."""
        count = ctypes.c_uint32(0)
        self.call(name, *of, ctypes.byref(count), None)
        found = (kind * count.value)()  # type: ignore[operator]
        for each in found if stype else ():
            each.stype = getattr(self.zes, f"ZES_STRUCTURE_TYPE_{stype}")
        if count.value:
            self.call(name, *of, ctypes.byref(count), found)
        return list(found[: count.value])

    def filled(self, name: str, kind: Callable[[], Any], stype: str, *of: Any) -> Any:  # noqa: ANN401
        found = kind()
        if stype:
            found.stype = getattr(self.zes, f"ZES_STRUCTURE_TYPE_{stype}")
        self.call(name, *of, ctypes.byref(found))
        return found

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        if code := getattr(self.zes, name)(*arguments):
            raise LevelZeroError(name, code)


THROTTLES: Final = {
    1 << 0: "power_cap",
    1 << 1: "burst_power_cap",
    1 << 2: "current_limit",
    1 << 3: "thermal_limit",
    1 << 4: "power_supply",
    1 << 5: "clocks_setting",
    1 << 6: "hardware_range",
    1 << 7: "voltage",
    1 << 8: "thermal",
    1 << 9: "power",
}
