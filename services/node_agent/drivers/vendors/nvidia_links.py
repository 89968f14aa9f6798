"""Errors of each NVLink of a device: NVML field values, scoped by link number.

Generations count different things: up to Hopper the data link layer's replays, recoveries and CRC
errors, on Blackwell the recoveries of a link and those that failed. Older drivers know neither and
give sums over all links. Tests: tests/drivers/test_nvidia.py.
"""

from typing import TYPE_CHECKING, Any, Final

from services.node_agent.drivers.readings import Lacking, LinkErrors, Reading

if TYPE_CHECKING:
    from services.node_agent.drivers.vendors.nvidia import Nvidia

Scoped = tuple[int, int]

# NVML_FI_DEV_NVLINK_LINK_COUNT.
LINK_COUNT: Final = 91
# NVML's field of one link -> what it counts: ERROR_DL_REPLAY, _RECOVERY and _CRC, and
# COUNT_LINK_RECOVERY_EVENTS with COUNT_LINK_RECOVERY_FAILED_EVENTS.
KINDS: Final = {161: "replay", 162: "recovery", 163: "crc", 215: "recovery", 214: "recovery_failed"}
# A recovery that failed is one of the recoveries.
COUNTED_TWICE: Final = "recovery_failed"
# After this many reads a device without active links is queried again: the links of a fabric may
# come up later.
AGAIN: Final = 60


class Links:
    """The fields of each link that a device answers.

    They are found once, and no others are read.
    """

    def __init__(self, nvidia: "Nvidia") -> None:
        self.nvidia = nvidia
        self.answered: dict[str, list[Scoped]] = {}
        self.silent: dict[str, int] = {}

    def forget(self, device: str) -> None:
        """Forget what is known of the device's links."""
        self.answered.pop(device, None)
        self.silent.pop(device, None)

    def read(self, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401  the binding is not typed
        """Return `link_counts` and `link_errors` of a sample; nothing if the driver does not tell
        links apart.
        """
        wanted = self._wanted(device, handle)
        if not wanted:
            return {}
        counts = _errors(wanted, self._ask(device, handle, wanted))
        return {"link_counts": counts, "link_errors": _total(counts)}

    def _wanted(self, device: str, handle: Any) -> list[Scoped]:  # noqa: ANN401
        if self.silent.get(device, 0) > 0:
            self.silent[device] -= 1
            return []
        if device not in self.answered:
            found = self._find(device, handle)
            if not found:
                self.silent[device] = AGAIN
                return []
            self.answered[device] = found
        return self.answered[device]

    def _find(self, device: str, handle: Any) -> list[Scoped]:  # noqa: ANN401
        (count,) = self._ask(device, handle, [(LINK_COUNT, 0)])
        links = (
            0 if isinstance(count, Lacking) else min(count, self.nvidia.nvml.NVML_NVLINK_MAX_LINKS)
        )
        fields_asked = [(field, link) for field in KINDS for link in range(links)]
        found = [
            scoped
            for scoped, value in zip(
                fields_asked, self._ask(device, handle, fields_asked), strict=True
            )
            if not isinstance(value, Lacking)
        ]
        taken: dict[tuple[str, int], Scoped] = {}
        for field, link in found:
            taken.setdefault((KINDS[field], link), (field, link))
        return list(taken.values())

    def _ask(self, device: str, handle: Any, fields: list[Scoped]) -> list[Reading]:  # noqa: ANN401
        if not fields:
            return []
        found = self.nvidia.ask(
            device, "link fields", self.nvidia.nvml.nvmlDeviceGetFieldValues, handle, fields
        )
        return (
            [found for _ in fields]
            if isinstance(found, Lacking)
            else [self.nvidia.field(each) for each in found]
        )


def _errors(wanted: list[Scoped], values: list[Reading]) -> tuple[LinkErrors, ...] | Lacking:
    """Return the counters by link.

    Lacking if one link does not answer: a sum without it would look like a counter that was reset.
    """
    silent = next((value for value in values if isinstance(value, Lacking)), None)
    if silent is not None:
        return silent
    counts = [value for value in values if not isinstance(value, Lacking)]
    found = [
        LinkErrors(link, KINDS[field], count)
        for (field, link), count in zip(wanted, counts, strict=True)
    ]
    return tuple(sorted(found, key=lambda each: (each.link, each.kind)))


def _total(found: tuple[LinkErrors, ...] | Lacking) -> Reading:
    return (
        found
        if isinstance(found, Lacking)
        else sum(each.count for each in found if each.kind != COUNTED_TWICE)
    )
