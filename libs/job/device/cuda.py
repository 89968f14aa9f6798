"""NVIDIA's driver interface: the table of its functions, and devices, contexts and copies over it.

Names and layouts are those of cuda.h (CUDA 10.2 to 13); tests/vendors/test_layouts.py compares
them with the header where it is installed. `libs/job/memory/cuda_driver.py` uses the virtual memory
calls of the same table. Tests: tests/vendors/test_contexts.py, over a library built from C.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any, Final
from uuid import UUID

from libs.job.device.driver_library import Description, Library, decoded
from libs.job.device.errors import Cause, DeviceError
from libs.job.device.users import Users
from libs.job.device.vendor import Device, Limit

NAME_BYTES: Final = 256
LIMITS: Final = {Limit.STACK: 0, Limit.HEAP: 2}
PEER_ALREADY: Final = 704


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationFlags(ctypes.Structure):
    """The allocFlags of CUmemAllocationProp."""

    _fields_ = [
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp; HIP's hipMemAllocationProp has the same layout."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", AllocationFlags),
    ]


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc; HIP's hipMemAccessDesc has the same layout."""

    _fields_ = [("location", Location), ("flags", c_int)]


FUNCTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid": (c_char_p, c_int),
    "cuDeviceGetUuid_v2": (c_char_p, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSetLimit": (c_int, c_size_t),
    "cuCtxGetLimit": (POINTER(c_size_t), c_int),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyPeer": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProperties), c_ulonglong),
    "cuMemRelease": (c_uint64,),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_ulonglong),
    "cuMemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_ulonglong),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_ulonglong),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(AccessDescription), c_size_t),
    "cuMemUnmap": (c_uint64, c_size_t),
}
CAUSES: Final[Mapping[int, Cause]] = {
    1: Cause.INVALID_VALUE,
    2: Cause.OUT_OF_MEMORY,
    3: Cause.NOT_INITIALISED,
    4: Cause.NOT_INITIALISED,
    34: Cause.NO_LIBRARY,
    36: Cause.DRIVER_TOO_OLD,
    46: Cause.DEVICE_LOST,
    100: Cause.NO_DEVICE,
    101: Cause.INVALID_DEVICE,
    201: Cause.INVALID_CONTEXT,
    208: Cause.ALREADY_MAPPED,
    211: Cause.NOT_MAPPED,
    214: Cause.DEVICE_LOST,
    215: Cause.NOT_SUPPORTED,
    217: Cause.PEER_UNREACHABLE,
    400: Cause.INVALID_HANDLE,
    700: Cause.DEVICE_LOST,
    PEER_ALREADY: Cause.ALREADY_DONE,
    709: Cause.INVALID_CONTEXT,
    719: Cause.DEVICE_LOST,
    800: Cause.NOT_PERMITTED,
    801: Cause.NOT_SUPPORTED,
    803: Cause.DRIVER_TOO_OLD,
}


def words(library: Library, code: int) -> tuple[str, str]:
    """Return the driver's name and text of a code."""
    name, text = c_char_p(), c_char_p()
    library.tell("cuGetErrorName", c_int(code), ctypes.byref(name))
    library.tell("cuGetErrorString", c_int(code), ctypes.byref(text))
    return decoded(name.value), decoded(text.value)


DESCRIPTION: Final = Description(
    driver="cuda",
    soname="libcuda.so.1",
    variable="MUSTER_CUDA_LIBRARY",
    functions=FUNCTIONS,
    causes=CAUSES,
    words=words,
    start=lambda library: library.invoke("cuInit", 0),
    needs="driver 440 (CUDA 10.2)",
)


class Cuda:
    """NVIDIA's devices in this process; a Vendor."""

    vendor = "nvidia"
    driver = "cuda"

    def __init__(self, library: Library | None = None) -> None:
        self.driver_library = library or Library(DESCRIPTION)
        self._users = Users(self.driver, self._create, self._destroy)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of CUDA_VISIBLE_DEVICES.

        Raises NO_DEVICE, NO_LIBRARY or another error.
        """
        return self.driver_library.run(self._devices)

    def _devices(self) -> tuple[Device, ...]:
        count = c_int()
        self.driver_library.invoke("cuDeviceGetCount", ctypes.byref(count))
        return tuple(self._device(index) for index in range(count.value))

    def _device(self, index: int) -> Device:
        invoke, on = self.driver_library.invoke, f"device {index}"
        name, bus = ctypes.create_string_buffer(NAME_BYTES), ctypes.create_string_buffer(32)
        uuid, size = ctypes.create_string_buffer(16), c_size_t()
        number = self.number(index)
        # The newer function tells MIG instances apart; older drivers have none.
        newest = "cuDeviceGetUuid_v2" if self.driver_library.has("cuDeviceGetUuid_v2") else ""
        invoke("cuDeviceGetName", name, NAME_BYTES, number, on=on)
        invoke(newest or "cuDeviceGetUuid", uuid, number, on=on)
        invoke("cuDeviceGetPCIBusId", bus, 32, number, on=on)
        invoke("cuDeviceTotalMem_v2", ctypes.byref(size), number, on=on)
        return Device(
            vendor=self.vendor,
            ordinal=index,
            uuid=f"GPU-{UUID(bytes=uuid.raw)}",
            name=decoded(name.value),
            pci_bus=decoded(bus.value).lower(),
            memory_bytes=size.value,
        )

    def number(self, index: int) -> int:
        """Return the CUdevice of an index; only inside of `library.run`."""
        found = c_int()
        self.driver_library.invoke("cuDeviceGet", ctypes.byref(found), index, on=f"device {index}")
        return found.value

    def attribute(self, index: int, attribute: int) -> int:
        """Return a CU_DEVICE_ATTRIBUTE of the device."""
        found = c_int()

        def ask() -> None:
            self.driver_library.invoke(
                "cuDeviceGetAttribute", ctypes.byref(found), attribute, self.number(index)
            )

        self.driver_library.run(ask)
        return found.value

    def retain(self, index: int) -> None:
        """Use the primary context, which PyTorch and the CUDA runtime use as well."""
        self._users.retain(index)

    def release(self, index: int) -> None:
        """End one use of the primary context."""
        self._users.release(index)

    def _create(self, index: int) -> int:
        context = c_void_p()

        def create() -> None:
            number = self.number(index)
            name = "cuDevicePrimaryCtxRetain"
            self.driver_library.invoke(name, ctypes.byref(context), number, on=f"device {index}")

        self.driver_library.run(create)
        return context.value or 0

    def _destroy(self, index: int) -> None:
        def destroy() -> None:
            self.driver_library.invoke("cuCtxSetCurrent", None)
            self.driver_library.invoke("cuDevicePrimaryCtxRelease_v2", self.number(index))

        self.driver_library.run(destroy)

    def within(self, index: int, *calls: tuple[Any, ...]) -> None:
        """Make calls, each (name, arguments...), with the device's context current."""
        context = self._users.context(index)

        def work() -> None:
            self.driver_library.invoke("cuCtxSetCurrent", context, on=f"device {index}")
            for name, *arguments in calls:
                self.driver_library.invoke(name, *arguments, on=f"device {index}")

        self.driver_library.run(work)

    def limit(self, index: int, limit: Limit) -> int:
        """Return a limit in bytes."""
        found = c_size_t()
        self.within(index, ("cuCtxGetLimit", ctypes.byref(found), LIMITS[limit]))
        return found.value

    def set_limit(self, index: int, limit: Limit, size: int) -> None:
        """Set a limit in bytes.

        The heap can only change before the first kernel that uses `malloc`.
        """
        self.within(index, ("cuCtxSetLimit", LIMITS[limit], size))

    def memory(self, index: int) -> tuple[int, int]:
        """Return the free and the whole memory in bytes; other processes' memory is not free."""
        free, whole = c_size_t(), c_size_t()
        self.within(index, ("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(whole)))
        return free.value, whole.value

    def reaches(self, index: int, peer: int) -> bool:
        """Return whether the device reaches the peer's memory, over NVLink or PCIe."""
        found = c_int()

        def ask() -> None:
            numbers = self.number(index), self.number(peer)
            self.driver_library.invoke("cuDeviceCanAccessPeer", ctypes.byref(found), *numbers)

        self.driver_library.run(ask)
        return bool(found.value)

    def open_peer(self, index: int, peer: int) -> None:
        """Call cuCtxEnablePeerAccess; a repetition does nothing."""
        try:
            self.within(index, ("cuCtxEnablePeerAccess", self._users.context(peer), 0))
        except DeviceError as error:
            if error.cause != Cause.ALREADY_DONE:
                raise

    def copy(
        self, destination: int, to_address: int, source: int, from_address: int, size: int
    ) -> None:
        """Copy directly where peers reach each other; otherwise the driver stages the copy."""
        contexts = self._users.context(destination), self._users.context(source)
        copy = ("cuMemcpyPeer", to_address, contexts[0], from_address, contexts[1], size)
        self.within(destination, copy, ("cuCtxSynchronize",))

    def read(self, index: int, address: int, into: bytearray) -> None:
        """Copy from the device to the host."""
        host = (ctypes.c_char * len(into)).from_buffer(into)
        self.within(index, ("cuMemcpyDtoH_v2", ctypes.addressof(host), address, len(into)))

    def write(self, index: int, address: int, data: bytes | bytearray) -> None:
        """Copy from the host to the device and wait for the end.

        Without the wait a small copy is still under way when the driver's call returns, and ends in
        CUDA_ERROR_LAUNCH_FAILED if its memory is unmapped next.
        """
        host = ctypes.create_string_buffer(bytes(data), len(data))
        copy = ("cuMemcpyHtoD_v2", address, ctypes.addressof(host), len(data))
        self.within(index, copy, ("cuCtxSynchronize",))
