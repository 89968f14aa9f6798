"""Memory of the devices of one node, for the memory broker and the weight server.

`HostMemory` serves host pools, and stands for device memory on simulated devices: real bytes of a
memfd with the size of a device's granularity. It can revoke: a truncated memfd has no pages,
whichever process holds a copy, and the seals keep a holder from growing it. `VendorMemory` is
device memory of a vendor's driver (libs/job/memory/*_driver.py). It makes no context, cannot revoke
memory that another process imported, and cannot export memory for reading only. Each piece keeps
one exported descriptor, so that a copy of it costs no driver call. Tests:
tests/integration/test_memory_broker.py, tests/integration/test_gms.py,
tests/vendors/test_broker_memory.py, tests/vendors/test_weight_memory.py.
"""

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from libs.job.device.cuda import Cuda
from libs.job.device.errors import Cause, DeviceError
from libs.job.device.hip import Hip
from libs.job.device.level_zero import LevelZero
from libs.job.device.vendor import Vendor
from libs.job.memory.cuda_driver import CudaDriver
from libs.job.memory.driver import MemoryDriver
from libs.job.memory.hip_driver import HipDriver
from libs.job.memory.level_zero_driver import LevelZeroDriver
from services.node_agent.memory import numa_policy
from services.node_agent.memory.grants import HOST

GRANULARITY: Final = 2 << 20
# The driver of host memory.
HOST_DRIVER: Final = "host"


class Device(msgspec.Struct, frozen=True):
    """A device of the node by its number in this process (HOST: host memory).

    `driver` is host, cuda, hip or level_zero. `uuid` and `pci_bus` are those of `muster gpus`.
    """

    number: int
    driver: str
    bytes: int
    uuid: str = ""
    pci_bus: str = ""


class Piece(Protocol):
    """Memory that exists. `descriptor` is this process's own."""

    descriptor: int

    def readable(self) -> int:
        """Return a new descriptor for a reader, for reading only if the driver has that."""
        ...

    def free(self) -> None:
        """Give the memory up. Raises DeviceError."""


class Source(Protocol):
    """A creator of memory with one driver. Every method raises DeviceError."""

    revocable: bool

    def granularity(self, device: Device) -> int: ...
    def create(self, device: Device, size: int, numa: Sequence[int]) -> Piece: ...
    def restore(self, device: Device, descriptor: int, size: int) -> Piece:
        """Return the piece of an earlier broker; takes the descriptor. Makes no driver call."""


class HostPiece:
    """A memfd; host memory is also pinned, where the limit on locked memory allows it."""

    def __init__(self, descriptor: int, pinned: numa_policy.Pinned | None) -> None:
        self.descriptor = descriptor
        self.pinned = pinned

    def readable(self) -> int:
        """Return a descriptor that maps the memory for reading only."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def free(self) -> None:
        """Free the pages, also those that a holder still maps: it gets SIGBUS."""
        if self.pinned is not None:
            self.pinned.release()
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


class HostMemory:
    """Host memory in memfds."""

    revocable = True

    def granularity(self, device: Device) -> int:
        return GRANULARITY

    def create(self, device: Device, size: int, numa: Sequence[int]) -> HostPiece:
        """Create memory; its pages are allocated now, on these memory nodes if they have room.

        Raises DeviceError (OUT_OF_MEMORY).
        """
        descriptor = -1
        try:
            descriptor = os.memfd_create("muster-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            # Without this a process that may only read could open its descriptor again to write.
            os.fchmod(descriptor, 0o600)
            numa_policy.allocate(descriptor, size, numa)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise DeviceError(
                Cause.OUT_OF_MEMORY,
                "fallocate",
                driver=HOST_DRIVER,
                code=error.errno or 0,
                text=error.strerror or "",
                on=f"{size} bytes",
            ) from None
        return self.restore(device, descriptor, size)

    def restore(self, device: Device, descriptor: int, size: int) -> HostPiece:
        pinned = numa_policy.pinned(descriptor, size) if device.number == HOST else None
        return HostPiece(descriptor, pinned)


class VendorPiece:
    """Memory of a vendor's driver. Without a `handle` an earlier broker created it."""

    def __init__(self, driver: MemoryDriver, descriptor: int, handle: int | None) -> None:
        self.driver = driver
        self.descriptor = descriptor
        self.handle = handle

    def readable(self) -> int:
        """Return a descriptor like every other: drivers have none for reading only."""
        return os.dup(self.descriptor)

    def free(self) -> None:
        """Release the memory; a process that imported it keeps it until it ends."""
        if self.handle is not None:
            self.driver.release(self.handle)
        os.close(self.descriptor)


class VendorMemory:
    """Device memory of one vendor. The driver is opened at the first use."""

    revocable = False

    def __init__(self, vendor: Vendor, driver: MemoryDriver) -> None:
        self.vendor = vendor
        self.driver = driver
        self._ordinals: dict[str, int] = {}

    def granularity(self, device: Device) -> int:
        return self.driver.granularity(self._ordinal(device))

    def create(self, device: Device, size: int, numa: Sequence[int]) -> VendorPiece:
        handle = self.driver.create(self._ordinal(device), size)
        try:
            descriptor = self.driver.export(handle)
        except DeviceError as error:
            if error.cause != Cause.HANGS:
                with suppress(DeviceError):
                    self.driver.release(handle)
            raise
        return VendorPiece(self.driver, descriptor, handle)

    def restore(self, device: Device, descriptor: int, size: int) -> VendorPiece:
        return VendorPiece(self.driver, descriptor, None)

    def _ordinal(self, device: Device) -> int:
        """Return the driver's number of a device in this process. Raises DeviceError."""
        if not self._ordinals:
            for found in self.vendor.devices():
                self._ordinals |= {found.uuid: found.ordinal, found.pci_bus: found.ordinal}
        for name in (device.uuid, device.pci_bus.lower()):
            if name and name in self._ordinals:
                return self._ordinals[name]
        text = f"the driver shows no device {device.uuid} at {device.pci_bus or 'any address'}"
        raise DeviceError(Cause.INVALID_DEVICE, "devices", driver=self.vendor.driver, text=text)


def _cuda() -> Source:
    vendor = Cuda()
    return VendorMemory(vendor, CudaDriver(vendor))


def _hip() -> Source:
    vendor = Hip()
    return VendorMemory(vendor, HipDriver(vendor))


def _level_zero() -> Source:
    vendor = LevelZero()
    return VendorMemory(vendor, LevelZeroDriver(vendor))


DRIVERS: Final[Mapping[str, Callable[[], Source]]] = {
    HOST_DRIVER: HostMemory,
    "cuda": _cuda,
    "hip": _hip,
    "level_zero": _level_zero,
}
# The driver of each vendor's devices.
DRIVER_OF: Final = {
    "nvidia": "cuda",
    "amd": "hip",
    "intel": "level_zero",
    "simulated": HOST_DRIVER,
}


def source_of(name: str) -> Source:
    """Return the memory of this driver. Raises ValueError for another name."""
    if name not in DRIVERS:
        raise ValueError(f"driver {name!r} gives no memory: use {', '.join(DRIVERS)}")
    return DRIVERS[name]()
