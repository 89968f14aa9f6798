"""Intel's Level Zero interface: the table of its functions, and devices, contexts and copies.

Level Zero differs from CUDA and HIP. One context holds all devices of a driver; this module makes
one per process. There is no current device: every call names context and device. It has no heap and
no stack limit and does not tell how much memory is free: those raise NOT_SUPPORTED. Peers need not
be opened. Copies run in a synchronous command list of each device.
Tests: tests/vendors/test_contexts.py.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any, Final
from uuid import UUID

from libs.job.device import level_zero_layouts as layouts
from libs.job.device.driver_library import Description, Library, decoded
from libs.job.device.errors import Cause
from libs.job.device.users import Users
from libs.job.device.vendor import Device, Limit

GPU: Final = 1
GPU_ONLY: Final = 1
SYNCHRONOUS: Final = 1

FUNCTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "zeInit": (c_uint32,),
    "zeDriverGet": (POINTER(c_uint32), c_void_p),
    "zeDeviceGet": (c_void_p, POINTER(c_uint32), c_void_p),
    "zeDeviceGetProperties": (c_void_p, POINTER(layouts.DeviceProperties)),
    "zeDeviceGetMemoryProperties": (c_void_p, POINTER(c_uint32), c_void_p),
    "zeDevicePciGetPropertiesExt": (c_void_p, POINTER(layouts.PciProperties)),
    "zeDeviceCanAccessPeer": (c_void_p, c_void_p, POINTER(c_uint8)),
    "zeContextCreate": (c_void_p, POINTER(layouts.ContextDescription), POINTER(c_void_p)),
    "zeCommandListCreateImmediate": (
        c_void_p,
        c_void_p,
        POINTER(layouts.QueueDescription),
        POINTER(c_void_p),
    ),
    "zeCommandListDestroy": (c_void_p,),
    "zeCommandListAppendMemoryCopy": (
        *(c_void_p, c_void_p, c_void_p, c_size_t),
        *(c_void_p, c_uint32, c_void_p),
    ),
    "zeVirtualMemQueryPageSize": (c_void_p, c_void_p, c_size_t, POINTER(c_size_t)),
    "zeVirtualMemReserve": (c_void_p, c_void_p, c_size_t, POINTER(c_void_p)),
    "zeVirtualMemFree": (c_void_p, c_void_p, c_size_t),
    "zePhysicalMemCreate": (
        c_void_p,
        c_void_p,
        POINTER(layouts.PhysicalDescription),
        POINTER(c_void_p),
    ),
    "zePhysicalMemGetProperties": (c_void_p, c_void_p, POINTER(layouts.PhysicalProperties)),
    "zePhysicalMemDestroy": (c_void_p, c_void_p),
    "zeVirtualMemMap": (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_uint32),
    "zeVirtualMemUnmap": (c_void_p, c_void_p, c_size_t),
}
# Level Zero has no function that names a code.
CODES: Final[Mapping[int, tuple[str, Cause]]] = {
    0x70000001: ("ZE_RESULT_ERROR_DEVICE_LOST", Cause.DEVICE_LOST),
    0x70000002: ("ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY", Cause.OUT_OF_MEMORY),
    0x70000003: ("ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", Cause.OUT_OF_MEMORY),
    0x70000006: ("ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET", Cause.DEVICE_LOST),
    0x70010000: ("ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS", Cause.NOT_PERMITTED),
    0x70010001: ("ZE_RESULT_ERROR_NOT_AVAILABLE", Cause.NOT_SUPPORTED),
    0x70020000: ("ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE", Cause.NO_LIBRARY),
    0x78000001: ("ZE_RESULT_ERROR_UNINITIALIZED", Cause.NOT_INITIALISED),
    0x78000002: ("ZE_RESULT_ERROR_UNSUPPORTED_VERSION", Cause.DRIVER_TOO_OLD),
    0x78000003: ("ZE_RESULT_ERROR_UNSUPPORTED_FEATURE", Cause.NOT_SUPPORTED),
    0x78000004: ("ZE_RESULT_ERROR_INVALID_ARGUMENT", Cause.INVALID_VALUE),
    0x78000005: ("ZE_RESULT_ERROR_INVALID_NULL_HANDLE", Cause.INVALID_HANDLE),
    0x78000006: ("ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE", Cause.ALREADY_MAPPED),
    0x78000007: ("ZE_RESULT_ERROR_INVALID_NULL_POINTER", Cause.INVALID_VALUE),
    0x78000008: ("ZE_RESULT_ERROR_INVALID_SIZE", Cause.INVALID_VALUE),
    0x78000009: ("ZE_RESULT_ERROR_UNSUPPORTED_SIZE", Cause.INVALID_VALUE),
    0x7800000A: ("ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT", Cause.INVALID_VALUE),
    0x7800000C: ("ZE_RESULT_ERROR_INVALID_ENUMERATION", Cause.INVALID_VALUE),
    0x7800000D: ("ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION", Cause.NOT_SUPPORTED),
    0x78000021: ("ZE_RESULT_ERROR_ADDRESS_NOT_FOUND", Cause.INVALID_VALUE),
    0x7FFFFFFE: ("ZE_RESULT_ERROR_UNKNOWN", Cause.UNKNOWN),
}


def words(library: Library, code: int) -> tuple[str, str]:
    """Return the code's name in ze_api.h, and the driver's text of this thread's last error."""
    name = CODES.get(code, ("", Cause.UNKNOWN))[0]
    text, driver, one = c_char_p(), c_void_p(), c_uint32(1)
    if library.started:
        library.tell("zeDriverGet", ctypes.byref(one), ctypes.byref(driver))
    if driver:
        library.tell("zeDriverGetLastErrorDescription", driver, ctypes.byref(text))
    return name, decoded(text.value)


def found(library: Library, function: str, *of: int) -> list[int]:
    """Return all handles of a function that first returns their number."""
    count = c_uint32()
    library.invoke(function, *of, ctypes.byref(count), None)
    handles = (c_void_p * count.value)()
    library.invoke(function, *of, ctypes.byref(count), handles)
    return [handle or 0 for handle in handles][: count.value]


DESCRIPTION: Final = Description(
    driver="level_zero",
    soname="libze_loader.so.1",
    variable="MUSTER_LEVEL_ZERO_LIBRARY",
    functions=FUNCTIONS,
    causes={code: cause for code, (_, cause) in CODES.items()},
    words=words,
    start=lambda library: library.invoke("zeInit", GPU_ONLY),
    needs="Level Zero 1.15 (loader 1.27)",
)


class LevelZero:
    """Intel's devices in this process; a Vendor."""

    vendor = "intel"
    driver = "level_zero"

    def __init__(self, library: Library | None = None) -> None:
        self.driver_library = library or Library(DESCRIPTION)
        self._users = Users(self.driver, self._create, self._destroy)
        self._handles: list[int] = []
        self._context = 0

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs of ZE_AFFINITY_MASK, of the first driver that has some.

        Raises NO_DEVICE, NO_LIBRARY or another error.
        """
        return self.driver_library.run(self._devices)

    def _devices(self) -> tuple[Device, ...]:
        self._open()
        return tuple(self._device(index) for index in range(len(self._handles)))

    def _open(self) -> None:
        """Find the driver and its GPUs, and make the one context."""
        if self._context:
            return
        for driver in found(self.driver_library, "zeDriverGet"):
            handles = [
                handle
                for handle in found(self.driver_library, "zeDeviceGet", driver)
                if self._properties(handle).type == GPU
            ]
            if handles:
                context = c_void_p()
                description = layouts.ContextDescription(layouts.CONTEXT_DESC)
                self.driver_library.invoke(
                    "zeContextCreate", driver, ctypes.byref(description), ctypes.byref(context)
                )
                self._handles, self._context = handles, context.value or 0
                return
        raise self.driver_library.refused(Cause.NO_DEVICE, "zeDeviceGet", "no driver has a GPU")

    def _properties(self, handle: int) -> layouts.DeviceProperties:
        properties = layouts.DeviceProperties(layouts.DEVICE_PROPERTIES)
        self.driver_library.invoke("zeDeviceGetProperties", handle, ctypes.byref(properties))
        return properties

    def _device(self, index: int) -> Device:
        handle = self._handles[index]
        properties = self._properties(handle)
        pci = layouts.PciProperties(layouts.PCI_EXT_PROPERTIES)
        self.driver_library.invoke("zeDevicePciGetPropertiesExt", handle, ctypes.byref(pci))
        return Device(
            vendor=self.vendor,
            ordinal=index,
            uuid=f"GPU-{UUID(bytes=bytes(properties.uuid))}",
            name=decoded(properties.name),
            pci_bus=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}",
            memory_bytes=self._memory_bytes(handle),
        )

    def _memory_bytes(self, handle: int) -> int:
        count = c_uint32()
        name = "zeDeviceGetMemoryProperties"
        self.driver_library.invoke(name, handle, ctypes.byref(count), None)
        modules = (layouts.DeviceMemoryProperties * count.value)()
        for module in modules:
            module.stype = layouts.DEVICE_MEMORY_PROPERTIES
        self.driver_library.invoke(name, handle, ctypes.byref(count), modules)
        return sum(module.total_size for module in modules)

    def handle(self, index: int) -> int:
        """Return the device's handle; only inside of `library.run`. Raises INVALID_DEVICE."""
        self._open()
        if not 0 <= index < len(self._handles):
            text = f"this process has {len(self._handles)} devices"
            raise self.driver_library.refused(
                Cause.INVALID_DEVICE, "zeDeviceGet", text, on=f"device {index}"
            )
        return self._handles[index]

    def context(self) -> int:
        """Return the process's context; only inside of `library.run`."""
        self._open()
        return self._context

    def retain(self, index: int) -> None:
        """Use the device: its command list is made with the first use."""
        self._users.retain(index)

    def release(self, index: int) -> None:
        """End one use; the last one destroys the command list. The context stays."""
        self._users.release(index)

    def _create(self, index: int) -> int:
        made = c_void_p()

        def create() -> None:
            description = layouts.QueueDescription(layouts.COMMAND_QUEUE_DESC, mode=SYNCHRONOUS)
            handle = self.handle(index)
            self.driver_library.invoke(
                "zeCommandListCreateImmediate",
                self._context,
                handle,
                ctypes.byref(description),
                ctypes.byref(made),
                on=f"device {index}",
            )

        self.driver_library.run(create)
        return made.value or 0

    def _destroy(self, index: int) -> None:
        commands = self._users.context(index)
        self.driver_library.call("zeCommandListDestroy", commands, on=f"device {index}")

    def limit(self, index: int, limit: Limit) -> int:
        """Raise NOT_SUPPORTED: Level Zero has no such limits."""
        self._users.context(index)
        text = f"Level Zero has no {limit} limit; leave it out for Intel devices"
        raise self.driver_library.refused(Cause.NOT_SUPPORTED, "limit", text, on=f"device {index}")

    def set_limit(self, index: int, limit: Limit, size: int) -> None:
        """Raise NOT_SUPPORTED."""
        self.limit(index, limit)

    def memory(self, index: int) -> tuple[int, int]:
        """Raise NOT_SUPPORTED: only Level Zero's management interface tells what is free."""
        text = "Level Zero does not tell a program how much memory is free; ask `muster gpus`"
        raise self.driver_library.refused(Cause.NOT_SUPPORTED, "memory", text, on=f"device {index}")

    def reaches(self, index: int, peer: int) -> bool:
        """Return whether the device reaches the peer's memory, over Xe Link or PCIe."""
        reached = c_uint8()

        def ask() -> None:
            handles = self.handle(index), self.handle(peer)
            self.driver_library.invoke("zeDeviceCanAccessPeer", *handles, ctypes.byref(reached))

        self.driver_library.run(ask)
        return bool(reached.value)

    def open_peer(self, index: int, peer: int) -> None:
        """Do nothing: one context holds all devices. Raises PEER_UNREACHABLE."""
        self._users.context(index), self._users.context(peer)
        if not self.reaches(index, peer):
            text = f"device {index} cannot reach device {peer}"
            raise self.driver_library.refused(Cause.PEER_UNREACHABLE, "zeDeviceCanAccessPeer", text)

    def copy(
        self, destination: int, to_address: int, source: int, from_address: int, size: int
    ) -> None:
        """Copy with the source's command list, and wait for the end."""
        self._users.context(destination)
        self._append(source, to_address, from_address, size)

    def read(self, index: int, address: int, into: bytearray) -> None:
        """Copy from the device to memory of the host."""
        host = (ctypes.c_char * len(into)).from_buffer(into)
        self._append(index, ctypes.addressof(host), address, len(into))

    def write(self, index: int, address: int, data: bytes | bytearray) -> None:
        """Copy from memory of the host to the device."""
        host = ctypes.create_string_buffer(bytes(data), len(data))
        self._append(index, address, ctypes.addressof(host), len(data))

    def _append(self, index: int, to_address: int, from_address: int, size: int) -> None:
        commands = self._users.context(index)
        arguments = (commands, to_address, from_address, size, None, 0, None)
        self.driver_library.call("zeCommandListAppendMemoryCopy", *arguments, on=f"device {index}")
