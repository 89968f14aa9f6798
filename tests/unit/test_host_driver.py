"""The memory driver over memfd: real mappings, a cap, errors, and a second process."""

import ctypes
import faulthandler
import os
import signal
from collections.abc import Iterator

import pytest

from libs.job.device.errors import DeviceError
from libs.job.memory.host_driver import HostDriver

MIB = 1 << 20
CHUNK = 2 * MIB


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver(devices=2, device_bytes=4 * CHUNK)


@pytest.fixture
def space(driver: HostDriver) -> Iterator[int]:
    yield driver.reserve(4 * CHUNK)


def test_memory_keeps_its_bytes_when_it_moves(driver: HostDriver, space: int) -> None:
    handle = driver.create(0, CHUNK)
    driver.map(space, CHUNK, handle, 0)
    ctypes.memset(space, 7, CHUNK)
    driver.unmap(space, CHUNK)
    driver.map(space + CHUNK, CHUNK, handle, 0)
    assert ctypes.string_at(space + CHUNK, CHUNK) == b"\x07" * CHUNK


def test_one_memory_mapped_twice_shows_the_same_bytes(driver: HostDriver, space: int) -> None:
    handle = driver.create(0, CHUNK)
    driver.map(space, CHUNK, handle, 0)
    driver.map(space + CHUNK, CHUNK, handle, 0)
    ctypes.memmove(space, b"hello", 5)
    assert ctypes.string_at(space + CHUNK, 5) == b"hello"


def test_another_process_adopts_the_descriptor(driver: HostDriver, space: int) -> None:
    handle = driver.create(0, CHUNK)
    driver.map(space, CHUNK, handle, 0)
    descriptor = driver.export(handle)
    child = os.fork()
    if not child:
        other = HostDriver()
        address = other.reserve(CHUNK)
        other.map(address, CHUNK, other.adopt(0, descriptor, CHUNK), 0)
        ctypes.memmove(address, b"from the child", 14)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(descriptor)
    assert ctypes.string_at(space, 14) == b"from the child"


def test_the_device_has_a_limit_and_memory_counts_until_it_is_unmapped(
    driver: HostDriver, space: int
) -> None:
    handles = [driver.create(0, CHUNK) for _ in range(4)]
    with pytest.raises(DeviceError, match="0 of 8388608 are free") as raised:
        driver.create(0, CHUNK)
    assert raised.value.cause == "OUT_OF_MEMORY"
    assert driver.create(1, CHUNK)
    driver.map(space, CHUNK, handles[0], 0)
    driver.release(handles[0])
    assert driver.used[0] == 4 * CHUNK
    driver.unmap(space, CHUNK)
    assert driver.used[0] == 3 * CHUNK


@pytest.mark.parametrize("before", [False, True], ids=["reserved", "unmapped again"])
def test_an_address_without_memory_cannot_be_touched(
    driver: HostDriver, space: int, before: bool
) -> None:
    if before:
        driver.map(space, CHUNK, driver.create(0, CHUNK), 0)
        driver.unmap(space, CHUNK)
    child = os.fork()
    if not child:
        faulthandler.disable()
        ctypes.string_at(space, 1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_wrong_calls_are_refused_with_the_cause(driver: HostDriver, space: int) -> None:
    handle = driver.create(0, CHUNK)
    driver.map(space, CHUNK, handle, 0)
    descriptor = driver.export(handle)
    refused = [
        ("INVALID_DEVICE", lambda: driver.create(2, CHUNK)),
        ("INVALID_VALUE", lambda: driver.create(0, CHUNK + 1)),
        ("INVALID_VALUE", lambda: driver.create(0, -CHUNK)),
        ("INVALID_HANDLE", lambda: driver.export(99)),
        ("INVALID_HANDLE", lambda: driver.release(99)),
        ("INVALID_HANDLE", lambda: driver.adopt(0, 9999, CHUNK)),
        ("INVALID_VALUE", lambda: driver.adopt(0, descriptor, 2 * CHUNK)),
        ("ALREADY_MAPPED", lambda: driver.map(space, CHUNK, handle, 0)),
        ("INVALID_VALUE", lambda: driver.map(space - CHUNK, CHUNK, handle, 0)),
        ("NOT_MAPPED", lambda: driver.unmap(space + CHUNK, CHUNK)),
        ("ALREADY_MAPPED", lambda: driver.unreserve(space, 4 * CHUNK)),
    ]
    for cause, call in refused:
        with pytest.raises(DeviceError) as raised:
            call()
        assert raised.value.cause == cause
    os.close(descriptor)


def test_no_descriptor_is_left_when_all_is_released(driver: HostDriver, space: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    handle = driver.create(0, CHUNK)
    driver.map(space, CHUNK, handle, 0)
    driver.release(handle)
    driver.unmap(space, CHUNK)
    driver.unreserve(space, 4 * CHUNK)
    assert len(os.listdir("/proc/self/fd")) == before
    assert driver.used == [0, 0]
