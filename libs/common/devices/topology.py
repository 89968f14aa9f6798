"""How the devices and network cards of one machine lie to each other, as its node tells it when it
is asked.

Pure. The words are those of `nvidia-smi topo -m`: a path is the worst part of the way between two.
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
# From the nearest on. What is not known is no path.
NEARNESS: Final = (PIX, PXB, PHB, NODE, SYS)


class Spot(msgspec.Struct, frozen=True):
    """A GPU or a network card.

    `numa` is -1 where the machine does not say, `cpus` ("0-55") are those near to it. Of a network
    card `nearest` are the GPUs that are nearest.
    """

    name: str
    kind: str
    device: str
    pci_bus: str
    numa: int = -1
    cpus: str = ""
    nearest: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True):
    """`paths[i][j]` is the way from one spot to another: a word above, NV with how many links, or
    XGMI.

    A simulated node's is made up.
    """

    spots: tuple[Spot, ...] = ()
    paths: tuple[tuple[str, ...], ...] = ()
    simulated: bool = False
