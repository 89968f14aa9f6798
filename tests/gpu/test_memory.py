"""Device memory by virtual memory calls, on the real driver: pieces, remapping, a second process,
what a crash leaves, and what the next owner of memory can read.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from libs.job.device import context as public
from libs.job.device.context import Context, copy, peer_access
from libs.job.device.cuda import Cuda
from libs.job.device.errors import Cause, DeviceError
from libs.job.device.vendor import Device
from libs.job.memory.cuda_driver import CudaDriver
from tests.gpu.conftest import Machine
from tests.gpu.memory import FIRST_BYTES
from tests.gpu.said import say

PIECES = 64
CRASHES = 20
CRASH_BYTES = 1 << 30
SECRET = b"what a tenant computed"
SETTLES_S = 30.0
STARTS_S = 60.0


class Gpu:
    """The first device, a context of this process on it, and its memory."""

    def __init__(self) -> None:
        vendor = public.vendor("nvidia")
        assert isinstance(vendor, Cuda)
        self.device: Device = vendor.devices()[0]
        self.context = Context(self.device)
        self.driver = CudaDriver(vendor)
        self.size = self.driver.granularity(self.device.ordinal)

    def mapped(self, size: int) -> tuple[int, int]:
        """Address and handle of mapped memory."""
        handle, address = self.driver.create(self.device.ordinal, size), self.driver.reserve(size)
        self.driver.map(address, size, handle, self.device.ordinal)
        return address, handle

    def given_back(self, address: int, handle: int, size: int) -> None:
        self.driver.unmap(address, size)
        self.driver.release(handle)
        self.driver.unreserve(address, size)


@pytest.fixture
def gpu(machine: Machine) -> Iterator[Gpu]:
    made = Gpu()
    yield made
    made.driver.close()
    made.context.close()


def second(verb: str, size: int, descriptor: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A second process that was sent the descriptor."""
    here, there = socket.socketpair()
    words = [sys.executable, "-m", "tests.gpu.memory", verb, str(size), str(there.fileno())]
    child = subprocess.Popen(words, pass_fds=[there.fileno()])
    there.close()
    here.settimeout(STARTS_S)
    socket.send_fds(here, [b"x"], [descriptor])
    return child, here


def test_the_devices_are_those_of_the_node(machine: Machine) -> None:
    found = public.devices("nvidia")
    assert {(each.uuid, each.pci_bus[-12:]) for each in found} <= {
        (gpu.uuid, gpu.pci_bus) for gpu in machine.gpus
    }
    say("gpus_reaching_each_other", sum(peer_access(found).values()), "pairs", len(found))


def test_limits_of_a_context_are_set(gpu: Gpu) -> None:
    gpu.context.set_limits(heap_bytes=32 << 20, stack_bytes=2_048)
    limits = gpu.context.limits()
    assert limits.heap_bytes >= 32 << 20 and limits.stack_bytes >= 2_048


def test_pieces_keep_their_bytes_when_they_are_mapped_elsewhere(gpu: Gpu) -> None:
    """Do the same as `defragment`: free every second piece and move the others together."""
    driver, size, ordinal = gpu.driver, gpu.size, gpu.device.ordinal
    address = driver.reserve(PIECES * size)
    handles = [driver.create(ordinal, size) for _ in range(PIECES)]
    for number, handle in enumerate(handles):
        driver.map(address + number * size, size, handle, ordinal)
        gpu.context.write(address + number * size, number.to_bytes(4, "little") * 4)
    began = time.perf_counter()
    for number in range(PIECES):
        driver.unmap(address + number * size, size)
    for place, number in enumerate(range(1, PIECES, 2)):
        driver.map(address + place * size, size, handles[number], ordinal)
    took = time.perf_counter() - began
    for place, number in enumerate(range(1, PIECES, 2)):
        read = gpu.context.read(address + place * size, 16)
        assert bytes(read) == number.to_bytes(4, "little") * 4
    driver.unmap(address, PIECES // 2 * size)
    for handle in handles:
        driver.release(handle)
    driver.unreserve(address, PIECES * size)
    say("gpu_remap_us", 1e6 * took / PIECES, "us", PIECES, piece_bytes=size)


def test_a_second_process_reads_and_writes_what_it_is_sent(gpu: Gpu) -> None:
    address, handle = gpu.mapped(gpu.size)
    gpu.context.write(address, b"sent by the test")
    descriptor = gpu.driver.export(handle)
    child, link = second("read", gpu.size, descriptor)
    os.close(descriptor)
    assert link.recv(FIRST_BYTES, socket.MSG_WAITALL) == b"sent by the test"
    assert link.recv(4, socket.MSG_WAITALL) == b"done" and child.wait(STARTS_S) == 0
    assert bytes(gpu.context.read(address, FIRST_BYTES)) == b"written by other"
    gpu.given_back(address, handle, gpu.size)


def test_a_copy_on_the_device_is_whole(gpu: Gpu) -> None:
    (one, first), (other, last) = gpu.mapped(gpu.size), gpu.mapped(gpu.size)
    gpu.context.write(one, os.urandom(gpu.size))
    copy(
        destination=gpu.context,
        to_address=other,
        source=gpu.context,
        from_address=one,
        size=gpu.size,
    )
    assert gpu.context.read(other, gpu.size) == gpu.context.read(one, gpu.size)
    gpu.given_back(one, first, gpu.size)
    gpu.given_back(other, last, gpu.size)


def test_a_device_that_is_full_says_so(gpu: Gpu) -> None:
    whole = gpu.context.memory()[1]
    with pytest.raises(DeviceError) as caught:
        gpu.driver.create(gpu.device.ordinal, (whole // gpu.size + 1) * gpu.size)
    assert caught.value.cause == Cause.OUT_OF_MEMORY
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"


def test_crashes_leave_no_memory_behind(gpu: Gpu) -> None:
    """Each child holds an adopted piece and one of its own when it is killed."""
    handle = gpu.driver.create(gpu.device.ordinal, CRASH_BYTES)
    descriptor = gpu.driver.export(handle)
    before = gpu.context.memory()[0]
    for _ in range(CRASHES):
        child, link = second("crash", CRASH_BYTES, descriptor)
        assert link.recv(4, socket.MSG_WAITALL) == b"held"
        assert gpu.context.memory()[0] <= before - CRASH_BYTES
        child.send_signal(signal.SIGKILL)
        child.wait()
        link.close()
    deadline = time.monotonic() + SETTLES_S
    while (after := gpu.context.memory()[0]) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    say("gpu_leaked_bytes", before - after, "bytes", CRASHES, held_bytes=2 * CRASH_BYTES)
    assert after == before
    os.close(descriptor)
    gpu.driver.release(handle)


def test_memory_does_not_show_what_its_last_owner_wrote(gpu: Gpu) -> None:
    """The broker creates memory for one tenant after the other in one process: the driver must not
    hand on what was in it.
    """
    address, handle = gpu.mapped(gpu.size)
    gpu.context.write(address, SECRET)
    gpu.given_back(address, handle, gpu.size)
    seen = 0
    handles = []
    address = gpu.driver.reserve(gpu.size)
    for _ in range(PIECES):
        handles.append(gpu.driver.create(gpu.device.ordinal, gpu.size))
        gpu.driver.map(address, gpu.size, handles[-1], gpu.device.ordinal)
        seen += SECRET in gpu.context.read(address, gpu.size)
        gpu.driver.unmap(address, gpu.size)
    for each in handles:
        gpu.driver.release(each)
    gpu.driver.unreserve(address, gpu.size)
    assert seen == 0
