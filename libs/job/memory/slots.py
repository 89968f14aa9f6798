"""Keep which physical chunk is mapped in which slot of a pool's address range, and the moves.

A fault of the driver in the middle of a move leaves each chunk in one slot, or gives it back; the
caller learns what is mapped first, and raises the fault afterwards with `raise_fault`.
Tests: tests/unit/test_memory_pool.py (faults at every call).
"""

from collections.abc import Callable, Sequence

from libs.job.device.errors import DeviceError
from libs.job.memory.driver import Grants, MemoryDriver


class Slots:
    """A reserved range of `count` slots of `chunk` bytes. `chunks`: handle by slot."""

    def __init__(
        self,
        driver: MemoryDriver,
        device: int,
        grants: Grants,
        chunk: int,
        count: int,
        synchronise: Callable[[], None] | None,
    ) -> None:
        self._driver = driver
        self._device = device
        self._grants = grants
        self._chunk = chunk
        self._count = count
        self._synchronise = synchronise
        self._fault: DeviceError | None = None
        self.chunks: dict[int, int] = {}
        self.placed: list[int] = []
        self.base = driver.reserve(count * chunk)

    def run(self, length: int, vacated: Sequence[int]) -> int | None:
        """Return the first slot of the lowest empty run of `length` slots, or None.

        The run must not touch `vacated` slots: their chunks move one by one, and could meet.
        """
        begin = 0
        for slot in sorted({*self.chunks, *vacated}):
            if slot - begin >= length:
                break
            begin = slot + 1
        return begin if begin + length <= self._count else None

    def grant(self, count: int) -> list[int]:
        """Return `count` new handles, or none of them. Raises DeviceError."""
        handles: list[int] = []
        try:
            for _ in range(count):
                handles.append(self._grants.grant(self._device, self._chunk))
        except DeviceError:
            for handle in handles:
                self._grants.give_back(handle)
            raise
        return handles

    def place(self, handles: Sequence[int], begin: int) -> int:
        """Map new chunks from slot `begin` on; return how many. The rest is given back."""
        for done, handle in enumerate(handles):
            if not self._map(begin + done, handle):
                for left in handles[done:]:
                    self._grants.give_back(left)
                return done
        return len(handles)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> int:
        """Move chunks to empty slots; return how many. `placed`: the slots where chunks are now."""
        self.placed = []
        if sources and self._synchronise:
            self._synchronise()
        moved = 0
        for source, target in zip(sources, targets, strict=True):
            if self._fault or not self._unmap(source):
                self.placed.append(source)
                continue
            handle = self.chunks.pop(source)
            if self._map(target, handle):
                self.placed.append(target)
                moved += 1
            elif self._map(source, handle):
                self.placed.append(source)
            else:
                self._grants.give_back(handle)
        return moved

    def drop(self, slots: Sequence[int]) -> None:
        """Unmap chunks and give them back. Raises DeviceError."""
        if slots and self._synchronise:
            self._synchronise()
        for slot in slots:
            self._driver.unmap(self.base + slot * self._chunk, self._chunk)
            self._grants.give_back(self.chunks.pop(slot))

    def close(self) -> None:
        """Give everything back, and the address range. Raises DeviceError."""
        self.drop(list(self.chunks))
        self._driver.unreserve(self.base, self._count * self._chunk)

    def raise_fault(self) -> None:
        """Raise what the driver refused since the last call."""
        fault, self._fault = self._fault, None
        if fault:
            raise fault

    def _map(self, slot: int, handle: int) -> bool:
        address = self.base + slot * self._chunk
        try:
            self._driver.map(address, self._chunk, handle, self._device)
        except DeviceError as error:
            self._fault = error
            return False
        self.chunks[slot] = handle
        return True

    def _unmap(self, slot: int) -> bool:
        try:
            self._driver.unmap(self.base + slot * self._chunk, self._chunk)
        except DeviceError as error:
            self._fault = error
            return False
        return True
