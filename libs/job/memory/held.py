"""The objects of one driver that one process holds: handles, address ranges and mappings.

Drivers answer a wrong handle with different codes, and HIP does not answer at all: its handles are
pointers, and a stale one ends the process. Each memory driver therefore asks here first, so that
the same mistake gives the same DeviceError everywhere. One lock guards the table; no driver call
runs under it. Tests: tests/vendors/test_memory_drivers.py.
"""

import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from libs.job.device.errors import Cause, DeviceError


class Physical(NamedTuple):
    """Physical memory behind a handle."""

    device: int
    size: int


class Mapping(NamedTuple):
    """A handle at an address."""

    address: int
    size: int
    handle: int


class Held:
    """The table. Every method raises DeviceError in place of a call that a driver must not get."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._handles: dict[int, Physical] = {}
        self._ranges: dict[int, int] = {}
        self._mappings: dict[int, Mapping] = {}
        # The addresses of both in order, and how often each handle is mapped.
        self._range_starts: list[int] = []
        self._starts: list[int] = []
        self._mapped: Counter[int] = Counter()

    def check_size(self, call: str, size: int, granularity: int) -> None:
        """Raise INVALID_VALUE unless `size` is a positive multiple of the granularity."""
        if size <= 0 or size % granularity:
            text = f"{size} bytes are not a positive multiple of {granularity} bytes"
            raise self._error(Cause.INVALID_VALUE, call, text)

    def check_descriptor(self, call: str, descriptor: int) -> None:
        """Raise INVALID_HANDLE unless the file descriptor is open in this process."""
        try:
            os.fstat(descriptor)
        except OSError as error:
            text = f"file descriptor {descriptor}: {error.strerror}"
            raise self._error(Cause.INVALID_HANDLE, call, text) from None

    def add_handle(self, handle: int, device: int, size: int) -> None:
        """Note physical memory that was created or adopted."""
        with self._lock:
            self._handles[handle] = Physical(device, size)

    def physical(self, call: str, handle: int) -> Physical:
        """Return the memory behind the handle. Raises INVALID_HANDLE."""
        found = self._handles.get(handle)
        if found is None:
            raise self._no_handle(call, handle)
        return found

    def take_handle(self, call: str, handle: int) -> Physical:
        """Forget the handle; of two calls at once, one gets it. Raises INVALID_HANDLE."""
        with self._lock:
            found = self._handles.pop(handle, None)
        if found is None:
            raise self._no_handle(call, handle)
        return found

    def is_mapped(self, handle: int) -> bool:
        """Return whether a mapping of the handle is left."""
        return self._mapped[handle] > 0

    def add_range(self, address: int, size: int) -> None:
        """Note a reserved address range."""
        with self._lock:
            self._ranges[address] = size
            insort(self._range_starts, address)

    def take_range(self, call: str, address: int, size: int) -> None:
        """Forget a whole reserved range. Raises INVALID_VALUE, or ALREADY_MAPPED if it is used."""
        with self._lock:
            if self._ranges.get(address) != size:
                text = f"no range of {size} bytes is reserved at {address:#x}"
                raise self._error(Cause.INVALID_VALUE, call, text)
            if self._overlapping(address, size):
                text = f"memory is mapped in the {size} bytes at {address:#x}; unmap it first"
                raise self._error(Cause.ALREADY_MAPPED, call, text)
            del self._ranges[address]
            del self._range_starts[bisect_left(self._range_starts, address)]

    def claim(self, call: str, address: int, size: int, handle: int) -> Physical:
        """Note a mapping before it is made; of two calls at once, one gets the addresses.

        Raises INVALID_HANDLE, INVALID_VALUE (a part of the memory, or outside of all ranges) or
        ALREADY_MAPPED.
        """
        with self._lock:
            physical = self._handles.get(handle)
            if physical is None:
                raise self._no_handle(call, handle)
            if size != physical.size:
                text = f"memory of {physical.size} bytes is mapped whole, not {size} bytes of it"
                raise self._error(Cause.INVALID_VALUE, call, text)
            if not self._is_reserved(address, size):
                text = f"the {size} bytes at {address:#x} are not within one reserved range"
                raise self._error(Cause.INVALID_VALUE, call, text)
            if self._overlapping(address, size):
                text = f"memory is mapped in the {size} bytes at {address:#x} already"
                raise self._error(Cause.ALREADY_MAPPED, call, text)
            self._note(Mapping(address, size, handle))
            return physical

    def take_mappings(self, call: str, address: int, size: int) -> list[Mapping]:
        """Forget the mappings of a range, in order of address.

        Raises NOT_MAPPED if there is none, INVALID_VALUE if one is only partly in the range.
        """
        with self._lock:
            found = self._overlapping(address, size)
            if not found:
                text = f"no memory is mapped in the {size} bytes at {address:#x}"
                raise self._error(Cause.NOT_MAPPED, call, text)
            for mapping in found:
                end = mapping.address + mapping.size
                if mapping.address < address or end > address + size:
                    text = f"{mapping.size} bytes are mapped at {mapping.address:#x} as one piece"
                    raise self._error(Cause.INVALID_VALUE, call, text)
            for mapping in found:
                self._forget(mapping)
            return found

    def put_back(self, mappings: Sequence[Mapping]) -> None:
        """Note again mappings that the driver did not remove."""
        with self._lock:
            for mapping in mappings:
                self._note(mapping)

    def drop(self, address: int) -> None:
        """Forget a mapping that the driver did not make."""
        with self._lock:
            self._forget(self._mappings[address])

    def _note(self, mapping: Mapping) -> None:
        self._mappings[mapping.address] = mapping
        self._mapped[mapping.handle] += 1
        insort(self._starts, mapping.address)

    def _forget(self, mapping: Mapping) -> None:
        del self._mappings[mapping.address]
        del self._starts[bisect_left(self._starts, mapping.address)]
        self._mapped[mapping.handle] -= 1
        if not self._mapped[mapping.handle]:
            del self._mapped[mapping.handle]

    def _overlapping(self, address: int, size: int) -> list[Mapping]:
        """Return the mappings that overlap the range; mappings never overlap each other."""
        first = max(bisect_right(self._starts, address) - 1, 0)
        last = bisect_left(self._starts, address + size)
        near = (self._mappings[start] for start in self._starts[first:last])
        return [mapping for mapping in near if address < mapping.address + mapping.size]

    def _is_reserved(self, address: int, size: int) -> bool:
        before = bisect_right(self._range_starts, address)
        if not before:
            return False
        begin = self._range_starts[before - 1]
        return address + size <= begin + self._ranges[begin]

    def _no_handle(self, call: str, handle: int) -> DeviceError:
        text = f"this process holds no memory with handle {handle:#x}"
        return self._error(Cause.INVALID_HANDLE, call, text)

    def _error(self, cause: Cause, call: str, text: str) -> DeviceError:
        return DeviceError(cause, call, driver=self._driver, text=text)
