"""The interfaces that a pool uses: the driver of a device, and the source of memory.

Drivers: `cuda_driver.py`, `hip_driver.py`, `level_zero_driver.py`, and `host_driver.py`, which runs
on any machine. Sources of memory: `LocalGrants` here, and the node's broker.
"""

from typing import Protocol


class MemoryDriver(Protocol):
    """Physical memory and address ranges. Sizes are bytes; every method raises DeviceError."""

    name: str
    alignment: int

    def granularity(self, device: int) -> int:
        """Return the bytes of which every piece of physical memory is a multiple."""

    def create(self, device: int, size: int) -> int:
        """Create physical memory and return its handle. Raises OUT_OF_MEMORY, INVALID_VALUE."""

    def export(self, handle: int) -> int:
        """Return a new file descriptor of the memory, which the caller closes."""

    def adopt(self, device: int, descriptor: int, size: int) -> int:
        """Return a handle of exported memory. The descriptor stays the caller's."""

    def release(self, handle: int) -> None:
        """Give the handle up. The memory lives until the last handle and mapping are gone."""

    def reserve(self, size: int) -> int:
        """Return the address of a range of `size` bytes without memory."""

    def unreserve(self, address: int, size: int) -> None:
        """Give back a range in which nothing is mapped."""

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        """Map all of the handle's memory at the address, readable and writable."""

    def unmap(self, address: int, size: int) -> None:
        """Remove whole mappings; the memory stays with its handle."""


class Grants(Protocol):
    """The source of a pool's physical memory."""

    def grant(self, device: int, size: int) -> int:
        """Return a handle of `size` bytes. Raises DeviceError OUT_OF_MEMORY if it is refused."""

    def give_back(self, handle: int) -> None:
        """Return memory that no address maps any more."""


class LocalGrants:
    """Memory that this process creates itself, without a broker."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    def grant(self, device: int, size: int) -> int:
        """Create memory of the device."""
        return self._driver.create(device, size)

    def give_back(self, handle: int) -> None:
        """Release the memory."""
        self._driver.release(handle)
