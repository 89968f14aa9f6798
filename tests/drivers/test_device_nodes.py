"""The device nodes of real devices, as the kernel shows them now.

The real binding runs over a library built from C. The kernel's files are copies that a test
changes.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from libs.common.model import GpuId
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
        path = self.proc / "driver/nvidia/gpus" / ADDRESSES[uuid] / "information"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Model: \t\t H100\nDevice Minor: \t {minor}\n")

    def hide(self, uuid: GpuId) -> None:
        """Show no number of a device, as while it is reset."""
        (self.proc / "driver/nvidia/gpus" / ADDRESSES[uuid] / "information").unlink()


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


async def test_a_device_that_its_driver_does_not_show_has_its_nodes_too(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "count * 1")
    await driver.close()
    await driver.inventory()
    assert [str(uuid) for uuid in driver.absent] == [SECOND]
    assert driver.nodes == {FIRST: ((195, 0),), SECOND: ((195, 1),)}
