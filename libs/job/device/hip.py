"""AMD's HIP interface: the table of its functions, and devices, contexts and copies over it.

HIP follows CUDA name by name with three differences that matter here. A device has one context,
which calls reach by `hipSetDevice` and not by a handle. Errors have their own numbers beyond 1000.
And up to ROCm 7.0 `hipMemImportFromShareableHandle` wants a pointer to the descriptor, from 7.1 on
the descriptor itself (ROCm/rocm-systems#1564; PyTorch decides by the version, as `imports_by_value`
does). Names and layouts are those of hip_runtime_api.h (6.2); tests/vendors/test_layouts.py
compares them with the header where it is installed. Tests: tests/vendors/test_contexts.py.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any, Final
from uuid import UUID

from libs.job.device.cuda import AccessDescription, AllocationProperties
from libs.job.device.driver_library import Description, Library, decoded
from libs.job.device.errors import Cause, DeviceError
from libs.job.device.users import Users
from libs.job.device.vendor import Device, Limit

NAME_BYTES: Final = 256
LIMITS: Final = {Limit.STACK: 0, Limit.HEAP: 2}
# HIP counts its version as 10,000,000 x major + 100,000 x minor + patch.
BY_VALUE_SINCE: Final = 70_100_000

FUNCTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "hipInit": (c_uint,),
    "hipRuntimeGetVersion": (POINTER(c_int),),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipDeviceGetName": (c_char_p, c_int, c_int),
    "hipDeviceGetUuid": (c_char_p, c_int),
    "hipDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "hipDeviceTotalMem": (POINTER(c_size_t), c_int),
    "hipDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "hipDeviceEnablePeerAccess": (c_int, c_uint),
    "hipDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "hipDevicePrimaryCtxRelease": (c_int,),
    "hipSetDevice": (c_int,),
    "hipDeviceSetLimit": (c_int, c_size_t),
    "hipDeviceGetLimit": (POINTER(c_size_t), c_int),
    "hipDeviceSynchronize": (),
    "hipMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "hipMemcpyHtoD": (c_void_p, c_void_p, c_size_t),
    "hipMemcpyDtoH": (c_void_p, c_void_p, c_size_t),
    "hipMemcpyPeer": (c_void_p, c_int, c_void_p, c_int, c_size_t),
    "hipMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "hipMemCreate": (POINTER(c_void_p), c_size_t, POINTER(AllocationProperties), c_ulonglong),
    "hipMemRelease": (c_void_p,),
    "hipMemExportToShareableHandle": (c_void_p, c_void_p, c_int, c_ulonglong),
    "hipMemImportFromShareableHandle": (POINTER(c_void_p), c_void_p, c_int),
    "hipMemAddressReserve": (POINTER(c_void_p), c_size_t, c_size_t, c_void_p, c_ulonglong),
    "hipMemAddressFree": (c_void_p, c_size_t),
    "hipMemMap": (c_void_p, c_size_t, c_size_t, c_void_p, c_ulonglong),
    "hipMemSetAccess": (c_void_p, c_size_t, POINTER(AccessDescription), c_size_t),
    "hipMemUnmap": (c_void_p, c_size_t),
}
CAUSES: Final[Mapping[int, Cause]] = {
    1: Cause.INVALID_VALUE,
    2: Cause.OUT_OF_MEMORY,
    3: Cause.NOT_INITIALISED,
    4: Cause.NOT_INITIALISED,
    35: Cause.DRIVER_TOO_OLD,
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
    704: Cause.ALREADY_DONE,
    709: Cause.INVALID_CONTEXT,
    719: Cause.DEVICE_LOST,
    801: Cause.NOT_SUPPORTED,
    1052: Cause.OUT_OF_MEMORY,
}


def words(library: Library, code: int) -> tuple[str, str]:
    """Return the runtime's name and text of a code."""
    return library.text("hipGetErrorName", code), library.text("hipGetErrorString", code)


DESCRIPTION: Final = Description(
    driver="hip",
    soname="libamdhip64.so",
    variable="MUSTER_HIP_LIBRARY",
    functions=FUNCTIONS,
    causes=CAUSES,
    words=words,
    start=lambda library: library.invoke("hipInit", 0),
    needs="ROCm 5.6",
)


def written(uuid: bytes) -> str:
    """Return the text of hipUUID: AMD fills it with 16 hexadecimal digits, others with 16 bytes."""
    if all(byte in b"0123456789abcdefABCDEF" for byte in uuid):
        return f"GPU-{uuid.decode()}"
    return f"GPU-{UUID(bytes=uuid)}"


class Hip:
    """AMD's devices in this process; a Vendor."""

    vendor = "amd"
    driver = "hip"

    def __init__(self, library: Library | None = None) -> None:
        self.driver_library = library or Library(DESCRIPTION)
        self._users = Users(self.driver, self._create, self._destroy)
        self._by_value: bool | None = None

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of HIP_VISIBLE_DEVICES.

        Raises NO_DEVICE, NO_LIBRARY or another error.
        """
        return self.driver_library.run(self._devices)

    def _devices(self) -> tuple[Device, ...]:
        count = c_int()
        self.driver_library.invoke("hipGetDeviceCount", ctypes.byref(count))
        return tuple(self._device(index) for index in range(count.value))

    def _device(self, index: int) -> Device:
        invoke, on = self.driver_library.invoke, f"device {index}"
        name, bus = ctypes.create_string_buffer(NAME_BYTES), ctypes.create_string_buffer(32)
        uuid, size = ctypes.create_string_buffer(16), c_size_t()
        invoke("hipDeviceGetName", name, NAME_BYTES, index, on=on)
        invoke("hipDeviceGetUuid", uuid, index, on=on)
        invoke("hipDeviceGetPCIBusId", bus, 32, index, on=on)
        invoke("hipDeviceTotalMem", ctypes.byref(size), index, on=on)
        return Device(
            vendor=self.vendor,
            ordinal=index,
            uuid=written(uuid.raw),
            name=decoded(name.value),
            pci_bus=decoded(bus.value).lower(),
            memory_bytes=size.value,
        )

    def imports_by_value(self) -> bool:
        """Return whether this runtime wants a descriptor itself, and not a pointer to it."""
        if self._by_value is None:
            version = c_int()
            self.driver_library.call("hipRuntimeGetVersion", ctypes.byref(version))
            self._by_value = version.value >= BY_VALUE_SINCE
        return self._by_value

    def retain(self, index: int) -> None:
        """Use the device's one context."""
        self._users.retain(index)

    def release(self, index: int) -> None:
        """End one use of the context."""
        self._users.release(index)

    def _create(self, index: int) -> int:
        context = c_void_p()
        name = "hipDevicePrimaryCtxRetain"
        self.driver_library.call(name, ctypes.byref(context), index, on=f"device {index}")
        return context.value or 0

    def _destroy(self, index: int) -> None:
        self.driver_library.call("hipDevicePrimaryCtxRelease", index, on=f"device {index}")

    def within(self, index: int, *calls: tuple[Any, ...]) -> None:
        """Make calls, each (name, arguments...), with the device as the current one."""
        self._users.context(index)
        self.on_device(index, *calls)

    def on_device(self, index: int, *calls: tuple[Any, ...]) -> None:
        """Do the same for calls that need the current device and no context."""

        def work() -> None:
            self.driver_library.invoke("hipSetDevice", index, on=f"device {index}")
            for name, *arguments in calls:
                self.driver_library.invoke(name, *arguments, on=f"device {index}")

        self.driver_library.run(work)

    def limit(self, index: int, limit: Limit) -> int:
        """Return a limit in bytes."""
        found = c_size_t()
        self.within(index, ("hipDeviceGetLimit", ctypes.byref(found), LIMITS[limit]))
        return found.value

    def set_limit(self, index: int, limit: Limit, size: int) -> None:
        """Set a limit in bytes."""
        self.within(index, ("hipDeviceSetLimit", LIMITS[limit], size))

    def memory(self, index: int) -> tuple[int, int]:
        """Return the free and the whole memory in bytes."""
        free, whole = c_size_t(), c_size_t()
        self.within(index, ("hipMemGetInfo", ctypes.byref(free), ctypes.byref(whole)))
        return free.value, whole.value

    def reaches(self, index: int, peer: int) -> bool:
        """Return whether the device reaches the peer's memory, over xGMI or PCIe."""
        found = c_int()
        self.driver_library.call("hipDeviceCanAccessPeer", ctypes.byref(found), index, peer)
        return bool(found.value)

    def open_peer(self, index: int, peer: int) -> None:
        """Call hipDeviceEnablePeerAccess; a repetition does nothing."""
        self._users.context(peer)
        try:
            self.within(index, ("hipDeviceEnablePeerAccess", peer, 0))
        except DeviceError as error:
            if error.cause != Cause.ALREADY_DONE:
                raise

    def copy(
        self, destination: int, to_address: int, source: int, from_address: int, size: int
    ) -> None:
        """Copy directly where peers reach each other; otherwise the runtime stages the copy."""
        self._users.context(source)
        copy = ("hipMemcpyPeer", to_address, destination, from_address, source, size)
        self.within(destination, copy, ("hipDeviceSynchronize",))

    def read(self, index: int, address: int, into: bytearray) -> None:
        """Copy from the device to the host."""
        host = (ctypes.c_char * len(into)).from_buffer(into)
        self.within(index, ("hipMemcpyDtoH", ctypes.addressof(host), address, len(into)))

    def write(self, index: int, address: int, data: bytes | bytearray) -> None:
        """Copy from the host to the device and wait for the end, as in cuda.py."""
        host = ctypes.create_string_buffer(bytes(data), len(data))
        copy = ("hipMemcpyHtoD", address, ctypes.addressof(host), len(data))
        self.within(index, copy, ("hipDeviceSynchronize",))
