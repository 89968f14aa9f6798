"""The public face of devices: `devices`, `Context`, `peer_access` and `copy`.

    import muster.device as device

    gpus = device.devices()
    with device.Context(gpus[0], heap_bytes=64 << 20) as first:
        print(first.limits())

A process uses one primary context per device, however many `Context` objects it has; it is the one
that PyTorch and the vendors' runtimes use. Every call raises DeviceError with the driver's own
words (`errors.py`). docs/devices-in-jobs.md is for users. Tests: tests/vendors/test_contexts.py.
"""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from libs.job.device.cuda import Cuda
from libs.job.device.errors import Cause, CrossVendorTransferError, DeviceError
from libs.job.device.hip import Hip
from libs.job.device.level_zero import LevelZero
from libs.job.device.vendor import Device, Limit, Vendor

STAGING_BYTES: Final = 16 << 20
# What a machine without a vendor's devices answers.
ABSENT: Final = (Cause.NO_LIBRARY, Cause.NO_DEVICE)

_MAKERS: Final[dict[str, Callable[[], Vendor]]] = {
    "nvidia": Cuda,
    "amd": Hip,
    "intel": LevelZero,
}
_opened: Final[dict[str, Vendor]] = {}
_lock: Final = threading.Lock()


class Limits(NamedTuple):
    """The limits of a context in bytes: the heap of `malloc` in kernels, one thread's stack."""

    heap_bytes: int
    stack_bytes: int


def vendor(name: str) -> Vendor:
    """Return the vendor's driver in this process: `nvidia`, `amd` or `intel`.

    Raises DeviceError INVALID_VALUE for another name.
    """
    if name not in _MAKERS:
        text = f"{name!r} is no vendor; known are {', '.join(_MAKERS)}"
        raise DeviceError(Cause.INVALID_VALUE, "vendor", driver="muster", text=text)
    with _lock:
        if name not in _opened:
            _opened[name] = _MAKERS[name]()
        return _opened[name]


def devices(*vendors: str) -> tuple[Device, ...]:
    """Return the devices that this process can use, of these vendors or of all.

    A vendor whose library or devices are absent adds none; `absent` tells why. Any other failure
    of a driver raises DeviceError: a device that is there and broken is not hidden.
    """
    found: list[Device] = []
    for name in vendors or _MAKERS:
        try:
            found += vendor(name).devices()
        except DeviceError as error:
            if error.cause not in ABSENT:
                raise
    return tuple(found)


def absent() -> dict[str, DeviceError]:
    """Return, for each vendor without a device here, the reason."""
    reasons = {}
    for name in _MAKERS:
        try:
            vendor(name).devices()
        except DeviceError as error:
            reasons[name] = error
    return reasons


class Context:
    """One use of a device's primary context.

    `heap_bytes` and `stack_bytes` set limits of the whole process for that device; without them
    the driver's defaults, or those set before, stay. `close`, or the end of a `with` block, ends
    the use. Raises DeviceError: NOT_SUPPORTED for limits that the vendor lacks.
    """

    def __init__(
        self, device: Device, *, heap_bytes: int | None = None, stack_bytes: int | None = None
    ) -> None:
        self.device = device
        self._vendor = vendor(device.vendor)
        self._vendor.retain(device.ordinal)
        self._open = True
        try:
            self.set_limits(heap_bytes=heap_bytes, stack_bytes=stack_bytes)
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """End this use; the last one of the process destroys the context. Again does nothing."""
        if self._open:
            self._open = False
            self._vendor.release(self.device.ordinal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def limits(self) -> Limits:
        """Return the current limits, as the driver rounded them."""
        index = self._index("limits")
        return Limits(
            heap_bytes=self._vendor.limit(index, Limit.HEAP),
            stack_bytes=self._vendor.limit(index, Limit.STACK),
        )

    def set_limits(self, *, heap_bytes: int | None = None, stack_bytes: int | None = None) -> None:
        """Set one limit or both; None leaves it as it is."""
        index = self._index("set_limits")
        for limit, size in ((Limit.HEAP, heap_bytes), (Limit.STACK, stack_bytes)):
            if size is None:
                continue
            if size < 0:
                text = f"{limit}_bytes is {size}; give a number of bytes that is not negative"
                raise self._refused(Cause.INVALID_VALUE, "set_limits", text)
            self._vendor.set_limit(index, limit, size)

    def memory(self) -> tuple[int, int]:
        """Return the free and the whole memory of the device in bytes."""
        return self._vendor.memory(self._index("memory"))

    def open_peer(self, peer: "Context") -> None:
        """Let kernels on this device read and write the peer's memory.

        Raises DeviceError PEER_UNREACHABLE, or CrossVendorTransferError between vendors.
        """
        if peer.device.vendor != self.device.vendor:
            raise CrossVendorTransferError(str(peer.device), str(self.device))
        self._vendor.open_peer(self._index("open_peer"), peer._index("open_peer"))

    def read(self, address: int, size: int) -> bytearray:
        """Copy `size` bytes of device memory to the host."""
        into = bytearray(size)
        if size:
            self._vendor.read(self._index("read"), address, into)
        return into

    def write(self, address: int, data: bytes | bytearray) -> None:
        """Copy bytes of the host to device memory."""
        if data:
            self._vendor.write(self._index("write"), address, data)

    def _index(self, call: str) -> int:
        if not self._open:
            raise self._refused(Cause.INVALID_CONTEXT, call, "this Context is closed")
        return self.device.ordinal

    def _refused(self, cause: Cause, call: str, text: str) -> DeviceError:
        return DeviceError(cause, call, driver=self._vendor.driver, text=text, on=str(self.device))


def peer_access(among: Sequence[Device]) -> dict[tuple[Device, Device], bool]:
    """Return the matrix of direct access: for each ordered pair, whether the first reaches the
    second.

    A device reaches itself; devices of different vendors never reach each other.
    """
    return {
        (one, other): one == other
        or (one.vendor == other.vendor and vendor(one.vendor).reaches(one.ordinal, other.ordinal))
        for one in among
        for other in among
    }


def copy(
    destination: Context,
    to_address: int,
    source: Context,
    from_address: int,
    size: int,
    *,
    through_host: bool = False,
) -> None:
    """Copy `size` bytes between two devices and wait for the end.

    Between devices of one vendor the driver copies, over their link or staged by itself. Between
    vendors the call raises CrossVendorTransferError, unless `through_host` asks for two transfers
    over 16 MiB of host memory.
    """
    if size <= 0:
        text = f"{size} bytes; give a number above 0"
        raise destination._refused(Cause.INVALID_VALUE, "copy", text)
    if through_host:
        for offset in range(0, size, STAGING_BYTES):
            part = source.read(from_address + offset, min(STAGING_BYTES, size - offset))
            destination.write(to_address + offset, part)
        return
    if source.device.vendor != destination.device.vendor:
        raise CrossVendorTransferError(str(source.device), str(destination.device))
    to_index, from_index = destination._index("copy"), source._index("copy")
    destination._vendor.copy(
        to_index, to_address, source=from_index, from_address=from_address, size=size
    )
