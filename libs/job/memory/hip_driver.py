"""Physical memory and mappings of AMD devices, by HIP's virtual memory calls.

They follow CUDA's, with four differences. HIP's handles are pointers that it does not check, so
`held.py` refuses stale ones before. Importing uses the current device. A descriptor is a dmabuf; up
to ROCm 7.0 it is passed by pointer (`Hip.imports_by_value`). And HIP has no attribute that is
numbered alike in all versions for virtual memory: a device without it fails in `granularity`.
Tests: tests/vendors/test_memory_drivers.py over a library built from C. Not run on an AMD GPU.
"""

import ctypes
from ctypes import c_int, c_size_t, c_void_p
from typing import Final

from libs.job.device.cuda import AccessDescription, AllocationProperties, Location
from libs.job.device.errors import DeviceError
from libs.job.device.hip import Hip
from libs.job.memory.held import Held

PINNED: Final = 1
POSIX_DESCRIPTOR: Final = 1
ON_DEVICE: Final = 1
MINIMUM: Final = 0
READ_WRITE: Final = 3


class HipDriver:
    """The MemoryDriver of AMD devices. Sizes are in bytes; methods raise DeviceError."""

    name = "hip"
    alignment = 4096

    def __init__(self, hip: Hip | None = None) -> None:
        self.hip = hip or Hip()
        self._held = Held(self.name)
        self._granularities: dict[int, int] = {}

    def granularity(self, device: int) -> int:
        """Return the granularity of memory. Raises NOT_SUPPORTED or INVALID_VALUE without it."""
        if device not in self._granularities:
            found = c_size_t()
            arguments = ctypes.byref(found), ctypes.byref(_properties(device)), MINIMUM
            name = "hipMemGetAllocationGranularity"
            self.hip.driver_library.call(name, *arguments, on=f"device {device}")
            self._granularities[device] = found.value
        return self._granularities[device]

    def create(self, device: int, size: int) -> int:
        """Create memory and return its handle.

        Raises OUT_OF_MEMORY, INVALID_VALUE (size or device).
        """
        self._held.check_size("hipMemCreate", size, self.granularity(device))
        handle = c_void_p()
        arguments = ctypes.byref(handle), size, ctypes.byref(_properties(device)), 0
        self.hip.driver_library.call(
            "hipMemCreate", *arguments, on=f"device {device}, {size} bytes"
        )
        made = handle.value or 0
        self._held.add_handle(made, device, size)
        return made

    def export(self, handle: int) -> int:
        """Return a new file descriptor of the memory, which the caller closes."""
        name = "hipMemExportToShareableHandle"
        self._held.physical(name, handle)
        descriptor = c_int(-1)
        self.hip.driver_library.call(
            name,
            ctypes.addressof(descriptor),
            handle,
            POSIX_DESCRIPTOR,
            0,
            on=f"handle {handle:#x}",
        )
        return descriptor.value

    def adopt(self, device: int, descriptor: int, size: int) -> int:
        """Return a handle of exported memory; the descriptor stays the caller's."""
        name = "hipMemImportFromShareableHandle"
        self._held.check_descriptor(name, descriptor)
        self._held.check_size(name, size, self.granularity(device))
        handle, pointed = c_void_p(), c_int(descriptor)
        given = descriptor if self.hip.imports_by_value() else ctypes.addressof(pointed)
        arguments = ctypes.byref(handle), c_void_p(given), POSIX_DESCRIPTOR
        self.hip.on_device(device, (name, *arguments))
        made = handle.value or 0
        self._held.add_handle(made, device, size)
        return made

    def release(self, handle: int) -> None:
        """Give the handle up.

        Mapped memory, and memory that others hold, stays until they let go.
        """
        physical = self._held.take_handle("hipMemRelease", handle)
        try:
            self.hip.driver_library.call("hipMemRelease", handle, on=f"handle {handle:#x}")
        except DeviceError:
            self._held.add_handle(handle, physical.device, physical.size)
            raise

    def reserve(self, size: int) -> int:
        """Reserve addresses, aligned to the granularity of the first device."""
        self._held.check_size("hipMemAddressReserve", size, self.granularity(0))
        address = c_void_p()
        arguments = ctypes.byref(address), size, self.granularity(0), None, 0
        self.hip.driver_library.call("hipMemAddressReserve", *arguments, on=f"{size} bytes")
        made = address.value or 0
        self._held.add_range(made, size)
        return made

    def unreserve(self, address: int, size: int) -> None:
        """Give the addresses back. Raises ALREADY_MAPPED while memory is mapped in the range."""
        self._held.take_range("hipMemAddressFree", address, size)
        try:
            self.hip.driver_library.call("hipMemAddressFree", address, size, on=f"{address:#x}")
        except DeviceError:
            self._held.add_range(address, size)
            raise

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        """Map all of the handle's memory, readable and writable."""
        self._held.claim("hipMemMap", address, size, handle)
        on = f"{size} bytes at {address:#x}"
        access = AccessDescription(Location(ON_DEVICE, device), READ_WRITE)
        invoke = self.hip.driver_library.invoke

        def work() -> None:
            invoke("hipSetDevice", device, on=f"device {device}")
            invoke("hipMemMap", address, size, 0, handle, 0, on=on)
            try:
                invoke("hipMemSetAccess", address, size, ctypes.byref(access), 1, on=on)
            except DeviceError:
                invoke("hipMemUnmap", address, size, on=on)
                raise

        try:
            self.hip.driver_library.run(work)
        except DeviceError:
            self._held.drop(address)
            raise

    def unmap(self, address: int, size: int) -> None:
        """Remove the whole mappings of the range. The device must not use it any more."""
        taken = self._held.take_mappings("hipMemUnmap", address, size)
        for done, mapping in enumerate(taken):
            arguments = mapping.address, mapping.size
            try:
                self.hip.driver_library.call("hipMemUnmap", *arguments, on=f"{mapping.address:#x}")
            except DeviceError:
                self._held.put_back(taken[done:])
                raise


def _properties(device: int) -> AllocationProperties:
    """Return the properties of memory on the device."""
    return AllocationProperties(PINNED, POSIX_DESCRIPTOR, Location(ON_DEVICE, device))
