"""Physical memory of one node, as the broker creates it and takes it back.

`HostMemory` serves host pools, and stands for device memory on simulated devices: real bytes of a
memfd with the size of the device's granularity. It can revoke: a truncated memfd has no pages for
any process that holds a copy, and its seals keep a holder from growing it. Vendors' drivers cannot
revoke memory that another process imported. Tests: tests/integration/test_memory_broker.py.
"""

import fcntl
import os
from typing import Final, Protocol

from libs.job.device.errors import Cause, DeviceError

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


def physical_of(name: str) -> Physical:
    """Return the memory of this driver: `host` (also for simulated devices)."""
    if name != "host":
        raise ValueError(f"driver {name!r} is unknown to the memory broker: use host")
    return HostMemory()
