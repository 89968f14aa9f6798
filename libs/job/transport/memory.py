"""Registered memory: the receive buffers of a link, and regions that its peer may read or write.

Tests: tests/contract/test_transport.py, tests/attack/test_transport.py.
"""

import mmap
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

# Anything else with a buffer, such as an array of NumPy, is given as memoryview(...).
Data = bytes | bytearray | memoryview
_REMOTE: Final = struct.Struct("<QQQB")
_READABLE: Final = 1
_WRITABLE: Final = 2


class RemoteRegion(NamedTuple):
    """The data with which a peer reaches a region. Send `pack()` to it in a message."""

    key: int
    address: int
    size: int
    readable: bool
    writable: bool

    def pack(self) -> bytes:
        """Return the region as bytes for `unpack`."""
        rights = _READABLE * self.readable | _WRITABLE * self.writable
        return _REMOTE.pack(self.key, self.address, self.size, rights)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> "RemoteRegion":
        """Return a packed region. Raises ValueError."""
        if len(data) != _REMOTE.size:
            raise ValueError(f"a packed region has {_REMOTE.size} bytes, not {len(data)}")
        key, address, size, rights = _REMOTE.unpack(data)
        return cls(key, address, size, bool(rights & _READABLE), bool(rights & _WRITABLE))


class Region:
    """Memory that the peer of one link may reach. It stays registered until `close`."""

    def __init__(self, view: memoryview, remote: RemoteRegion, close: Callable[[], None]) -> None:
        self.view = view
        self.remote = remote
        self._close = close

    def close(self) -> None:
        """Take the region back from the peer. Later accesses of it fail."""
        self._close()


def allocate(size: int) -> memoryview:
    """Return `size` bytes of zeros that begin on a page."""
    return memoryview(mmap.mmap(-1, max(1, size)))[:size]


def flat(data: Data) -> memoryview:
    """Return any contiguous buffer as bytes, without a copy. Raises TypeError, BufferError."""
    view = memoryview(data)  # of its own: the caller may release the one that it passes
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class Slot:
    """One registered receive buffer. `room` is memory before it, for a frame's header."""

    def __init__(self, size: int, room: int) -> None:
        self.whole = allocate(size + room)
        self.view = self.whole[room:]
        self.note: Any = None


class Received:
    """A message in a registered buffer. Release it, or use `with`, to let the peer send more."""

    def __init__(self, view: memoryview, release: Callable[[], None]) -> None:
        self.view = view
        self._release: Callable[[], None] | None = release

    def __len__(self) -> int:
        return len(self.view)

    def release(self) -> None:
        """Give the buffer back; `view` must not be used any more. Harmless when repeated."""
        give, self._release = self._release, None
        if give is not None:
            self.view.release()
            give()

    def __enter__(self) -> "Received":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
