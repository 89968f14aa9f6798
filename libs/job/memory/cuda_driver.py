"""Physical memory and mappings of NVIDIA devices, by the driver's virtual memory calls.

Creating, exporting and adopting need no context: the broker makes none, and costs no device memory
of its own. Mapping makes the primary context of the device, which the job's process has anyway.
Memory is created with POSIX file descriptors as its only way to another process.
Tests: tests/vendors/test_memory_drivers.py over a library built from C, tests/gpu/test_memory.py.
"""

import ctypes
import threading
from ctypes import c_int, c_size_t, c_uint64, c_void_p
from typing import Final

from libs.job.device.cuda import AccessDescription, AllocationProperties, Cuda, Location
from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.held import Held

PINNED: Final = 1
POSIX_DESCRIPTOR: Final = 1
ON_DEVICE: Final = 1
MINIMUM: Final = 0
READ_WRITE: Final = 3
# CU_DEVICE_ATTRIBUTE_...
VIRTUAL_MEMORY: Final = 102
POSIX_EXPORT: Final = 103
RDMA_WITH_VIRTUAL_MEMORY: Final = 110


class CudaDriver:
    """The MemoryDriver of NVIDIA devices. Sizes are in bytes; methods raise DeviceError."""

    name = "cuda"
    alignment = 256

    def __init__(self, cuda: Cuda | None = None) -> None:
        self.cuda = cuda or Cuda()
        self._held = Held(self.name)
        self._granularities: dict[int, int] = {}
        self._properties: dict[int, AllocationProperties] = {}
        self._lock = threading.Lock()
        self._contexts: set[int] = set()

    def granularity(self, device: int) -> int:
        """Return the granularity of memory, 2 MiB on today's devices.

        Raises NOT_SUPPORTED if the device lacks virtual memory or its export.
        """
        if device not in self._granularities:
            properties = self._properties_of(device)
            found = c_size_t()
            arguments = ctypes.byref(found), ctypes.byref(properties), MINIMUM
            name = "cuMemGetAllocationGranularity"
            self.cuda.driver_library.call(name, *arguments, on=f"device {device}")
            self._granularities[device] = found.value
        return self._granularities[device]

    def create(self, device: int, size: int) -> int:
        """Create memory and return its handle.

        Raises OUT_OF_MEMORY, INVALID_VALUE (size), INVALID_DEVICE.
        """
        self._held.check_size("cuMemCreate", size, self.granularity(device))
        handle = c_uint64()
        arguments = ctypes.byref(handle), size, ctypes.byref(self._properties_of(device)), 0
        self.cuda.driver_library.call(
            "cuMemCreate", *arguments, on=f"device {device}, {size} bytes"
        )
        self._held.add_handle(handle.value, device, size)
        return handle.value

    def export(self, handle: int) -> int:
        """Return a new file descriptor of the memory, which the caller closes."""
        name = "cuMemExportToShareableHandle"
        self._held.physical(name, handle)
        descriptor = c_int(-1)
        self.cuda.driver_library.call(
            name,
            ctypes.addressof(descriptor),
            handle,
            POSIX_DESCRIPTOR,
            0,
            on=f"handle {handle:#x}",
        )
        return descriptor.value

    def adopt(self, device: int, descriptor: int, size: int) -> int:
        """Return a handle of exported memory; the descriptor stays the caller's.

        The driver does not tell the size: a wrong one is refused when the memory is mapped.
        """
        name = "cuMemImportFromShareableHandle"
        self._held.check_descriptor(name, descriptor)
        self._held.check_size(name, size, self.granularity(device))
        handle = c_uint64()
        arguments = ctypes.byref(handle), c_void_p(descriptor), POSIX_DESCRIPTOR
        self.cuda.driver_library.call(name, *arguments, on=f"file descriptor {descriptor}")
        self._held.add_handle(handle.value, device, size)
        return handle.value

    def release(self, handle: int) -> None:
        """Give the handle up.

        Mapped memory, and memory that others hold, stays until they let go.
        """
        physical = self._held.take_handle("cuMemRelease", handle)
        try:
            self.cuda.driver_library.call("cuMemRelease", handle, on=f"handle {handle:#x}")
        except DeviceError:
            self._held.add_handle(handle, physical.device, physical.size)
            raise

    def reserve(self, size: int) -> int:
        """Reserve addresses, aligned to the granularity of the first device."""
        self._held.check_size("cuMemAddressReserve", size, self.granularity(0))
        address = c_uint64()
        arguments = ctypes.byref(address), size, self.granularity(0), 0, 0
        self.cuda.driver_library.call("cuMemAddressReserve", *arguments, on=f"{size} bytes")
        self._held.add_range(address.value, size)
        return address.value

    def unreserve(self, address: int, size: int) -> None:
        """Give the addresses back. Raises ALREADY_MAPPED while memory is mapped in the range."""
        self._held.take_range("cuMemAddressFree", address, size)
        try:
            self.cuda.driver_library.call("cuMemAddressFree", address, size, on=f"{address:#x}")
        except DeviceError:
            self._held.add_range(address, size)
            raise

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        """Map all of the handle's memory, readable and writable."""
        self._held.claim("cuMemMap", address, size, handle)
        on = f"{size} bytes at {address:#x}"
        access = AccessDescription(Location(ON_DEVICE, device), READ_WRITE)
        invoke = self.cuda.driver_library.invoke

        def work() -> None:
            invoke("cuMemMap", address, size, 0, handle, 0, on=on)
            try:
                invoke("cuMemSetAccess", address, size, ctypes.byref(access), 1, on=on)
            except DeviceError:
                invoke("cuMemUnmap", address, size, on=on)
                raise

        try:
            self._need_context(device)
            self.cuda.driver_library.run(work)
        except DeviceError:
            self._held.drop(address)
            raise

    def unmap(self, address: int, size: int) -> None:
        """Remove the whole mappings of the range. The device must not use it any more."""
        taken = self._held.take_mappings("cuMemUnmap", address, size)
        for done, mapping in enumerate(taken):
            arguments = mapping.address, mapping.size
            try:
                self.cuda.driver_library.call("cuMemUnmap", *arguments, on=f"{mapping.address:#x}")
            except DeviceError:
                self._held.put_back(taken[done:])
                raise

    def close(self) -> None:
        """Give up the contexts that mapping needed. Nothing may be mapped any more."""
        with self._lock:
            while self._contexts:
                self.cuda.release(self._contexts.pop())

    def _need_context(self, device: int) -> None:
        with self._lock:
            if device not in self._contexts:
                self.cuda.retain(device)
                self._contexts.add(device)

    def _properties_of(self, device: int) -> AllocationProperties:
        """Return the properties of memory on the device. Calls the driver once per device."""
        found = self._properties.get(device)
        if found is None:
            for attribute, what in ((VIRTUAL_MEMORY, "virtual memory"), (POSIX_EXPORT, "export")):
                if not self.cuda.attribute(device, attribute):
                    text = f"the device does not support {what} of memory ranges"
                    raise self.cuda.driver_library.refused(
                        Cause.NOT_SUPPORTED, "cuDeviceGetAttribute", text, on=f"device {device}"
                    )
            found = AllocationProperties(PINNED, POSIX_DESCRIPTOR, Location(ON_DEVICE, device))
            rdma = self.cuda.attribute(device, RDMA_WITH_VIRTUAL_MEMORY)
            found.flags.gpu_direct_rdma = 1 if rdma else 0
            self._properties[device] = found
        return found
