"""The hooks of PyTorch and CuPy over a host pool; with the real PyTorch where it is installed."""

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from muster.memory import (
    CupyAllocator,
    DeviceError,
    HostDriver,
    Pool,
    PoolError,
    TorchAllocator,
    cpu_tensor,
    host_buffer,
)

from libs.job.memory.torch_allocator import ALLOC, FREE

MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(HostDriver(), limit_bytes=64 * MIB) as pool:
        yield pool


def test_c_code_allocates_and_frees_by_address(pool: Pool) -> None:
    torch_allocator = TorchAllocator(lambda device, stream: pool)
    alloc, free = ALLOC(torch_allocator.alloc_address), FREE(torch_allocator.free_address)
    address = alloc(MIB, 0, None)
    ctypes.memset(address, 3, MIB)
    assert pool.size_of(address) == MIB
    free(address, MIB, 0, None)
    assert pool.stats().used == 0


def test_each_stream_has_a_pool_of_its_own() -> None:
    made: list[tuple[int, int]] = []

    def pool_for(device: int, stream: int) -> Pool:
        made.append((device, stream))
        return Pool(HostDriver(), limit_bytes=8 * MIB)

    torch_allocator = TorchAllocator(pool_for)
    alloc, free = ALLOC(torch_allocator.alloc_address), FREE(torch_allocator.free_address)
    first, second = alloc(4096, 0, None), alloc(4096, 0, 77)
    assert made == [(0, 0), (0, 77)]
    free(first, 4096, 0, 77)
    free(second, 4096, 0, None)
    assert [each.stats().used for each in torch_allocator.pools().values()] == [0, 0]


def test_a_refused_allocation_is_a_null_pointer_with_a_reason(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    torch_allocator = TorchAllocator(lambda device, stream: pool)
    assert ALLOC(torch_allocator.alloc_address)(1 << 40, 0, None) is None
    assert isinstance(torch_allocator.last_error, DeviceError)
    FREE(torch_allocator.free_address)(4096, 1, 0, None)
    said = capfd.readouterr().err
    assert "gets no memory" in said and "frees unknown address 0x1000" in said


def test_callbacks_come_from_any_thread(pool: Pool) -> None:
    torch_allocator = TorchAllocator(lambda device, stream: pool)
    alloc, free = ALLOC(torch_allocator.alloc_address), FREE(torch_allocator.free_address)

    def work() -> None:
        for _ in range(200):
            free(alloc(5000, 0, None), 5000, 0, None)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats().used == 0


def test_a_pytorch_for_the_cpu_only_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = ModuleType("torch")
    torch._C, torch.__version__ = SimpleNamespace(), "2.0+cpu"
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(DeviceError, match=r"built for the CPU only.*cpu_tensor") as raised:
        TorchAllocator(lambda device, stream: pytest.fail("no pool")).install()
    assert raised.value.cause == "NOT_SUPPORTED"


def test_a_host_buffer_lives_as_long_as_a_view_of_it(pool: Pool) -> None:
    buffer = host_buffer(pool, 10_000)
    part = buffer[100:200]
    part[0] = 42
    assert buffer[100] == 42 and len(buffer) == 10_000
    del buffer
    gc.collect()
    assert pool.stats().blocks == 1
    del part
    gc.collect()
    assert pool.stats().blocks == 0


def test_memory_of_a_device_has_no_host_buffer(pool: Pool) -> None:
    pool.driver.name = "cuda"
    with pytest.raises(PoolError, match="'cuda' memory, which the CPU cannot access"):
        host_buffer(pool, 64)


def test_cupy_memory_is_freed_with_its_object(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = CupyAllocator(pool)
    memory = allocator.malloc(MIB)
    ctypes.memset(memory.ptr, 1, MIB)
    assert (memory.size, memory.device_id, pool.size_of(memory.ptr)) == (MIB, 0, MIB)
    assert allocator.malloc(0).ptr == 0
    del memory
    assert pool.stats().blocks == 0
    # The interface of CuPy, as its documentation gives it: CuPy itself needs a GPU.
    cuda: Any = ModuleType("cupy.cuda")
    cuda.UnownedMemory = lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner)
    cuda.MemoryPointer = lambda memory, offset: SimpleNamespace(mem=memory, offset=offset)
    cuda.set_allocator = lambda function: setattr(cuda, "chosen", function)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    allocator.install()
    pointer = cuda.chosen(4096)
    assert pool.size_of(pointer.mem.ptr) == 4096
    del pointer
    assert pool.stats().blocks == 0


def test_tensors_live_in_the_pool_and_survive_defragment(pool: Pool) -> None:
    torch = pytest.importorskip("torch")
    gaps = [pool.allocate(2 * MIB) for _ in range(3)]
    tensor = cpu_tensor(pool, (1024, 1024))
    tensor.copy_(torch.arange(1024 * 1024, dtype=torch.float32).reshape(1024, 1024))
    total, pointer = tensor.sum().item(), tensor.data_ptr()
    pool.free(gaps[0])
    pool.free(gaps[2])
    assert pool.defragment() == 4 * MIB
    assert (tensor.sum().item(), tensor.data_ptr()) == (total, pointer)
    assert torch.equal(torch.from_dlpack(tensor), tensor)
    assert (tensor @ tensor).shape == (1024, 1024)
    whole = cpu_tensor(pool, (3, 5), torch.int64)
    assert whole.dtype == torch.int64
    del tensor, whole
    gc.collect()
    assert pool.stats().blocks == 1
