"""Computes a node's topology: how near its devices and network cards are to each other.

Pure. The inputs are the direct links, as vendors report them, and PCIe and NUMA, as the kernel
reports them. If the NUMA node of either of two devices is not known, their distance is unknown too.
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
# Two devices are on one switch if at most this many bridges (the switch's port) lie between each of
# them and their last common bridge.
PORTS_OF_A_SWITCH: Final = 1


class Part(NamedTuple):
    """A GPU or a network card, with its place and its links."""

    name: str
    kind: str
    device: str
    pci_bus: str
    seat: Seat
    links: Sequence[Link] = ()


def topology(parts: Sequence[Part], simulated: bool = False) -> Topology:
    """Return the topology of these parts."""
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
    """Return the name of the path between two parts; a direct link goes before PCIe and NUMA."""
    if one.pci_bus == other.pci_bus:
        return SELF
    return (
        _linked(one, other)
        or _by_bridges(one.seat.route, other.seat.route)
        or _by_numa(one.seat.numa, other.seat.numa)
    )


def groups(parts: Sequence[Part]) -> dict[str, str]:
    """Return the link group of each PCI address; parts without direct links have none.

    The members of a group reach each other over direct links.
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
    """Return the PCIe switch of a device: the address of its upstream port; empty without a switch.

    Above that port are a root port and the root complex.
    """
    return seat.route[-3] if len(seat.route) >= 5 else ""


def _linked(one: Part, other: Part) -> str:
    """Return the name of the direct link between two parts, or over one fabric; empty if none."""
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
    """Return the name of the path over PCIe bridges; empty without a common root complex."""
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
    """Return the names of the GPUs that are nearest to a network card; none for a GPU."""
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
