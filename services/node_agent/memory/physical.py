"""Physical memory of one node, as the weight server creates it and takes it back.

`HostMemory` stands for device memory on simulated devices: real bytes of a memfd with the size of
the device's granularity. It can revoke: a truncated memfd has no pages for any process that holds a
copy, and its seals keep a holder from growing it. `VendorMemory` is device memory of a vendor's
driver. It makes no context; it cannot revoke memory that another process imported, and cannot
export memory for reading only. Tests: tests/integration/test_gms.py,
tests/vendors/test_physical.py, tests/gpu/test_weights.py.
"""

import fcntl
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.cuda_driver import CudaDriver
from libs.job.memory.driver import MemoryDriver
from libs.job.memory.hip_driver import HipDriver
from libs.job.memory.level_zero_driver import LevelZeroDriver

GRANULARITY: Final = 2 << 20


class Physical(Protocol):
    """The part of a MemoryDriver that the broker uses, and whether memory can be revoked."""

    name: str
    revocable: bool

    def granularity(self, device: int) -> int: ...
    def create(self, device: int, size: int) -> int: ...
    def export(self, handle: int) -> int: ...
    def export_readable(self, handle: int) -> int: ...
    def release(self, handle: int) -> None: ...
    def restore(self, device: int, descriptor: int, size: int) -> int: ...


class HostMemory:
    """Host memory in memfds. A handle is the broker's own descriptor."""

    name = "host"
    revocable = True

    def granularity(self, device: int) -> int:
        return GRANULARITY

    def create(self, device: int, size: int) -> int:
        """Create memory; its pages are allocated now. Raises DeviceError (OUT_OF_MEMORY)."""
        descriptor = -1
        try:
            descriptor = os.memfd_create("muster-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            # Without this a process that may only read could open its descriptor again to write.
            os.fchmod(descriptor, 0o600)
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise DeviceError(
                Cause.OUT_OF_MEMORY,
                "fallocate",
                driver=self.name,
                code=error.errno or 0,
                text=error.strerror or "",
                on=f"{size} bytes",
            ) from None
        return descriptor

    def export(self, handle: int) -> int:
        return os.dup(handle)

    def export_readable(self, handle: int) -> int:
        """Return a descriptor that maps the memory for reading only."""
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)

    def release(self, handle: int) -> None:
        """Free the pages, also those that a holder still maps: it gets SIGBUS."""
        os.ftruncate(handle, 0)
        os.close(handle)

    def restore(self, device: int, descriptor: int, size: int) -> int:
        """Return the handle of memory that an earlier broker created; takes the descriptor."""
        return descriptor


class VendorMemory:
    """Device memory of one vendor's driver. Devices have the driver's numbers.

    Memory of an earlier server has a number below 0 and no handle of the driver: its descriptor is
    all that is needed to pass it on and to let it go.
    """

    revocable = False

    def __init__(self, driver: MemoryDriver) -> None:
        self.driver = driver
        self.name = driver.name
        self._restored: dict[int, int] = {}
        self._numbers = itertools.count(-1, step=-1)

    def granularity(self, device: int) -> int:
        return self.driver.granularity(device)

    def create(self, device: int, size: int) -> int:
        """Create memory. Raises DeviceError."""
        return self.driver.create(device, size)

    def export(self, handle: int) -> int:
        if handle in self._restored:
            return os.dup(self._restored[handle])
        return self.driver.export(handle)

    def export_readable(self, handle: int) -> int:
        """Return a descriptor like every other: drivers have none for reading only."""
        return self.export(handle)

    def release(self, handle: int) -> None:
        """Let the memory go. A process that imported it keeps it until it ends."""
        if handle in self._restored:
            os.close(self._restored.pop(handle))
        else:
            self.driver.release(handle)

    def restore(self, device: int, descriptor: int, size: int) -> int:
        """Return a number for memory of an earlier server; takes the descriptor."""
        number = next(self._numbers)
        self._restored[number] = descriptor
        return number


DRIVERS: Final[Mapping[str, Callable[[], Physical]]] = {
    "host": HostMemory,
    "cuda": lambda: VendorMemory(CudaDriver()),
    "hip": lambda: VendorMemory(HipDriver()),
    "level_zero": lambda: VendorMemory(LevelZeroDriver()),
}


def physical_of(name: str) -> Physical:
    """Return the memory of this driver: `host` (also for simulated devices), `cuda`, `hip`,
    `level_zero`.
    """
    if name not in DRIVERS:
        raise ValueError(
            f"driver {name!r} is unknown to the weight server: use {', '.join(DRIVERS)}"
        )
    return DRIVERS[name]()
