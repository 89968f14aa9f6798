"""PyTorch over a pool: its pluggable allocator for devices, and CPU tensors in host pools.

PyTorch takes the addresses of two C functions, `void *alloc(ssize_t size, int device, stream)` and
`void free(void *, size_t size, int device, stream)` (torch/cuda/memory.py,
CUDAPluggableAllocator). A ctypes callback has such an address, so no shared library is compiled.
Each stream has a pool of its own: PyTorch frees a block while the stream may still use it, and only
work that was queued later on that stream may have it next.
Tests: tests/unit/test_pool_hooks.py; with PyTorch where it is installed.
"""

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from operator import mul
from typing import Any, Final, cast

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.pool import Pool, PoolError

ALLOC: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
)


class TorchAllocator:
    """Two C functions over pools. Keep the object as long as PyTorch may allocate.

    `pool_for(device, stream)` makes a pool, once per device and stream (`stream` is an address; 0
    is the default stream). The pools must be made with `shared=True`: PyTorch frees from the
    threads of its backward pass. `last_error` holds why the last allocation returned no memory.
    """

    def __init__(self, pool_for: Callable[[int, int], Pool]) -> None:
        self._pool_for = pool_for
        self._lock = threading.Lock()
        self._pools: dict[tuple[int, int], Pool] = {}
        self._owners: dict[int, Pool] = {}
        self.last_error: Exception | None = None
        self._alloc = ALLOC(self._allocate)
        self._free = FREE(self._release)

    @property
    def alloc_address(self) -> int:
        """The address of the C function that allocates."""
        return _address(self._alloc)

    @property
    def free_address(self) -> int:
        """The address of the C function that frees."""
        return _address(self._free)

    def install(self) -> None:
        """Make PyTorch allocate here. Call before its first device tensor.

        Raises DeviceError NOT_SUPPORTED if this PyTorch has no devices.
        """
        torch: Any = import_module("torch")
        make = getattr(torch._C, "_cuda_customAllocator", None)
        if make is None:
            text = f"PyTorch {torch.__version__} is built for the CPU only; install a build for"
            raise DeviceError(
                Cause.NOT_SUPPORTED,
                "install",
                driver="torch",
                text=f"{text} your device, or use muster.memory.cpu_tensor",
            )
        memory = torch.cuda.memory
        allocator = memory._CUDAAllocator(make(self.alloc_address, self.free_address))
        memory.change_current_allocator(allocator)

    def pools(self) -> dict[tuple[int, int], Pool]:
        """Return the pools by device and stream."""
        with self._lock:
            return dict(self._pools)

    def _allocate(self, size: int, device: int, stream: int | None) -> int:
        """Allocate for C code, where an exception would be lost; 0 means no memory."""
        try:
            pool = self._pool(device, stream or 0)
            address = pool.allocate(max(size, 1))
            self._owners[address] = pool
            return address
        except (DeviceError, PoolError) as error:
            self.last_error = error
            print(f"muster: PyTorch gets no memory: {error}", file=sys.stderr)
            return 0

    def _release(self, address: int | None, size: int, device: int, stream: int | None) -> None:
        pool = self._owners.pop(address or 0, None)
        if pool is None:
            if address:
                print(f"muster: PyTorch frees unknown address {address:#x}", file=sys.stderr)
            return
        try:
            pool.free(address or 0)
        except PoolError as error:
            self.last_error = error
            print(f"muster: PyTorch frees wrongly: {error}", file=sys.stderr)

    def _pool(self, device: int, stream: int) -> Pool:
        with self._lock:
            found = self._pools.get((device, stream))
            if found is None:
                found = self._pools[device, stream] = self._pool_for(device, stream)
            return found


def host_buffer(pool: Pool, size: int) -> memoryview:
    """Return `size` writable bytes of a host pool; the block is freed with the last view of it.

    Raises PoolError if the pool is of a device, whose memory the host cannot read.
    """
    if pool.driver.name != "host":
        raise PoolError(
            f"host_buffer: the pool is over {pool.driver.name!r} memory, which the CPU cannot"
            " access; use a pool over HostDriver"
        )
    address = pool.allocate(size)
    # A class of our own: plain ctypes arrays take no finaliser.
    kind: Any = type("Block", (ctypes.c_ubyte * size,), {})
    block = kind.from_address(address)
    weakref.finalize(block, pool.free_if_open, address)
    return memoryview(block).cast("B")


def cpu_tensor(pool: Pool, shape: Sequence[int], dtype: object = None) -> Any:  # noqa: ANN401 (a torch.Tensor)
    """Return a CPU tensor of PyTorch in a host pool; not initialised, freed with the tensor.

    `shape`: at least one element. `dtype`: of torch; float32 by default. Close the pool after the
    last use of its tensors. Raises PoolError, DeviceError OUT_OF_MEMORY.
    """
    torch: Any = import_module("torch")
    kind: Any = torch.float32 if dtype is None else dtype
    size = reduce(mul, shape, 1) * kind.itemsize
    return torch.frombuffer(host_buffer(pool, size), dtype=kind).reshape(tuple(shape))


def _address(function: Callable[..., object]) -> int:
    return int(ctypes.cast(cast(Any, function), ctypes.c_void_p).value or 0)
