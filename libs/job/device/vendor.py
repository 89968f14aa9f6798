"""The interface that each vendor's module offers to `context.py`, and what a device is.

Indexes (the ordinals of devices) are those of this process: the job's visible devices of that
vendor, from 0.
"""

from enum import StrEnum
from typing import NamedTuple, Protocol


class Device(NamedTuple):
    """One device that this process can use.

    Attributes:
        vendor: `nvidia`, `amd` or `intel`.
        ordinal: the number by which the vendor's driver knows it in this process.
        uuid: the driver's unique id; for NVIDIA it is the one that `muster gpus` shows.
        name: the product's name.
        pci_bus: its PCI address (`0000:1b:00.0`), the same in `muster gpus` for all vendors;
            empty if the driver does not tell.
        memory_bytes: its whole memory.
    """

    vendor: str
    ordinal: int
    uuid: str
    name: str
    pci_bus: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.vendor} device {self.ordinal}"


class Limit(StrEnum):
    """Sizes of a context, in bytes: the heap of `malloc` in kernels, and one thread's stack."""

    HEAP = "heap"
    STACK = "stack"


class Vendor(Protocol):
    """One vendor's driver in this process. Every method may raise DeviceError."""

    vendor: str
    driver: str

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that this process can use; the first call initialises the driver."""
        ...

    def retain(self, index: int) -> None:
        """Use the primary context of the device; the first use in the process creates it."""
        ...

    def release(self, index: int) -> None:
        """End one use; the last one lets the driver destroy the context."""
        ...

    def limit(self, index: int, limit: Limit) -> int:
        """Return the limit of the device's context, in bytes."""
        ...

    def set_limit(self, index: int, limit: Limit, size: int) -> None:
        """Ask for a limit; the driver may round it up."""
        ...

    def memory(self, index: int) -> tuple[int, int]:
        """Return the free and the whole memory of the device in bytes."""
        ...

    def reaches(self, index: int, peer: int) -> bool:
        """Return whether the device can read and write the peer's memory directly."""
        ...

    def open_peer(self, index: int, peer: int) -> None:
        """Let the device read and write the peer's memory; both contexts are in use."""
        ...

    def copy(
        self, destination: int, to_address: int, source: int, from_address: int, size: int
    ) -> None:
        """Copy between two devices of this vendor and wait for the end. Indexes and addresses."""
        ...

    def read(self, index: int, address: int, into: bytearray) -> None:
        """Copy `len(into)` bytes of the device's memory to the host."""
        ...

    def write(self, index: int, address: int, data: bytes | bytearray) -> None:
        """Copy `data` from the host to the device's memory."""
        ...
