"""The contract of MemoryDriver, over the libraries of all vendors and over the host twin.

What a test reads and writes at a mapped address are real bytes: physical memory is a memfd, so that
a wrong mapping shows as wrong contents, and an early use as a dead process.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.cuda_driver import CudaDriver
from tests.vendors.fakes import KINDS, Driver, Fake
from tests.vendors.twin import host_driver

ALIGNMENTS: Final = {"cuda": 256, "hip": 4096, "level_zero": 64, "host": 64}
MIB: Final = 1 << 20
# Another process adopts what it is sent, reads it, writes over it, and answers with what it read.
OTHER: Final = """
import ctypes, os, socket, sys
from tests.vendors.fakes import KINDS
from tests.vendors.twin import host_driver
from libs.job.device.driver_library import Library
name, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
link = socket.socket(fileno=int(sys.argv[4]))
_, (descriptor,), _, _ = socket.recv_fds(link, 1, 1)
kind = KINDS.get(name)
driver = kind.driver(Library(kind.description, path)) if kind else host_driver()
handle = driver.adopt(0, descriptor, size)
os.close(descriptor)
address = driver.reserve(size)
driver.map(address, size, handle, 0)
read = ctypes.string_at(address, 4)
ctypes.memmove(address, b"back", 4)
link.send(read)
"""


@pytest.fixture(params=[*KINDS, "host"])
def driver(request: pytest.FixtureRequest, fakes: dict[str, Fake]) -> Driver:
    return fakes[request.param].driver() if request.param in KINDS else host_driver()


@pytest.fixture
def mapped(driver: Driver) -> Iterator[tuple[int, int, int]]:
    """Address, size and handle of one mapped piece."""
    size = driver.granularity(0)
    handle, address = driver.create(0, size), driver.reserve(4 * size)
    driver.map(address, size, handle, 0)
    yield address, size, handle


def cause(call: Callable[..., Any], *arguments: Any) -> Cause:
    with pytest.raises(DeviceError) as caught:
        call(*arguments)
    return caught.value.cause


def put(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def test_a_driver_says_its_name_alignment_and_granularity(driver: Driver) -> None:
    assert driver.alignment == ALIGNMENTS[driver.name]
    assert driver.granularity(0) > 0 and driver.granularity(0) % 4096 == 0


def test_mapped_memory_holds_bytes_at_an_aligned_address(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, _ = mapped
    assert address % driver.granularity(0) == 0
    assert ctypes.string_at(address, size) == bytes(size)
    put(address + size - 5, b"hello")
    assert ctypes.string_at(address + size - 5, 5) == b"hello"


def test_memory_keeps_its_contents_when_it_moves_to_another_address(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    put(address, b"stays")
    driver.unmap(address, size)
    driver.map(address + 2 * size, size, handle, 0)
    assert ctypes.string_at(address + 2 * size, 5) == b"stays"


def test_two_mappings_of_one_piece_show_the_same_bytes(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    driver.map(address + size, size, handle, 0)
    put(address, b"alias")
    assert ctypes.string_at(address + size, 5) == b"alias"


def test_released_memory_stays_until_its_last_mapping_is_gone(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    driver.map(address + size, size, handle, 0)
    put(address, b"still")
    driver.release(handle)
    driver.unmap(address, size)
    assert ctypes.string_at(address + size, 5) == b"still"
    driver.unmap(address + size, size)
    driver.unreserve(address, 4 * size)


def test_one_unmap_takes_all_pieces_of_a_range(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, _ = mapped
    other = driver.create(0, 2 * size)
    driver.map(address + size, 2 * size, other, 0)
    driver.unmap(address, 4 * size)
    assert cause(driver.unmap, address, 4 * size) == Cause.NOT_MAPPED
    driver.unreserve(address, 4 * size)


def test_another_process_adopts_what_this_one_exports(
    driver: Driver, fakes: dict[str, Fake], mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    put(address, b"sent")
    descriptor = driver.export(handle)
    here, there = socket.socketpair()
    path = str(fakes[driver.name].path) if driver.name in fakes else ""
    words = [OTHER, driver.name, path, str(size), str(there.fileno())]
    with here, there:
        child = subprocess.Popen([sys.executable, "-c", *words], pass_fds=[there.fileno()])
        socket.send_fds(here, [b"x"], [descriptor])
        os.close(descriptor)
        there.close()
        assert here.recv(4) == b"sent"
        assert child.wait() == 0
    assert ctypes.string_at(address, 4) == b"back"


def test_an_exported_descriptor_outlives_the_handle(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    put(address, b"kept")
    descriptor = driver.export(handle)
    driver.unmap(address, size)
    driver.release(handle)
    adopted = driver.adopt(0, descriptor, size)
    assert os.fstat(descriptor)
    os.close(descriptor)
    driver.map(address, size, adopted, 0)
    assert ctypes.string_at(address, 4) == b"kept"


def test_each_export_is_a_descriptor_of_its_own(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    one, other = driver.export(mapped[2]), driver.export(mapped[2])
    assert one != other and not os.get_inheritable(one)
    os.close(one)
    os.close(other)


def test_a_thousand_lives_of_a_piece_leave_no_descriptor_behind(driver: Driver) -> None:
    size = driver.granularity(0)
    address = driver.reserve(size)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1_000):
        handle = driver.create(0, size)
        os.close(driver.export(handle))
        driver.map(address, size, handle, 0)
        driver.release(handle)
        driver.unmap(address, size)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [0, -1, 1, 4097])
def test_a_size_that_is_no_multiple_of_the_granularity_is_refused(
    driver: Driver, size: int
) -> None:
    assert cause(driver.create, 0, size) == Cause.INVALID_VALUE
    assert cause(driver.reserve, size) == Cause.INVALID_VALUE


def test_a_handle_that_was_released_is_refused(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    driver.release(handle)
    assert cause(driver.release, handle) == Cause.INVALID_HANDLE
    assert cause(driver.export, handle) == Cause.INVALID_HANDLE
    assert cause(driver.map, address + size, size, handle, 0) == Cause.INVALID_HANDLE


def test_unknown_handle_is_refused(driver: Driver) -> None:
    size = driver.granularity(0)
    assert cause(driver.export, 12345) == Cause.INVALID_HANDLE
    assert cause(driver.release, 12345) == Cause.INVALID_HANDLE
    assert cause(driver.map, driver.reserve(size), size, 12345, 0) == Cause.INVALID_HANDLE


def test_a_closed_descriptor_is_refused(driver: Driver) -> None:
    descriptor = os.dup(0)
    os.close(descriptor)
    size = driver.granularity(0)
    assert cause(driver.adopt, 0, descriptor, size) == Cause.INVALID_HANDLE


def test_a_mapping_over_another_is_refused(driver: Driver, mapped: tuple[int, int, int]) -> None:
    address, size, handle = mapped
    assert cause(driver.map, address, size, handle, 0) == Cause.ALREADY_MAPPED
    assert cause(driver.unreserve, address, 4 * size) == Cause.ALREADY_MAPPED


def test_a_mapping_outside_of_a_reservation_is_refused(
    driver: Driver, mapped: tuple[int, int, int]
) -> None:
    address, size, handle = mapped
    assert cause(driver.map, address + 4 * size, size, handle, 0) == Cause.INVALID_VALUE
    assert cause(driver.map, address - size, size, handle, 0) == Cause.INVALID_VALUE


def test_memory_is_mapped_whole(driver: Driver, mapped: tuple[int, int, int]) -> None:
    address, size, _ = mapped
    large = driver.create(0, 2 * size)
    assert cause(driver.map, address + size, size, large, 0) == Cause.INVALID_VALUE
    driver.map(address + size, 2 * size, large, 0)
    assert cause(driver.unmap, address + size, size) == Cause.INVALID_VALUE


def test_a_range_is_given_back_once_and_whole(driver: Driver) -> None:
    size = driver.granularity(0)
    address = driver.reserve(2 * size)
    assert cause(driver.unreserve, address, size) == Cause.INVALID_VALUE
    driver.unreserve(address, 2 * size)
    assert cause(driver.unreserve, address, 2 * size) == Cause.INVALID_VALUE


def test_threads_create_map_and_free_beside_each_other(driver: Driver) -> None:
    size, failures = driver.granularity(0), []

    def live(number: int) -> None:
        address = driver.reserve(size)
        for _ in range(50):
            handle = driver.create(0, size)
            driver.map(address, size, handle, 0)
            put(address, bytes([number]) * 64)
            if ctypes.string_at(address, 64) != bytes([number]) * 64:
                failures.append(number)
            driver.unmap(address, size)
            driver.release(handle)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


class TestVendors:
    """Failures of real devices that the twin does not have.

    A device is full, fails during a call, or belongs to another process.
    """

    def test_a_full_device_says_so_in_the_driver_s_words(self, fake: Fake) -> None:
        fake.tell("memory_mib 0 8")
        driver = fake.driver()
        handles = [driver.create(0, 4 * MIB) for _ in range(2)]
        with pytest.raises(DeviceError) as caught:
            driver.create(0, 2 * MIB)
        error = caught.value
        assert (error.cause, error.call, error.code) == (
            Cause.OUT_OF_MEMORY,
            fake.kind.steps["create"],
            fake.kind.full,
        )
        assert error.name and error.text and "device 0, 2097152 bytes" in str(error)
        driver.release(handles[0])
        assert driver.create(0, 2 * MIB)

    def test_a_device_that_is_not_there_is_refused(self, fake: Fake) -> None:
        found = cause(fake.driver().create, 7, 2 * MIB)
        # HIP does not tell a wrong device from another wrong value.
        assert found == (Cause.INVALID_VALUE if fake.name == "hip" else Cause.INVALID_DEVICE)

    @pytest.mark.parametrize("step", ["create", "map", "access", "unmap", "release", "unreserve"])
    def test_a_step_that_fails_changes_nothing_and_works_afterwards(
        self, fake: Fake, step: str
    ) -> None:
        driver = fake.driver()
        size = driver.granularity(0)
        address = driver.reserve(size)
        handles: list[int] = []
        steps: dict[str, Callable[[], object]] = {
            "create": lambda: handles.append(driver.create(0, size)),
            "map": lambda: driver.map(address, size, handles[0], 0),
            "unmap": lambda: driver.unmap(address, size),
            "release": lambda: driver.release(handles[0]),
            "unreserve": lambda: driver.unreserve(address, size),
        }
        failed = []
        for name, work in steps.items():
            if name in (step, "map" if step == "access" else ""):
                fake.fail(step, fake.kind.lost)
                failed.append(cause(work))
                fake.heal()
            work()
        assert failed == [Cause.DEVICE_LOST]

    def test_memory_of_another_vendor_is_not_adopted(self, fakes: dict[str, Fake]) -> None:
        cuda, hip = fakes["cuda"].driver(), fakes["hip"].driver()
        size = cuda.granularity(0)
        descriptor = cuda.export(cuda.create(0, size))
        assert cause(hip.adopt, 0, descriptor, size) == Cause.INVALID_VALUE
        os.close(descriptor)

    def test_a_size_that_the_exporter_did_not_mean_is_refused_at_the_latest_when_mapped(
        self, fake: Fake
    ) -> None:
        driver = fake.driver()
        size = driver.granularity(0)
        descriptor = driver.export(driver.create(0, size))
        address = driver.reserve(2 * size)
        handle = driver.adopt(0, descriptor, 2 * size)
        assert cause(driver.map, address, 2 * size, handle, 0) == Cause.INVALID_VALUE
        os.close(descriptor)

    @pytest.mark.parametrize("version", [60200000, 70026000, 70100000, 70226015])
    def test_hip_imports_by_pointer_before_7_1_and_by_value_since(
        self, fakes: dict[str, Fake], version: int
    ) -> None:
        fakes["hip"].tell(f"version * {version}")
        driver = fakes["hip"].driver()
        size = driver.granularity(0)
        descriptor = driver.export(driver.create(0, size))
        handle, address = driver.adopt(0, descriptor, size), driver.reserve(size)
        driver.map(address, size, handle, 0)
        assert ctypes.string_at(address, 4) == bytes(4)
        os.close(descriptor)

    def test_a_device_without_virtual_memory_is_refused(self, fakes: dict[str, Fake]) -> None:
        fakes["cuda"].tell("no_vmm 1 1")
        driver = fakes["cuda"].driver()
        assert driver.create(0, 2 * MIB)
        assert cause(driver.create, 1, 2 * MIB) == Cause.NOT_SUPPORTED

    def test_only_mapping_makes_a_context(self, fakes: dict[str, Fake]) -> None:
        """The broker, which creates, exports and adopts, costs no device memory of its own."""
        driver = fakes["cuda"].driver()
        size = driver.granularity(0)
        handle = driver.create(0, size)
        descriptor = driver.export(handle)
        driver.adopt(0, descriptor, size)
        os.close(descriptor)
        assert fakes["cuda"].uses(0) == 0
        address = driver.reserve(size)
        driver.map(address, size, handle, 0)
        assert fakes["cuda"].uses(0) == 1
        driver.unmap(address, size)
        assert isinstance(driver, CudaDriver)
        driver.close()
        assert fakes["cuda"].uses(0) == 0

    def test_access_to_reserved_but_unmapped_memory_ends_the_process(self, fake: Fake) -> None:
        program = (
            "import ctypes, sys\n"
            "from tests.vendors.fakes import KINDS\n"
            "from libs.job.device.driver_library import Library\n"
            "kind = KINDS[sys.argv[1]]\n"
            "driver = kind.driver(Library(kind.description, sys.argv[2]))\n"
            "ctypes.string_at(driver.reserve(driver.granularity(0)), 1)\n"
        )
        words = [sys.executable, "-c", program, fake.name, str(fake.path)]
        assert subprocess.run(words, check=False).returncode == -signal.SIGSEGV
