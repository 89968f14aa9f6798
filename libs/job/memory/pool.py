"""A pool of device memory inside one process: blocks at stable addresses over physical chunks.

The pool reserves one address range, many times its memory. Chunks of physical memory are mapped
into slots of the range; the allocator (`allocator.py`) places blocks in what is mapped. Free chunks
move to other slots by unmap and map: that defragments the pool, copies nothing, and changes no
address of a block in use. The moves themselves are in `slots.py`.
Tests: tests/unit/test_memory_pool.py, tests/property/test_pool_machine.py.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import get_ident
from typing import Final

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.allocator import Allocator, AllocatorError
from libs.job.memory.driver import Grants, LocalGrants, MemoryDriver
from libs.job.memory.slots import Slots

# Address space per byte of the limit: holes of moved chunks cost addresses, not memory.
RANGE_FACTOR: Final = 4
LIMIT_BYTES: Final = 64 << 30


class PoolError(ValueError):
    """A call that the pool refuses: a bad size, an address that is no block, a closed pool."""


@dataclass(frozen=True)
class PoolStats:
    """Figures of a pool, in bytes. `reserved == used + free` always.

    Attributes:
        used: bytes in blocks, rounded as the allocator rounds them.
        free: bytes that the pool holds and that no block uses.
        reserved: physical memory of the pool.
        blocks: number of blocks in use.
        chunks: number of physical chunks.
        largest_free: the largest block that fits without a move and without more memory.
        fragmentation: 1 - largest_free / free; 0.0 if nothing is free.
    """

    used: int
    free: int
    reserved: int
    blocks: int
    chunks: int
    largest_free: int
    fragmentation: float


class Pool:
    """Device memory in blocks. Addresses are integers; sizes are bytes.

    Args:
        driver: the memory driver of the device's vendor, or HostDriver.
        device: index of the device.
        grants: where chunks come from; by default this process creates them itself.
        limit_bytes: most physical memory that the pool takes.
        chunk_bytes: size of a chunk; a multiple of the granularity, which is the default.
        shared: True if several threads use the pool: calls take a lock. False: allocate and free
            take no lock, and the pool refuses calls of other threads than the one that made it.
        synchronise: called before memory is unmapped; pass a function that waits for the device.

    Raises DeviceError for faults of the driver, PoolError for wrong calls.
    """

    def __init__(
        self,
        driver: MemoryDriver,
        device: int = 0,
        grants: Grants | None = None,
        *,
        limit_bytes: int = LIMIT_BYTES,
        chunk_bytes: int | None = None,
        shared: bool = True,
        synchronise: Callable[[], None] | None = None,
    ) -> None:
        granularity = driver.granularity(device)
        chunk = granularity if chunk_bytes is None else chunk_bytes
        if chunk <= 0 or chunk % granularity:
            raise PoolError(f"chunk_bytes {chunk} is not a positive multiple of {granularity}")
        if limit_bytes < chunk:
            raise PoolError(f"limit_bytes {limit_bytes} is less than one chunk of {chunk} bytes")
        self.driver = driver
        self.device = device
        self.limit_bytes = limit_bytes
        self.chunk_bytes = chunk
        self._refusal = ""
        self._lock = threading.Lock()
        self._shared = shared
        # The only thread of a pool without a lock; no thread has the number 0.
        self._owner = 0 if shared else get_ident()
        self._left: deque[int] = deque()
        self._blocks = Allocator(driver.alignment)
        count = limit_bytes // chunk * RANGE_FACTOR
        self._slots = Slots(
            driver,
            device,
            grants=grants or LocalGrants(driver),
            chunk=chunk,
            count=count,
            synchronise=synchronise,
        )
        self._base = self._slots.base
        _POOLS.add(self)

    def allocate(self, size: int) -> int:
        """Return the address of a new block of at least `size` bytes.

        Grows the pool, and moves free chunks together, if no free block is large enough. Raises
        PoolError for a bad size, DeviceError OUT_OF_MEMORY if there is not enough memory.
        """
        if get_ident() == self._owner:
            return self._allocate(size)
        with self._guard():
            return self._allocate(size)

    def free(self, address: int) -> None:
        """Give a block back. Raises PoolError if the address is not the start of a block."""
        if get_ident() == self._owner:
            self._free(address)
            return
        with self._guard():
            self._free(address)

    def free_if_open(self, address: int) -> None:
        """Give a block back, or do nothing if the pool is closed: for finalisers and `__del__`.

        Python may run those inside another call of the pool. The block therefore waits for the
        next call that finds no free block, or that reads the figures.
        """
        self._left.append(address)

    def size_of(self, address: int) -> int:
        """Return the bytes of the block, rounded up. Raises PoolError if it is no block."""
        with self._guard():
            found = self._blocks.live.get(address - self._base, 0)
        if not found:
            raise self._wrong("size_of", AllocatorError("it is not the start of a block"), address)
        return found

    def resize(self, address: int, size: int) -> bool:
        """Shrink a block, or grow it into free memory behind it; its address never changes.

        Returns False, and changes nothing, if the memory behind it is in use: then allocate, copy
        and free. Raises PoolError for a bad size, and for an address that is no block.
        """
        with self._guard():
            try:
                return self._blocks.resize(address - self._base, size)
            except (AllocatorError, TypeError) as error:
                raise self._wrong("resize", error, address) from None

    def defragment(self) -> int:
        """Move free chunks together if that makes a larger free block; return the bytes moved.

        Nothing is copied. Blocks keep their addresses and their bytes. Parts of chunks that also
        hold a block stay.
        """
        with self._guard():
            self._check_open()
            self._free_left()
            largest = self._blocks.largest_free()
            spans = self._blocks.take_spans(self.chunk_bytes, self._blocks.free_bytes)
            slots = [slot for span in spans for slot in self._slots_of(*span)]
            begin = self._slots.run(len(slots), slots)
            # The largest block may include parts of other chunks: a move must not take those away.
            if begin is None or largest >= len(slots) * self.chunk_bytes:
                self._add(slots)
                return 0
            return self._move(slots, range(begin, begin + len(slots)))

    def shrink(self, keep_bytes: int = 0) -> int:
        """Return free chunks to where they came from until `keep_bytes` are reserved.

        Returns the bytes given back. Chunks that hold a block stay.
        """
        with self._guard():
            self._check_open()
            self._free_left()
            most = self._blocks.total - keep_bytes
            if most <= 0:
                return 0
            given = 0
            for offset, size in self._blocks.take_spans(self.chunk_bytes, most):
                self._slots.drop(self._slots_of(offset, size))
                given += size
            return given

    def grow(self, size: int) -> None:
        """Take at least `size` bytes more at once, as one free block. Raises DeviceError."""
        with self._guard():
            self._check_open()
            self._grow(-(-size // self.chunk_bytes))

    def stats(self) -> PoolStats:
        """Return the figures. Merges free blocks, so it costs time in proportion to their number.

        Raises PoolError if the pool is closed.
        """
        with self._guard():
            self._check_open()
            self._free_left()
            blocks = self._blocks
            free = blocks.free_bytes
            largest = blocks.largest_free()
            return PoolStats(
                used=blocks.used,
                free=free,
                reserved=blocks.total,
                blocks=len(blocks.live),
                chunks=len(self._slots.chunks),
                largest_free=largest,
                fragmentation=1 - largest / free if free else 0.0,
            )

    def close(self) -> None:
        """Unmap everything and give all memory back. Blocks in use are gone. May be called twice.

        A process that was forked from the owner keeps the mappings until it ends.
        """
        with self._guard():
            if self._refusal:
                return
            self._refuse("this pool is closed; open another one")
            self._slots.close()

    @property
    def closed(self) -> bool:
        """Return whether the pool refuses all calls."""
        return bool(self._refusal)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guard(self) -> AbstractContextManager[object]:
        """Return the lock. Raises PoolError for a foreign thread of a pool without one."""
        if not self._shared and get_ident() != self._owner:
            raise PoolError(
                "this pool was made with shared=False for another thread; make a pool per thread,"
                " or pass shared=True"
            )
        return self._lock

    def _allocate(self, size: int) -> int:
        try:
            offset = self._blocks.allocate(size)
            if offset < 0:
                self._make_room(size)
                offset = self._blocks.allocate(size)
        except (AllocatorError, TypeError, AttributeError) as error:
            raise self._wrong("allocate", error) from None
        return self._base + offset

    def _free(self, address: int) -> None:
        try:
            self._blocks.free(address - self._base)
        except (AllocatorError, TypeError) as error:
            raise self._wrong("free", error, address) from None

    def _free_left(self) -> None:
        """Free what finalisers left; of a closed pool there is nothing to free."""
        while self._left:
            address = self._left.popleft()
            if not self._refusal:
                self._blocks.free(address - self._base)

    def _make_room(self, size: int) -> None:
        """Bring free chunks and new ones together until a block of `size` bytes fits."""
        if self._left:
            self._free_left()
            if self._blocks.largest_free() >= self._blocks.rounded(size):
                return
        want = -(-self._blocks.rounded(size) // self.chunk_bytes)
        self._check_open()
        reserved = self._blocks.total // self.chunk_bytes
        if want > self.limit_bytes // self.chunk_bytes:
            raise self._out_of_memory(size)
        spans = self._blocks.take_spans(self.chunk_bytes, want * self.chunk_bytes)
        slots = [slot for span in spans for slot in self._slots_of(*span)]
        missing = want - len(slots)
        begin = self._slots.run(want, slots)
        if begin is None or (reserved + missing) * self.chunk_bytes > self.limit_bytes:
            self._add(slots)
            raise self._out_of_memory(size)
        try:
            fresh = self._slots.grant(missing)
        except DeviceError:
            self._add(slots)
            raise
        self._move(slots, range(begin, begin + len(slots)))
        self._place(fresh, begin + len(slots))

    def _grow(self, count: int) -> None:
        if count <= 0:
            raise PoolError("cannot grow by nothing; pass a positive number of bytes")
        size = count * self.chunk_bytes
        begin = self._slots.run(count, [])
        if begin is None or self._blocks.total + size > self.limit_bytes:
            raise self._out_of_memory(size)
        self._place(self._slots.grant(count), begin)

    def _place(self, handles: list[int], begin: int) -> None:
        """Map new chunks; those that cannot be mapped go back to where they came from."""
        mapped = self._slots.place(handles, begin)
        self._add(list(range(begin, begin + mapped)))
        self._slots.raise_fault()

    def _move(self, sources: list[int], targets: range) -> int:
        """Move chunks; whatever the driver refuses, each chunk stays in one slot."""
        moved = self._slots.move(sources, targets)
        self._add(sorted(self._slots.placed))
        self._slots.raise_fault()
        return moved * self.chunk_bytes

    def _add(self, slots: list[int]) -> None:
        for slot in slots:
            self._blocks.add(slot * self.chunk_bytes, self.chunk_bytes)

    def _slots_of(self, offset: int, size: int) -> list[int]:
        first = offset // self.chunk_bytes
        return list(range(first, first + size // self.chunk_bytes))

    def _check_open(self) -> None:
        if self._refusal:
            raise PoolError(self._refusal)

    def _refuse(self, why: str) -> None:
        """Make every later call fail: an allocator without memory, and the reason."""
        self._refusal = why
        self._blocks = Allocator(self.driver.alignment)

    def _wrong(self, call: str, error: Exception, address: object = None) -> PoolError:
        if self._refusal:
            return PoolError(f"{call}: {self._refusal}")
        if isinstance(error, (TypeError, AttributeError)):
            return PoolError(f"{call}: addresses and sizes are whole numbers: {error}")
        if address is None:
            return PoolError(f"{call}: {error}")
        return PoolError(
            f"{call} of address {address:#x}: {error} (the range begins at {self._base:#x})"
        )

    def _out_of_memory(self, size: int) -> DeviceError:
        blocks = self._blocks
        text = (
            f"{blocks.used} of at most {self.limit_bytes} bytes are in use, and"
            f" {blocks.free_bytes} bytes are free in pieces of at most {blocks.largest_free()}"
        )
        return DeviceError(
            Cause.OUT_OF_MEMORY,
            "allocate",
            driver=self.driver.name,
            text=text,
            on=f"device {self.device}, {size} bytes",
        )


_POOLS: "weakref.WeakSet[Pool]" = weakref.WeakSet()


def _refuse_in_child() -> None:
    """Refuse calls in a forked child: both processes would hand out the same memory."""
    for pool in list(_POOLS):
        pool._lock = threading.Lock()
        pool._refuse("this pool belongs to the parent process; use spawn, or open another pool")


os.register_at_fork(after_in_child=_refuse_in_child)
