"""CuPy over a pool: `malloc(size)` returns an object with `ptr`, as `cupy.cuda.Memory` does.

Tests: tests/unit/test_pool_hooks.py (without CuPy).
"""

import weakref
from importlib import import_module
from typing import Any

from libs.job.memory.pool import Pool


class PooledMemory:
    """A block that is freed with this object. `ptr`: address; `size`: bytes asked for."""

    def __init__(self, pool: Pool, size: int) -> None:
        self.size = size
        self.device_id = pool.device
        self.ptr = pool.allocate(size) if size else 0
        if self.ptr:
            weakref.finalize(self, pool.free_if_open, self.ptr)


class CupyAllocator:
    """An allocator of CuPy that takes memory from a pool.

    `install` calls `cupy.cuda.set_allocator(CupyAllocator(pool).malloc_pointer)`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def malloc(self, size: int) -> PooledMemory:
        """Allocate. Raises PoolError, DeviceError OUT_OF_MEMORY."""
        return PooledMemory(self.pool, size)

    def malloc_pointer(self, size: int) -> object:
        """Allocate for CuPy: a MemoryPointer that keeps the block alive."""
        cuda: Any = import_module("cupy.cuda")
        memory = self.malloc(size)
        unowned = cuda.UnownedMemory(memory.ptr, size, memory, self.pool.device)
        return cuda.MemoryPointer(unowned, 0)

    def install(self) -> None:
        """Make CuPy allocate in the pool from now on. Raises ImportError without CuPy."""
        cuda: Any = import_module("cupy.cuda")
        cuda.set_allocator(self.malloc_pointer)
