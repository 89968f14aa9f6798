"""Reads from the kernel where PCI devices are, and which device nodes they have.

`root` is /sys, or a copy of another machine's tree in a test. On machines with one NUMA node and on
virtual ones the kernel may not report a device's NUMA node: it is then -1 for unknown, never 0.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

SYS: Final = Path("/sys")
PROC: Final = Path("/proc")
# Names in /proc/devices: the driver of /dev/nvidia0 and so on, and that of /dev/nvidia-caps/*.
NVIDIA: Final = ("nvidia-frontend", "nvidia")
NVIDIA_CAPABILITIES: Final = "nvidia-caps"


# PCI classes of GPUs: VGA, 3D and other display controllers, processing accelerators.
GPU_CLASSES: Final = {
    "nvidia": ("0x0300", "0x0302"),
    "amd": ("0x0300", "0x0302", "0x0380", "0x1200"),
    "intel": ("0x0300", "0x0302", "0x0380", "0x1200"),
}
PCI_VENDORS: Final = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
CLASS_LETTERS: Final = 6


# The device nodes of a device, by major and minor number.
Nodes = Sequence[tuple[int, int]]
Name = TypeVar("Name", bound=str)


class OnBus(NamedTuple):
    """A GPU as the PCI bus lists it.

    `driver` is the kernel driver to which it is bound; empty if there is none.
    """

    pci_bus: str
    vendor: str
    pci_class: str
    driver: str


class Seat(NamedTuple):
    """The place of a device.

    `route` has the bridges from the root complex down, and the device itself last. It is empty if
    the kernel does not know the device.
    """

    route: tuple[str, ...] = ()
    numa: int = -1
    cpus: str = ""


class Card(NamedTuple):
    """A network card: its name, and its PCI address."""

    name: str
    pci_bus: str


def seat(pci_bus: str, root: Path = SYS) -> Seat:
    """Return the place of a device by its PCI address."""
    path = root / "bus/pci/devices" / pci_bus
    if not path.exists():
        return Seat()
    parts = path.resolve().parts
    begins = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    numa = _read(path / "numa_node")
    return Seat(
        parts[begins:],
        int(numa) if numa.lstrip("-").isdigit() else -1,
        _read(path / "local_cpulist"),
    )


def gpus(root: Path = SYS) -> list[OnBus]:
    """Return the GPUs on the PCI bus by address, without virtual functions.

    It does not matter whether their drivers show them.
    """
    found = []
    folder = root / "bus/pci/devices"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        vendor, kind = (
            PCI_VENDORS.get(_read(path / "vendor"), ""),
            _read(path / "class")[:CLASS_LETTERS],
        )
        if vendor and kind in GPU_CLASSES[vendor] and not (path / "physfn").exists():
            driver = (path / "driver").resolve().name if (path / "driver").exists() else ""
            found.append(OnBus(path.name.lower(), vendor, kind, driver))
    return found


def changes(vendor: str, before: Sequence[OnBus], now: Sequence[OnBus]) -> str:
    """Return how a vendor's GPUs on the PCI bus differ from before; empty if they do not."""
    had = {one.pci_bus: one.driver for one in before if one.vendor == vendor}
    has = {one.pci_bus: one.driver for one in now if one.vendor == vendor}
    said = [f"{address} is not on the PCI bus any more" for address in had if address not in has]
    said += [f"{address} is new on the PCI bus" for address in has if address not in had]
    said += [
        f"{address} is bound to {has[address] or 'no driver'}"
        for address in had
        if address in has and has[address] != had[address]
    ]
    return ", ".join(said)


def cards(root: Path = SYS) -> list[Card]:
    """Return the network cards: first those with RDMA verbs, then the others.

    Each PCI device is there once, virtual functions are not.
    """
    found: dict[str, Card] = {}
    for kind in ("infiniband", "net"):
        for card in _cards(root / "class" / kind, root):
            found.setdefault(card.pci_bus, card)
    return list(found.values())


def _cards(folder: Path, root: Path) -> Iterator[Card]:
    for path in (
        sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
        if folder.is_dir()
        else ()
    ):
        device = (path / "device").resolve()
        if (root / "bus/pci/devices" / device.name).exists() and not (device / "physfn").exists():
            yield Card(path.name, device.name)


def sockets(root: Path = SYS) -> tuple[int, ...]:
    """Return the socket of each NUMA node; nothing if the socket of any node is not known."""
    found = []
    for number in range(len(list((root / "devices/system/node").glob("node[0-9]*")))):
        cpus = _read(root / f"devices/system/node/node{number}/cpulist")
        first = cpus.replace(",", "-").partition("-")[0]
        package = (
            _read(root / f"devices/system/cpu/cpu{first}/topology/physical_package_id")
            if first
            else ""
        )
        if not package.isdigit():
            return ()
        found.append(int(package))
    return tuple(found)


def device_nodes(pci_bus: str, root: Path = SYS, proc: Path = PROC) -> tuple[tuple[int, int], ...]:
    """Return the numbers of a device's nodes: /dev/dri/card*, /dev/dri/renderD*, /dev/nvidia*."""
    found = [
        tuple(map(int, text.split(":")))
        for path in _drm(root / "bus/pci/devices" / pci_bus / "drm")
        if (text := _read(path / "dev"))
    ]
    minor, majors = _nvidia_minor(pci_bus, proc), _majors(proc)
    major = next((majors[name] for name in NVIDIA if name in majors), "")
    return (
        *((number, part) for number, part in found),
        *([(int(major), int(minor))] if major and minor.isdigit() else []),
    )


def merged(before: Mapping[Name, Nodes], now: Mapping[Name, Nodes]) -> dict[Name, Nodes]:
    """Return the current device nodes. A device whose nodes cannot be read keeps its last ones.

    A device that is being reset may show none. A node that another device has now is not kept.
    """
    taken = {node for held in now.values() for node in held}
    found: dict[Name, Nodes] = {}
    for uuid, held in now.items():
        majors = {major for major, _ in held}
        unread = [node for node in before.get(uuid, ()) if node[0] not in majors]
        found[uuid] = (*held, *(node for node in unread if node not in taken))
    return found


def capabilities(pci_bus: str, proc: Path = PROC) -> dict[str, tuple[int, int]]:
    """Return NVIDIA's capability nodes for MIG by name; none if the driver has no such nodes.

    There is one for each MIG instance that the device could have ("gi3/access", "gi3/ci0/access"),
    one for creating instances ("config") and one for watching all of them ("monitor").
    """
    minor, major = _nvidia_minor(pci_bus, proc), _majors(proc).get(NVIDIA_CAPABILITIES, "")
    found = {}
    for line in (
        _read(proc / "driver/nvidia-caps/mig-minors").splitlines() if minor and major else ()
    ):
        name, _, number = line.rpartition(" ")
        if name in ("config", "monitor") or name.startswith(f"gpu{minor}/"):
            found[name.removeprefix(f"gpu{minor}/")] = (int(major), int(number))
    return found


def _nvidia_minor(pci_bus: str, proc: Path) -> str:
    lines = _read(proc / "driver/nvidia/gpus" / pci_bus / "information").splitlines()
    return next((line.split()[-1] for line in lines if line.startswith("Device Minor:")), "")


def _majors(proc: Path) -> dict[str, str]:
    """Return the major numbers in /proc/devices by the driver's name."""
    return {
        name: number
        for number, _, name in (
            line.strip().partition(" ") for line in _read(proc / "devices").splitlines()
        )
    }


def compute_units(pci_bus: str, root: Path = SYS) -> int:
    """Return the compute units of an AMD device; 0 if its kernel driver does not report them."""
    for path in sorted((root / "class/kfd/kfd/topology/nodes").glob("*/properties")):
        words = dict(line.split(maxsplit=1) for line in _read(path).splitlines() if " " in line)
        place, domain = int(words.get("location_id", 0)), int(words.get("domain", 0))
        if (
            f"{domain:04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7}" == pci_bus.lower()
            and int(words.get("simd_count", 0))
        ):
            return int(words["simd_count"]) // max(1, int(words.get("simd_per_cu", 1)))
    return 0


def _drm(folder: Path) -> list[Path]:
    """Return the entries of a folder; none if it is missing, or goes while it is read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


class Numa(NamedTuple):
    """One NUMA node: its processors that this process may use, and its memory."""

    cpus: tuple[int, ...]
    memory_bytes: int


def numas(root: Path = SYS, usable: AbstractSet[int] = frozenset()) -> dict[int, Numa]:
    """Return the NUMA nodes by number; nothing if there is only one.

    `usable` are the processors to count; by default those that this process may use.
    """
    found: dict[int, Numa] = {}
    usable = usable or os.sched_getaffinity(0)
    for path in (root / "devices/system/node").glob("node[0-9]*"):
        total = next(
            (line for line in _read(path / "meminfo").splitlines() if "MemTotal:" in line), "0 kB"
        )
        cpus = tuple(cpu for cpu in _numbers(_read(path / "cpulist")) if cpu in usable)
        found[int(path.name.removeprefix("node"))] = Numa(cpus, int(total.split()[-2]) << 10)
    return found if len(found) > 1 else {}


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a list in the kernel's form: 0-3,8."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
