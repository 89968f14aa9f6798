"""What a vendor's devices are asked, as one small protocol; `simulated.py` is the first driver.

A driver never blocks the event loop: one that calls a vendor's library does so in a child process with a deadline.
"""

from collections.abc import Sequence
from typing import Protocol

from libs.common.model import Gpu, GpuId


class Driver(Protocol):
    """The devices of one node."""

    @property
    def simulated(self) -> bool:
        """Whether the devices exist only in name; NodeRegistered says so."""
        ...

    async def inventory(self) -> Sequence[Gpu]:
        """Every device, by index."""
        ...

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        """Of these devices the ones that something still holds, and what: a holder, memory above its baseline."""
        ...
