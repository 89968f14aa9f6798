"""A memory driver over host memory: the calls, handles and errors of a device, with real bytes.

Physical memory is a memfd, mapping is `mmap` with MAP_FIXED and MAP_SHARED: one memory mapped twice
shows the same bytes, memory moves between addresses without a copy, and a descriptor carries it
into another process. An address without memory cannot be touched (SIGSEGV), as on a device.
Tests: tests/unit/test_host_driver.py.
"""

import ctypes
import mmap
import os
import threading
from typing import Final

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.held import Held

GRANULARITY: Final = 2 << 20
DEVICE_BYTES: Final = 16 << 30
MAP_FIXED: Final = 0x10
MAP_NORESERVE: Final = 0x4000
PROT_NONE: Final = 0
FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class HostDriver:
    """The MemoryDriver of host memory. Each of `devices` devices has `device_bytes` bytes.

    Memory that a process adopts counts where it was created, not a second time.
    """

    name = "host"
    alignment = 64

    def __init__(
        self, devices: int = 1, device_bytes: int = DEVICE_BYTES, granularity: int = GRANULARITY
    ) -> None:
        if granularity <= 0 or granularity % mmap.PAGESIZE:
            raise self._error(
                Cause.INVALID_VALUE,
                "open",
                f"granularity {granularity} is not a positive multiple of {mmap.PAGESIZE} bytes",
            )
        self._granularity = granularity
        self._device_bytes = device_bytes
        self._held = Held(self.name)
        self._lock = threading.Lock()
        self._next_handle = 1
        self._files: dict[int, int] = {}
        self._created: dict[int, tuple[int, int]] = {}
        self.used = [0] * devices

    def granularity(self, device: int) -> int:
        """Return the granularity that the driver was opened with. Raises INVALID_DEVICE."""
        self._check_device("granularity", device)
        return self._granularity

    def create(self, device: int, size: int) -> int:
        """Create a memfd. Raises OUT_OF_MEMORY, INVALID_VALUE (size), INVALID_DEVICE."""
        self._check_device("create", device)
        self._held.check_size("create", size, self._granularity)
        with self._lock:
            left = self._device_bytes - self.used[device]
            if size > left:
                text = f"{size} bytes are wanted, {left} of {self._device_bytes} are free"
                raise self._error(Cause.OUT_OF_MEMORY, "create", text)
            self.used[device] += size
        try:
            descriptor = os.memfd_create("muster", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        except OSError as error:
            with self._lock:
                self.used[device] -= size
            raise self._error(Cause.OUT_OF_MEMORY, "create", str(error)) from error
        return self._add(device, size, descriptor, created=True)

    def export(self, handle: int) -> int:
        """Return a duplicate of the memfd's descriptor. Raises INVALID_HANDLE."""
        self._held.physical("export", handle)
        return os.dup(self._files[handle])

    def adopt(self, device: int, descriptor: int, size: int) -> int:
        """Return a handle of the memfd.

        Raises INVALID_HANDLE, INVALID_VALUE if it has other bytes.
        """
        self._check_device("adopt", device)
        self._held.check_descriptor("adopt", descriptor)
        self._held.check_size("adopt", size, self._granularity)
        have = os.fstat(descriptor).st_size
        if have != size:
            text = f"descriptor {descriptor} has {have} bytes, not {size}"
            raise self._error(Cause.INVALID_VALUE, "adopt", text)
        return self._add(device, size, os.dup(descriptor), created=False)

    def release(self, handle: int) -> None:
        """Close the memfd. Its bytes count as used until it is unmapped. Raises INVALID_HANDLE."""
        self._held.take_handle("release", handle)
        os.close(self._files.pop(handle))
        self._settle(handle)

    def reserve(self, size: int) -> int:
        """Reserve addresses that no access may touch. Raises OUT_OF_MEMORY, INVALID_VALUE."""
        self._held.check_size("reserve", size, self._granularity)
        # The kernel aligns to pages only: reserve more, and give the ends back.
        whole = size + self._granularity
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        begin = self._mmap(
            call="reserve", address=None, size=whole, access=PROT_NONE, flags=flags, descriptor=-1
        )
        address = -(-begin // self._granularity) * self._granularity
        if address > begin:
            _libc.munmap(begin, address - begin)
        if address + size < begin + whole:
            _libc.munmap(address + size, begin + whole - address - size)
        self._held.add_range(address, size)
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Give the range back. Raises INVALID_VALUE, ALREADY_MAPPED."""
        self._held.take_range("unreserve", address, size)
        _libc.munmap(address, size)

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        """Map the memfd. Raises INVALID_HANDLE, INVALID_VALUE, ALREADY_MAPPED, INVALID_DEVICE."""
        self._check_device("map", device)
        self._held.claim("map", address, size, handle)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_SHARED | MAP_FIXED
        try:
            self._mmap(
                call="map",
                address=address,
                size=size,
                access=access,
                flags=flags,
                descriptor=self._files[handle],
            )
        except DeviceError:
            self._held.drop(address)
            raise

    def unmap(self, address: int, size: int) -> None:
        """Remove whole mappings. Raises NOT_MAPPED, INVALID_VALUE."""
        taken = self._held.take_mappings("unmap", address, size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
        for mapping in taken:
            self._mmap(
                call="unmap",
                address=mapping.address,
                size=mapping.size,
                access=PROT_NONE,
                flags=flags,
                descriptor=-1,
            )
            self._settle(mapping.handle)

    def _add(self, device: int, size: int, descriptor: int, *, created: bool) -> int:
        with self._lock:
            handle = self._next_handle
            self._next_handle += 1
            self._files[handle] = descriptor
            if created:
                self._created[handle] = (device, size)
        self._held.add_handle(handle, device, size)
        return handle

    def _settle(self, handle: int) -> None:
        """Count memory as free once it has neither a handle nor a mapping."""
        with self._lock:
            if handle in self._files or self._held.is_mapped(handle):
                return
            device, size = self._created.pop(handle, (0, 0))
            self.used[device] -= size

    def _mmap(
        self, call: str, address: int | None, size: int, access: int, flags: int, descriptor: int
    ) -> int:
        found = _libc.mmap(address, size, access, flags, descriptor, 0)
        if found == FAILED:
            code = ctypes.get_errno()
            raise DeviceError(
                Cause.OUT_OF_MEMORY,
                call,
                driver=self.name,
                code=code,
                text=f"mmap: {os.strerror(code)}",
                on=f"{size} bytes",
            )
        return int(found)

    def _check_device(self, call: str, device: int) -> None:
        if not 0 <= device < len(self.used):
            text = f"device {device} of {len(self.used)} devices"
            raise self._error(Cause.INVALID_DEVICE, call, text)

    def _error(self, cause: Cause, call: str, text: str) -> DeviceError:
        return DeviceError(cause, call, driver=self.name, text=text)
