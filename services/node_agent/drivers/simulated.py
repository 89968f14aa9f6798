"""Devices in name only, so that a laptop has a cluster whose jobs are real processes. It says so: vendor "simulated"."""

from collections.abc import Sequence
from typing import Final

from libs.common.model import Gpu, GpuId

VENDOR: Final = "simulated"
GIB: Final = 1 << 30


class SimulatedDriver:
    """See `drivers.Driver`. `held` may be filled by whoever plays a fault: a device, and what holds it."""

    simulated = True

    def __init__(self, node_id: str, count: int, model: str = "Simulated H100", memory_gib: int = 80) -> None:
        self.gpus = [Gpu(GpuId(f"GPU-{node_id}-{index}"), index, VENDOR, model, memory_gib * GIB) for index in range(count)]
        self.held: dict[GpuId, str] = {}

    async def inventory(self) -> Sequence[Gpu]:
        return self.gpus

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        return {uuid: self.held[uuid] for uuid in uuids if uuid in self.held}
