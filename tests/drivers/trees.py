"""The parts of /sys that give the places of devices, for four kinds of machines, as files.

The addresses and the cascades of switches follow the output of `nvidia-smi topo -m` and `rocm-smi
--showtopo` on these machines. The numbers of the bridges are made up.
"""

from pathlib import Path
from typing import NamedTuple

from services.node_agent.drivers.readings import Link
from services.node_agent.drivers.sysfs import cards, seat
from services.node_agent.drivers.topology import Part

DGX_GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
DGX_CARDS = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
MEMORY_KIB = 512 << 20
MI300X_GPUS = ("05", "26", "46", "65", "85", "a6", "c6", "e5")


class Machine(NamedTuple):
    parts: list[Part]
    root: Path

    def named(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)


def place(root: Path, route: str, numa: int, cpus: str) -> str:
    """Create a device below these bridges ("pci0000:16/0000:16:01.0/..."); return its address."""
    folder = root / "devices" / route
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{numa}\n")
    (folder / "local_cpulist").write_text(f"{cpus}\n")
    link = root / "bus/pci/devices" / folder.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder.name


def gpu(
    root: Path, address: str, vendor: str = "0x10de", kind: str = "0x030200", driver: str = "nvidia"
) -> str:
    """Create a GPU at an address, on its own root port; `driver` is its kernel driver, if any."""
    place(root, f"pci0000:00/0000:00:{address[5:7]}.0/{address}", -1, "0-7")
    folder = root / "bus/pci/devices" / address
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(root / "bus/pci/drivers" / driver)
    return address


def card(root: Path, kind: str, name: str, address: str) -> None:
    """Give the network card at this address a name."""
    folder = root / "class" / kind / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to((root / "bus/pci/devices" / address).resolve())


def node(root: Path, number: int, cpus: str, socket: int) -> None:
    """Create a NUMA node with its first CPU."""
    for path, text in (
        (f"devices/system/node/node{number}/cpulist", cpus),
        (
            f"devices/system/node/node{number}/meminfo",
            f"Node {number} MemTotal:       {MEMORY_KIB} kB\nNode {number} MemFree: 1 kB",
        ),
        (
            f"devices/system/cpu/cpu{cpus.partition('-')[0]}/topology/physical_package_id",
            str(socket),
        ),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


def machine(root: Path, gpus: list[tuple[str, tuple[Link, ...]]]) -> Machine:
    """Return the parts as the driver orders them: GPUs in their order, then the network cards."""
    found = [
        Part(
            name=f"GPU{i}",
            kind="gpu",
            device=f"GPU-{i}",
            pci_bus=address,
            seat=seat(address, root),
            links=links,
        )
        for i, (address, links) in enumerate(gpus)
    ]
    there = cards(root)
    return Machine(
        found
        + [
            Part(
                name=f"NIC{i}",
                kind="nic",
                device=each.name,
                pci_bus=each.pci_bus,
                seat=seat(each.pci_bus, root),
            )
            for i, each in enumerate(there)
        ],
        root,
    )


def dgx_h100(root: Path) -> Machine:
    """Create a machine with two sockets and eight GPUs.

    Each GPU is beside a network card behind cascaded switches of its own root complex, and has 18
    links to the fabric. Two more network cards are for storage, one with a virtual function.
    """
    for number, cpus in enumerate(("0-55", "56-111")):
        node(root, number, cpus, number)
    addresses = []
    for i, (gpu, nic) in enumerate(zip(DGX_GPUS, DGX_CARDS, strict=True)):
        numa, cpus = i // 4, ("0-55", "56-111")[i // 4]
        low, high = int(nic, 16), int(gpu, 16)
        top = f"pci0000:{low - 4:02x}/0000:{low - 4:02x}:01.0/0000:{low - 3:02x}:00.0"
        bridge = f"{top}/0000:{low - 2:02x}:02.0"
        inner = f"{bridge}/0000:{high - 2:02x}:00.0/0000:{high - 1:02x}:00.0"
        addresses.append(place(root, f"{inner}/0000:{gpu}:00.0", numa, cpus))
        card(
            root,
            "infiniband",
            f"mlx5_{i}",
            place(root, f"{top}/0000:{int(nic, 16) - 2:02x}:00.0/0000:{nic}:00.0", numa, cpus),
        )
    for i, (bus, numa) in enumerate((("29", 0), ("aa", 1))):
        address = place(
            root,
            f"pci0000:{int(bus, 16) - 1:02x}/0000:{int(bus, 16) - 1:02x}:01.0/0000:{bus}:00.0",
            numa,
            ("0-55", "56-111")[numa],
        )
        card(root, "infiniband", f"mlx5_{8 + i}", address)
        card(root, "net", f"ens{i}", address)
    virtual = place(root, "pci0000:28/0000:28:01.0/0000:29:00.2", 0, "0-55")
    (root / "bus/pci/devices" / virtual / "physfn").mkdir()
    card(root, "net", "ens0v0", virtual)
    (root / "class/net/lo").mkdir()
    return machine(root, [(address, (Link("nvlink", "switch", 18),)) for address in addresses])


def mi300x(root: Path) -> Machine:
    """Create two sockets with GPUs, each behind a switch of its own root complex, all linked."""
    for number, cpus in enumerate(("0-95", "96-191")):
        node(root, number, cpus, number)
    addresses = []
    for i, bus in enumerate(MI300X_GPUS):
        high = int(bus, 16)
        root_port = f"pci0000:{high - 5:02x}/0000:{high - 5:02x}:01.1"
        route = f"{root_port}/0000:{high - 2:02x}:00.0/0000:{high - 1:02x}:00.0/0000:{bus}:00.0"
        addresses.append(place(root, route, i // 4, ("0-95", "96-191")[i // 4]))
    return machine(
        root,
        [
            (one, tuple(Link("xgmi", other, 1) for other in addresses if other != one))
            for one in addresses
        ],
    )


def two_sockets(root: Path) -> Machine:
    """Create four GPUs without links: a pair on one switch, a pair on one root complex."""
    node(root, 0, "0-15", 0)
    node(root, 1, "16-31", 1)
    switch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    addresses = [
        place(root, f"{switch}/0000:3c:04.0/0000:3d:00.0", 0, "0-15"),
        place(root, f"{switch}/0000:3c:08.0/0000:3e:00.0", 0, "0-15"),
        place(root, "pci0000:d7/0000:d7:00.0/0000:d8:00.0", 1, "16-31"),
        place(root, "pci0000:d7/0000:d7:02.0/0000:d9:00.0", 1, "16-31"),
    ]
    card(root, "net", "eno1", place(root, "pci0000:00/0000:00:1c.0/0000:01:00.0", 0, "0-15"))
    return machine(root, [(address, ()) for address in addresses])


def mixed(root: Path) -> Machine:
    """Create a virtual machine without NUMA information.

    It has two linked NVIDIA GPUs, one AMD GPU, and one that the kernel does not show.
    """
    one = place(root, "pci0000:00/0000:00:05.0", -1, "0-7")
    other = place(root, "pci0000:00/0000:00:06.0", -1, "0-7")
    third = place(root, "pci0001:00/0001:00:01.0", -1, "")
    pair = [(one, (Link("nvlink", other, 4),)), (other, (Link("nvlink", one, 4),))]
    return machine(root, [*pair, (third, (Link("xgmi", "0000:99:00.0", 1),)), ("0000:77:00.0", ())])
