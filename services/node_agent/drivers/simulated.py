"""Devices in name only, so that a laptop has a cluster whose jobs are real processes. It says so: vendor "simulated".

A node of them is built as real ones are: pairs behind a PCIe switch, half of them at each of two sockets, direct links among all where
the model has them. Its CPUs and its memory are in name only too.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libs.common import mig
from libs.common.model import Gpu, GpuId

VENDOR: Final = "simulated"
GIB: Final = 1 << 30
# What a node has of the host for each device, and when it has none.
CPUS_MILLI: Final = 14_000
HOST_BYTES: Final = 256 * GIB
SWITCH_GPUS: Final = 2
SOCKETS: Final = (0, 1)


class Card(NamedTuple):
    """What a model is known for. `links`: whether its devices are linked with each other."""

    compute_capability: tuple[int, int] = (0, 0)
    links: bool = False


# By a word of the model's name.
CARDS: Final = {
    "H100": Card((9, 0), True),
    "H200": Card((9, 0), True),
    "A100": Card((8, 0), True),
    "V100": Card((7, 0), True),
    "A10": Card((8, 6)),
    "L4": Card((8, 9)),
    "T4": Card((7, 5)),
    "MI300X": Card(links=True),
}


class SimulatedDriver:
    """See `drivers.Driver`. `held` may be filled by whoever plays a fault: a device, and what holds it."""

    simulated = True

    def __init__(self, node_id: str, count: int, model: str = "Simulated H100", memory_gib: int = 80) -> None:
        self.gpus = [_device(node_id, index, count, model, memory_gib) for index in range(count)]
        self.held: dict[GpuId, str] = {}

    @property
    def cpus_milli(self) -> int:
        return CPUS_MILLI * max(1, len(self.gpus))

    @property
    def memory_bytes(self) -> int:
        return HOST_BYTES * max(1, len(self.gpus))

    async def inventory(self) -> Sequence[Gpu]:
        return self.gpus

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        return {uuid: self.held[uuid] for uuid in uuids if uuid in self.held}


def _device(node_id: str, index: int, count: int, model: str, memory_gib: int) -> Gpu:
    words = model.upper().split()
    word = next((word for word in CARDS if word in words), "")
    card = CARDS.get(word, Card())
    return Gpu(
        GpuId(f"GPU-{node_id}-{index}"),
        index,
        VENDOR,
        model,
        memory_gib * GIB,
        card.compute_capability,
        pci_bus=f"0000:{index + 1:02x}:00.0",
        numa=index * len(SOCKETS) // count,
        switch=f"switch-{index // SWITCH_GPUS}",
        links="all" if card.links else "",
        mig_profiles=tuple(mig.CARDS.get(f"{word} {memory_gib}GB", ())),
    )
