"""The pool over real mappings: growth, moves, faults of the driver, threads, forks, wrong calls."""

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest

from libs.job.device.errors import DeviceError
from libs.job.memory.driver import LocalGrants
from libs.job.memory.host_driver import HostDriver
from libs.job.memory.pool import Pool, PoolError

MIB = 1 << 20
CHUNK = 2 * MIB


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver(device_bytes=8 * CHUNK)


@pytest.fixture
def pool(driver: HostDriver) -> Iterator[Pool]:
    with Pool(driver, limit_bytes=8 * CHUNK) as pool:
        yield pool


def test_the_pool_takes_chunks_when_it_needs_them_and_returns_them(
    driver: HostDriver, pool: Pool
) -> None:
    assert driver.used == [0]
    block = pool.allocate(3 * MIB)
    assert driver.used == [2 * CHUNK]
    pool.free(block)
    assert pool.shrink(CHUNK) == CHUNK
    assert driver.used == [CHUNK]
    assert pool.shrink() == CHUNK
    assert driver.used == [0]


def test_free_chunks_move_together_and_no_block_changes(driver: HostDriver, pool: Pool) -> None:
    blocks = [pool.allocate(CHUNK) for _ in range(8)]
    for value, block in enumerate(blocks):
        ctypes.memset(block, value, CHUNK)
    for block in blocks[::2]:
        pool.free(block)
    assert pool.stats().fragmentation == 0.75
    assert pool.defragment() == 4 * CHUNK
    stats = pool.stats()
    assert (stats.fragmentation, stats.largest_free, stats.reserved) == (0, 4 * CHUNK, 8 * CHUNK)
    for value in range(1, 8, 2):
        assert ctypes.string_at(blocks[value], CHUNK) == bytes([value]) * CHUNK
    whole = pool.allocate(4 * CHUNK)
    ctypes.memset(whole, 9, 4 * CHUNK)
    assert ctypes.string_at(blocks[1], CHUNK) == b"\x01" * CHUNK
    assert driver.used == [8 * CHUNK]


def test_an_allocation_moves_free_chunks_before_it_fails(pool: Pool) -> None:
    blocks = [pool.allocate(CHUNK) for _ in range(8)]
    for block in blocks[::2]:
        pool.free(block)
    assert pool.allocate(4 * CHUNK)
    with pytest.raises(DeviceError, match="16777216 of at most 16777216 bytes are in use"):
        pool.allocate(1)


def test_the_driver_s_limit_is_an_error_and_changes_nothing(driver: HostDriver) -> None:
    with Pool(driver, limit_bytes=100 * CHUNK) as pool:
        block = pool.allocate(5 * CHUNK)
        before = pool.stats()
        with pytest.raises(DeviceError) as raised:
            pool.allocate(6 * CHUNK)
        assert raised.value.cause == "OUT_OF_MEMORY"
        assert pool.stats() == before
        assert driver.used == [5 * CHUNK]
        pool.free(block)
        assert pool.allocate(8 * CHUNK)


def test_the_device_is_waited_for_before_memory_moves(driver: HostDriver) -> None:
    calls: list[str] = []
    with Pool(driver, limit_bytes=8 * CHUNK, synchronise=lambda: calls.append("waited")) as pool:
        blocks = [pool.allocate(CHUNK) for _ in range(3)]
        pool.free(blocks[0])
        pool.free(blocks[2])
        assert calls == []
        pool.defragment()
        assert calls == ["waited"]


def test_nothing_moves_if_the_largest_free_block_would_not_grow(pool: Pool) -> None:
    pool.allocate(MIB)
    pool.free(pool.allocate(3 * CHUNK))
    before = pool.stats()
    assert before.largest_free > 3 * CHUNK
    assert pool.defragment() == 0
    assert pool.stats() == before


class Faulty(HostDriver):
    """Fails the `fail_at`-th of its map and unmap calls, and `faults - 1` after it."""

    fail_at = 0
    faults = 1

    def map(self, address: int, size: int, handle: int, device: int) -> None:
        self._count("map")
        super().map(address, size, handle, device)

    def unmap(self, address: int, size: int) -> None:
        self._count("unmap")
        super().unmap(address, size)

    def _count(self, call: str) -> None:
        self.fail_at -= 1
        if -self.faults < self.fail_at <= 0:
            raise DeviceError("UNKNOWN", call, driver="host", text="planted")


@pytest.mark.parametrize("faults", [1, 2, 3])
@pytest.mark.parametrize("fail_at", range(1, 9))
def test_a_fault_in_a_move_loses_neither_memory_nor_bytes(fail_at: int, faults: int) -> None:
    driver = Faulty(device_bytes=8 * CHUNK)
    pool = Pool(driver, limit_bytes=8 * CHUNK)
    blocks = [pool.allocate(CHUNK) for _ in range(8)]
    for value, block in enumerate(blocks):
        ctypes.memset(block, value, CHUNK)
    for block in blocks[::2]:
        pool.free(block)
    driver.fail_at, driver.faults = fail_at, faults
    with pytest.raises(DeviceError, match="planted"):
        pool.defragment()
    driver.fail_at = 0
    driver.faults = 0
    stats = pool.stats()
    assert stats.used + stats.free == stats.reserved == driver.used[0] == stats.chunks * CHUNK
    for value in range(1, 8, 2):
        assert ctypes.string_at(blocks[value], CHUNK) == bytes([value]) * CHUNK
    again = pool.allocate(stats.free)
    ctypes.memset(again, 5, stats.free)
    pool.close()
    assert driver.used == [0]


@pytest.mark.parametrize("fail_at", range(1, 4))
def test_a_fault_while_the_pool_grows_loses_no_memory(fail_at: int) -> None:
    driver = Faulty(device_bytes=8 * CHUNK)
    with Pool(driver, limit_bytes=8 * CHUNK) as pool:
        driver.fail_at = fail_at
        with pytest.raises(DeviceError, match="planted"):
            pool.allocate(3 * CHUNK)
        assert driver.used[0] == pool.stats().reserved == (fail_at - 1) * CHUNK
        driver.faults = 0
        assert pool.allocate(8 * CHUNK)


def test_wrong_calls_are_refused_with_what_is_wrong(pool: Pool) -> None:
    block = pool.allocate(4096)
    refused = [
        ("cannot allocate 0 bytes", lambda: pool.allocate(0)),
        ("cannot allocate -5 bytes", lambda: pool.allocate(-5)),
        ("cannot allocate 1000000", lambda: pool.allocate(10**18)),
        ("whole numbers", lambda: pool.allocate("4096")),
        ("whole numbers", lambda: pool.allocate(1.5)),
        ("whole numbers", lambda: pool.free(None)),
        ("inside the block", lambda: pool.free(block + 64)),
        ("does not belong", lambda: pool.free(4096)),
        ("not the start of a block", lambda: pool.size_of(block + 64)),
        ("cannot allocate -1 bytes", lambda: pool.resize(block, -1)),
        ("grow by nothing", lambda: pool.grow(0)),
    ]
    for text, call in refused:
        with pytest.raises(PoolError, match=text):
            call()
    pool.free(block)
    with pytest.raises(PoolError, match="freed twice"):
        pool.free(block)
    assert pool.stats().used == 0


def test_a_pool_has_room_for_a_chunk(driver: HostDriver) -> None:
    with pytest.raises(PoolError, match="not a positive multiple of 2097152"):
        Pool(driver, chunk_bytes=MIB)
    with pytest.raises(PoolError, match="less than one chunk"):
        Pool(driver, limit_bytes=MIB)


def test_a_closed_pool_refuses_calls_and_holds_no_memory(driver: HostDriver) -> None:
    pool = Pool(driver, limit_bytes=8 * CHUNK)
    block = pool.allocate(CHUNK)
    pool.close()
    pool.close()
    assert driver.used == [0]
    for call in (
        lambda: pool.allocate(64),
        lambda: pool.free(block),
        lambda: pool.resize(block, 64),
        pool.stats,
        pool.defragment,
        pool.shrink,
    ):
        with pytest.raises(PoolError, match="this pool is closed"):
            call()


def test_a_forked_child_refuses_and_the_parent_goes_on(pool: Pool) -> None:
    block = pool.allocate(CHUNK)
    child = os.fork()
    if not child:
        try:
            pool.allocate(64)
        except PoolError as error:
            os._exit(7 if "belongs to the parent process" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    pool.free(block)
    assert pool.stats().used == 0


def test_many_threads_never_get_the_same_bytes(pool: Pool) -> None:
    wrong: list[int] = []

    def work(value: int) -> None:
        for turn in range(300):
            size = 64 * (1 + (turn * 7 + value) % 40)
            block = pool.allocate(size)
            ctypes.memset(block, value, size)
            if ctypes.string_at(block, size) != bytes([value]) * size:
                wrong.append(block)
            pool.free(block)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.stats().used == 0


def test_a_pool_of_one_thread_refuses_another(driver: HostDriver) -> None:
    pool = Pool(driver, limit_bytes=8 * CHUNK, shared=False)
    said: list[str] = []

    def work() -> None:
        try:
            pool.allocate(64)
        except PoolError as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(said) == 1 and "shared=False" in said[0]
    pool.free(pool.allocate(64))


@pytest.mark.parametrize("shared", [True, False])
def test_a_finaliser_inside_a_call_leaves_its_block_for_later(
    driver: HostDriver, shared: bool
) -> None:
    pool = Pool(driver, limit_bytes=8 * CHUNK, shared=shared)
    blocks = [pool.allocate(CHUNK) for _ in range(8)]
    with pool._lock:
        pool.free_if_open(blocks[0])
        assert len(pool._blocks.live) == 8
    assert pool.allocate(CHUNK) == blocks[0]
    pool.free_if_open(blocks[1])
    assert pool.stats().blocks == 7
    pool.close()
    pool.free_if_open(blocks[2])


class Stingy(LocalGrants):
    """A source that refuses after three grants and counts what came back."""

    left = 3

    def grant(self, device: int, size: int) -> int:
        if not self.left:
            raise DeviceError("OUT_OF_MEMORY", "grant", driver="broker", text="quota")
        self.left -= 1
        return super().grant(device, size)

    def give_back(self, handle: int) -> None:
        self.left += 1
        super().give_back(handle)


def test_refused_growth_returns_the_memory_that_it_had(driver: HostDriver) -> None:
    grants = Stingy(driver)
    with Pool(driver, grants=grants, limit_bytes=8 * CHUNK) as pool:
        with pytest.raises(DeviceError, match="quota"):
            pool.allocate(4 * CHUNK)
        assert grants.left == 3
        assert pool.allocate(3 * CHUNK)
    assert grants.left == 3
