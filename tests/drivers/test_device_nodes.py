"""The device nodes of real devices, as the kernel shows them now.

The real binding runs over a library built from C. The kernel's files are copies that a test
changes.
"""

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.model import GpuId
from services.node_agent.drivers import node_reads
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from tests.drivers import trees
from tests.drivers.fakes import Fakes

FIRST, SECOND = GpuId("GPU-fake-0"), GpuId("GPU-fake-1")
ADDRESSES = {FIRST: "0000:01:00.0", SECOND: "0000:02:00.0"}


class Kernel:
    """Copies of /sys and /proc."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.proc.mkdir()
        (self.proc / "devices").write_text("Character devices:\n195 nvidia\n")
        for address in ADDRESSES.values():
            trees.gpu(self.sys, address)

    def number(self, uuid: GpuId, minor: int) -> None:
        """Give a device a minor number."""
        self.show(ADDRESSES[uuid], minor)

    def show(self, address: str, minor: int) -> None:
        """Give the device at an address a minor number."""
        path = self.information(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Model: \t\t H100\nDevice Minor: \t {minor}\n")

    def hide(self, uuid: GpuId) -> None:
        """Show no number of a device, as while it is reset."""
        self.information(ADDRESSES[uuid]).unlink()

    def information(self, address: str) -> Path:
        return self.proc / "driver/nvidia/gpus" / address / "information"


@pytest_asyncio.fixture
async def kernel(fakes: Fakes, tmp_path: Path) -> Kernel:
    fakes.tell("nvidia", "count * 2")
    made = Kernel(tmp_path)
    made.number(FIRST, 0)
    made.number(SECOND, 1)
    return made


@pytest_asyncio.fixture
async def driver(kernel: Kernel) -> AsyncIterator[LocalDriver]:
    made = LocalDriver(
        vendors=[VendorDevices(VendorProcess("nvidia", 10.0, 20.0))],
        sys_root=kernel.sys,
        proc_root=kernel.proc,
        node_id="n",
    )
    await made.inventory()
    yield made
    await made.close()


async def test_numbers_that_changed_since_the_inventory_are_read_again(
    driver: LocalDriver, kernel: Kernel
) -> None:
    assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}
    kernel.number(FIRST, 1)
    kernel.number(SECOND, 0)
    await driver.read_nodes()
    assert driver.nodes == {FIRST: ((195, 1),), SECOND: ((195, 0),)}


async def test_a_device_that_shows_no_number_for_a_moment_keeps_its_last_one(
    driver: LocalDriver, kernel: Kernel
) -> None:
    kernel.hide(FIRST)
    await driver.read_nodes()
    assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}


async def test_a_number_that_another_device_has_by_now_is_not_kept(
    driver: LocalDriver, kernel: Kernel
) -> None:
    kernel.hide(FIRST)
    kernel.number(SECOND, 0)
    await driver.read_nodes()
    assert driver.nodes == {FIRST: (), SECOND: ((195, 0),)}


async def test_a_gpu_that_appears_on_the_bus_has_its_nodes_too(
    driver: LocalDriver, kernel: Kernel
) -> None:
    trees.gpu(kernel.sys, "0000:03:00.0")
    kernel.show("0000:03:00.0", 2)
    await driver.read_nodes()
    assert driver.nodes[GpuId("0000:03:00.0")] == ((195, 2),)


async def test_a_driver_whose_files_cannot_be_read_keeps_the_last_nodes_and_stops_nothing(
    driver: LocalDriver,
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A read of a pipe without a writer hangs, as one of a file of a driver that hangs."""
    monkeypatch.setattr(node_reads, "READ_S", 0.05)
    kernel.hide(FIRST)
    pipe = kernel.information(ADDRESSES[FIRST])
    os.mkfifo(pipe)
    for _ in range(3):
        await driver.read_nodes()
        assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}
    assert [gpu.uuid for gpu in await driver.inventory()] == [FIRST, SECOND]
    assert sum(thread.name == "nodes of nvidia" for thread in threading.enumerate()) == 1
    assert caplog.text.count("the device nodes of nvidia cannot be read") == 1
    os.close(os.open(pipe, os.O_WRONLY))
    pipe.unlink()
    kernel.number(FIRST, 2)
    monkeypatch.setattr(node_reads, "READ_S", 10.0)
    await driver.read_nodes()
    assert driver.nodes == {FIRST: ((195, 2),), SECOND: ((195, 1),)}


async def test_damaged_files_keep_the_last_nodes_until_they_are_right_again(
    driver: LocalDriver, kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.information(ADDRESSES[FIRST]).write_bytes(b"\xff")
    for _ in range(2):
        await driver.read_nodes()
        assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}
    assert caplog.text.count("nodes of nvidia cannot be read: its files are not as expected") == 1
    kernel.number(FIRST, 2)
    await driver.read_nodes()
    assert driver.nodes == {FIRST: ((195, 2),), SECOND: ((195, 1),)}


async def test_an_agent_that_has_no_thread_for_a_read_keeps_the_last_nodes(
    driver: LocalDriver,
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = threading.Thread.start

    def fails(self: threading.Thread) -> None:
        if self.name.startswith("nodes of"):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fails)
    kernel.number(FIRST, 2)
    await driver.read_nodes()
    assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}
    assert "the agent could not start a thread (can't start new thread)" in caplog.text
    monkeypatch.undo()
    await driver.read_nodes()
    assert driver.nodes == {FIRST: ((195, 2),), SECOND: ((195, 1),)}


async def test_a_device_that_its_driver_does_not_show_has_its_nodes_too(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "count * 1")
    await driver.close()
    await driver.inventory()
    assert [str(uuid) for uuid in driver.absent] == [SECOND]
    assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}
