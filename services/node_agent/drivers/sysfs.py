"""What the kernel says of where a PCI device is.

`root` is /sys, or a tree that a test made of another machine's.

A machine that does not say (one NUMA node, a virtual one) answers -1 and nothing: unknown, never
node 0.
"""

import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

SYS: Final = Path("/sys")
PROC: Final = Path("/proc")
# As /proc/devices names the driver of /dev/nvidia0 and its likes, and that of /dev/nvidia-caps/*.
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


class OnBus(NamedTuple):
    """A GPU as the PCI bus lists it.

    `driver` is the kernel's driver that it is bound to; empty: none.
    """

    pci_bus: str
    vendor: str
    pci_class: str
    driver: str


class Seat(NamedTuple):
    """`route` are the bridges from the root complex down, and the device itself last; empty when
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
    """The GPUs that the PCI bus lists, by address, whatever their drivers show; no virtual
    functions.
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


def cards(root: Path = SYS) -> list[Card]:
    """Those that speak verbs first, then what else is a network card; each PCI device once, and no
    virtual function.
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
    """On which socket each NUMA node is; nothing when the machine does not say of all of them."""
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
    """Of one device: /dev/dri/card*, /dev/dri/renderD*, /dev/nvidia*."""
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


def capabilities(pci_bus: str, proc: Path = PROC) -> dict[str, tuple[int, int]]:
    """The nodes that NVIDIA's driver has set aside for each MIG instance that one device could have
    ("gi3/access", "gi3/ci0/access"), and for whoever may cut it or see who is at work on any
    ("config", "monitor"); none where it has no such nodes.
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
    """By the driver's name, as /proc/devices has it."""
    return {
        name: number
        for number, _, name in (
            line.strip().partition(" ") for line in _read(proc / "devices").splitlines()
        )
    }


def compute_units(pci_bus: str, root: Path = SYS) -> int:
    """Of an AMD device, as its kernel driver says; 0 where it does not."""
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
    return sorted(folder.iterdir()) if folder.is_dir() else []


class Numa(NamedTuple):
    """A node of host memory and the processors beside it, as far as this process may use them."""

    cpus: tuple[int, ...]
    memory_bytes: int


def numas(root: Path = SYS, usable: AbstractSet[int] = frozenset()) -> dict[int, Numa]:
    """By number; nothing where there is only one, for everything is near to it.

    `usable`: processors; by default all of this process.
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
    """Of a list as the kernel writes it: 0-3,8."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
