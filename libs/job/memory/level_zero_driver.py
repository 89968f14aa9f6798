"""Physical memory and mappings of Intel devices, by Level Zero's virtual memory calls.

Export and adoption of physical memory came with Level Zero 1.15 (loader 1.27, December 2025). The
descriptor is a dmabuf: `zePhysicalMemGetProperties` gives it, `zePhysicalMemCreate` takes it. Older
loaders lack the function: `export` then raises DRIVER_TOO_OLD, and pools work inside of one
process only. Level Zero destroys physical memory at once, also while it is mapped; this driver
waits for the last unmapping, as the other vendors do.
Tests: tests/vendors/test_memory_drivers.py over a library built from C. Not run on an Intel GPU.
"""

import ctypes
import threading
from ctypes import c_size_t, c_void_p
from typing import Final

from libs.job.device import level_zero_layouts as layouts
from libs.job.device.errors import Cause, DeviceError
from libs.job.device.level_zero import LevelZero
from libs.job.memory.held import Held

DMA_BUF: Final = 2
READ_WRITE: Final = 1
# The page size depends on the size that is asked for; pools ask for such pieces and larger ones.
TYPICAL_BYTES: Final = 2 << 20


class LevelZeroDriver:
    """The MemoryDriver of Intel devices. Sizes are in bytes; methods raise DeviceError."""

    name = "level_zero"
    alignment = 64

    def __init__(self, level_zero: LevelZero | None = None) -> None:
        self.level_zero = level_zero or LevelZero()
        self._held = Held(self.name)
        self._granularities: dict[int, int] = {}
        self._lock = threading.Lock()
        self._to_destroy: set[int] = set()

    def granularity(self, device: int) -> int:
        """Return the page size for pieces of 2 MiB."""
        if device not in self._granularities:
            found = c_size_t()
            vendor = self.level_zero

            def ask() -> None:
                owners = vendor.context(), vendor.handle(device)
                name = "zeVirtualMemQueryPageSize"
                vendor.driver_library.invoke(name, *owners, TYPICAL_BYTES, ctypes.byref(found))

            vendor.driver_library.run(ask)
            self._granularities[device] = found.value
        return self._granularities[device]

    def create(self, device: int, size: int) -> int:
        """Create memory and return its handle.

        Raises OUT_OF_MEMORY, INVALID_VALUE (size), INVALID_DEVICE.
        """
        self._held.check_size("zePhysicalMemCreate", size, self.granularity(device))
        extension = layouts.ExternalMemory(layouts.EXTERNAL_MEMORY_EXPORT_DESC, None, DMA_BUF)
        return self._create(device, size, extension, f"device {device}, {size} bytes")

    def export(self, handle: int) -> int:
        """Return a new descriptor, which the caller closes (zePhysicalMemGetProperties).

        Raises DRIVER_TOO_OLD before Level Zero 1.15.
        """
        name = "zePhysicalMemGetProperties"
        self._held.physical(name, handle)
        exported = layouts.ExternalMemory(layouts.EXTERNAL_MEMORY_EXPORT_FD, None, DMA_BUF, -1)
        properties = layouts.PhysicalProperties(
            layouts.PHYSICAL_MEM_PROPERTIES, ctypes.addressof(exported)
        )
        vendor = self.level_zero

        def ask() -> None:
            arguments = vendor.context(), handle, ctypes.byref(properties)
            vendor.driver_library.invoke(name, *arguments, on=f"handle {handle:#x}")

        vendor.driver_library.run(ask)
        return int(exported.fd)

    def adopt(self, device: int, descriptor: int, size: int) -> int:
        """Return a handle of exported memory; the descriptor stays the caller's.

        An older driver ignores the descriptor and would make new memory: DRIVER_TOO_OLD instead.
        """
        name = "zePhysicalMemCreate"
        self._held.check_descriptor(name, descriptor)
        self._held.check_size(name, size, self.granularity(device))
        if not self.level_zero.driver_library.run(
            lambda: self.level_zero.driver_library.has("zePhysicalMemGetProperties")
        ):
            needs = self.level_zero.driver_library.description.needs
            text = f"this library cannot import memory; {needs}"
            raise self.level_zero.driver_library.refused(Cause.DRIVER_TOO_OLD, name, text)
        extension = layouts.ExternalMemory(
            layouts.EXTERNAL_MEMORY_IMPORT_FD, None, DMA_BUF, descriptor
        )
        return self._create(device, size, extension, f"file descriptor {descriptor}")

    def _create(self, device: int, size: int, extension: layouts.ExternalMemory, on: str) -> int:
        description = layouts.PhysicalDescription(
            layouts.PHYSICAL_MEM_DESC, ctypes.addressof(extension), 0, size
        )
        made = c_void_p()
        vendor = self.level_zero

        def create() -> None:
            arguments = ctypes.byref(description), ctypes.byref(made)
            owners = vendor.context(), vendor.handle(device)
            vendor.driver_library.invoke("zePhysicalMemCreate", *owners, *arguments, on=on)

        vendor.driver_library.run(create)
        handle = made.value or 0
        self._held.add_handle(handle, device, size)
        return handle

    def release(self, handle: int) -> None:
        """Give the handle up; the memory is destroyed after its last mapping."""
        physical = self._held.take_handle("zePhysicalMemDestroy", handle)
        with self._lock:
            self._to_destroy.add(handle)
        try:
            self._destroy_unmapped(handle)
        except DeviceError:
            self._held.add_handle(handle, physical.device, physical.size)
            raise

    def reserve(self, size: int) -> int:
        """Reserve addresses."""
        self._held.check_size("zeVirtualMemReserve", size, self.granularity(0))
        address = c_void_p()
        self._call("zeVirtualMemReserve", None, size, ctypes.byref(address), on=f"{size} bytes")
        made = address.value or 0
        self._held.add_range(made, size)
        return made

    def unreserve(self, address: int, size: int) -> None:
        """Give the addresses back. Raises ALREADY_MAPPED while memory is mapped in the range."""
        self._held.take_range("zeVirtualMemFree", address, size)
        try:
            self._call("zeVirtualMemFree", address, size, on=f"{address:#x}")
        except DeviceError:
            self._held.add_range(address, size)
            raise

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        """Map all of the handle's memory, readable and writable."""
        self._held.claim("zeVirtualMemMap", address, size, handle)
        try:
            arguments = address, size, handle, 0, READ_WRITE
            self._call("zeVirtualMemMap", *arguments, on=f"{size} bytes at {address:#x}")
        except DeviceError:
            self._held.drop(address)
            raise

    def unmap(self, address: int, size: int) -> None:
        """Remove the whole mappings of the range. The device must not use it any more."""
        taken = self._held.take_mappings("zeVirtualMemUnmap", address, size)
        for done, mapping in enumerate(taken):
            arguments = mapping.address, mapping.size
            try:
                self._call("zeVirtualMemUnmap", *arguments, on=f"{mapping.address:#x}")
            except DeviceError:
                self._held.put_back(taken[done:])
                raise
            self._destroy_unmapped(mapping.handle)

    def _destroy_unmapped(self, handle: int) -> None:
        """Destroy released memory that is not mapped any more; of two threads, one does it."""
        with self._lock:
            if handle not in self._to_destroy or self._held.is_mapped(handle):
                return
            self._to_destroy.discard(handle)
        self._call("zePhysicalMemDestroy", handle, on=f"handle {handle:#x}")

    def _call(self, name: str, *arguments: object, on: str) -> None:
        """Call a function whose first argument is the context."""
        vendor = self.level_zero
        vendor.driver_library.run(
            lambda: vendor.driver_library.invoke(name, vendor.context(), *arguments, on=on)
        )
