"""The topology of one machine: the paths between its GPUs and network cards.

Pure. The words are those of `nvidia-smi topo -m`. A path is named after its worst part.
"""

from typing import Final

import msgspec

SELF: Final = "X"
# At most one PCIe switch; several, but no host bridge; one host bridge; the host bridges of one
# NUMA node; more than one node.
PIX: Final = "PIX"
PXB: Final = "PXB"
PHB: Final = "PHB"
NODE: Final = "NODE"
SYS: Final = "SYS"
UNKNOWN: Final = "?"
# Paths from the nearest to the farthest. An unknown path is none of them.
NEARNESS: Final = (PIX, PXB, PHB, NODE, SYS)


class Spot(msgspec.Struct, frozen=True):
    """A GPU or a network card.

    `numa` is its NUMA node; -1: unknown. `cpus` ("0-55") are the CPUs near to it. `nearest` are the
    nearest GPUs of a network card.
    """

    name: str
    kind: str
    device: str
    pci_bus: str
    numa: int = -1
    cpus: str = ""
    nearest: tuple[str, ...] = ()


class RdmaPort(msgspec.Struct, frozen=True):
    """A port of an RDMA device.

    Empty texts are unknown. `unknown` are the counters that exist and cannot be read; they have no
    value in `counters`.
    """

    device: str
    port: int
    state: str = ""
    physical: str = ""
    rate: str = ""
    layer: str = ""
    gid: str = ""
    counters: dict[str, int] = {}
    unknown: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """The spots of a machine and the paths between them.

    `paths[i][j]` is a word above, NV with the number of links, or XGMI. The topology of a simulated
    node is invented. `rdma` are the RDMA ports, and `no_verbs` says why programs cannot use them.
    """

    spots: tuple[Spot, ...] = ()
    paths: tuple[tuple[str, ...], ...] = ()
    simulated: bool = False
    rdma: tuple[RdmaPort, ...] = ()
    no_verbs: str = ""
