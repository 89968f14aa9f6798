"""How a node's devices and network cards lie to each other, of what the vendors say of links and
the kernel says of PCIe and NUMA.

Pure: what was read comes in as arguments. What is not known stays so: two devices of which one has
no NUMA node are neither near nor far.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libs.common.devices.topology import (
    NEARNESS,
    NODE,
    PHB,
    PIX,
    PXB,
    SELF,
    SYS,
    UNKNOWN,
    Spot,
    Topology,
)
from services.node_agent.drivers.readings import Link
from services.node_agent.drivers.sysfs import Seat

FABRIC: Final = "switch"
NVLINK: Final = "nvlink"
# Below the last bridge that two have in common each may have this many more for both to be on one
# switch: its port.
PORTS_OF_A_SWITCH: Final = 1


class Part(NamedTuple):
    """A GPU or a network card, as it was found."""

    name: str
    kind: str
    device: str
    pci_bus: str
    seat: Seat
    links: Sequence[Link] = ()


def topology(parts: Sequence[Part], simulated: bool = False) -> Topology:
    paths = tuple(tuple(path(one, other) for other in parts) for one in parts)
    spots = [
        Spot(
            name=each.name,
            kind=each.kind,
            device=each.device,
            pci_bus=each.pci_bus,
            numa=each.seat.numa,
            cpus=each.seat.cpus,
            nearest=_nearest(each, parts, row),
        )
        for each, row in zip(parts, paths, strict=True)
    ]
    return Topology(tuple(spots), paths, simulated)


def path(one: Part, other: Part) -> str:
    """The worst part of the way between two; a direct link is better than any."""
    if one.pci_bus == other.pci_bus:
        return SELF
    return (
        _linked(one, other)
        or _by_bridges(one.seat.route, other.seat.route)
        or _by_numa(one.seat.numa, other.seat.numa)
    )


def groups(parts: Sequence[Part]) -> dict[str, str]:
    """By PCI address the name of the group whose members reach each other by direct links; who has
    no link has no group.
    """
    found: dict[str, str] = {}
    for one in parts:
        for other in parts:
            if one.pci_bus != other.pci_bus and _linked(one, other):
                name = found.get(one.pci_bus) or found.get(other.pci_bus) or f"links-{one.pci_bus}"
                was = found.get(other.pci_bus)
                found = {
                    address: name if group == was else group for address, group in found.items()
                }
                found[one.pci_bus] = found[other.pci_bus] = name
    return found


def switch(seat: Seat) -> str:
    """The PCIe switch that a device hangs on, by the address of its upper port: above it are a root
    port and the root complex.
    """
    return seat.route[-3] if len(seat.route) >= 5 else ""


def _linked(one: Part, other: Part) -> str:
    """Links to each other, or of both to a fabric of the same kind."""
    for link in one.links:
        back = [
            each
            for each in other.links
            if each.kind == link.kind
            and each.peer == (FABRIC if link.peer == FABRIC else one.pci_bus)
        ]
        if back and link.peer in (FABRIC, other.pci_bus):
            count = min(link.count, back[0].count)
            return f"NV{count or ''}" if link.kind == NVLINK else link.kind.upper()
    return ""


def _by_bridges(one: Sequence[str], other: Sequence[str]) -> str:
    """Empty when they have no root complex in common, or it is not known."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    if common == 0:
        return ""
    if common == 1:
        return PHB
    below = max(len(one), len(other)) - common - 1
    return PIX if below <= PORTS_OF_A_SWITCH else PXB


def _by_numa(one: int, other: int) -> str:
    if min(one, other) < 0:
        return UNKNOWN
    return NODE if one == other else SYS


def _nearest(part: Part, parts: Sequence[Part], row: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that a network card is nearest to."""
    if part.kind == "gpu":
        return ()
    ways = [
        way for each, way in zip(parts, row, strict=True) if each.kind == "gpu" and way in NEARNESS
    ]
    best = min(ways, key=NEARNESS.index, default="")
    return tuple(
        each.name
        for each, way in zip(parts, row, strict=True)
        if each.kind == "gpu" and way == best
    )
