"""Devices that a machine has but no driver shows.

Devices that were taken out, partitioned otherwise or bound to another driver do not count.
"""

from pathlib import Path

import pytest

from services.node_agent.drivers.absent import UNKNOWN_MODEL, Absent, Vendor, absent
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Device
from services.node_agent.drivers.sysfs import OnBus, gpus
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from tests.drivers import trees
from tests.drivers.fakes import Fakes

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"


def device(address: str, uuid: str = "", vendor: str = "nvidia") -> Device:
    return Device(
        pci_bus=address,
        uuid=uuid or f"GPU-{address[5:7]}",
        index=0,
        vendor=vendor,
        model="H100",
        driver_version="580",
    )


def look(
    had: list[Device],
    shown: list[Device],
    bus: list[OnBus],
    removed: tuple[str, ...] = (),
    missing: str = "",
) -> list[Absent]:
    return absent(
        had=had, vendors={"nvidia": Vendor(shown, missing)}, bus=bus, removed=removed, node_id="n1"
    )


def on_bus(
    address: str, driver: str = "nvidia", vendor: str = "nvidia", kind: str = "0x0302"
) -> OnBus:
    return OnBus(address, vendor, kind, driver)


def test_known_device_that_is_not_shown_is_lost_on_the_bus_or_not() -> None:
    had, shown = [device(FIRST), device(SECOND)], [device(FIRST)]
    (gone,) = look(had, shown, [on_bus(FIRST)])
    assert (
        gone.lost and gone.device.uuid == "GPU-02" and gone.why.endswith("it is not on the PCI bus")
    )
    (bound,) = look(had, shown, [on_bus(FIRST), on_bus(SECOND)])
    assert bound.why.endswith("it is on the PCI bus, bound to nvidia")
    (unbound,) = look(had, shown, [on_bus(FIRST), on_bus(SECOND, "")])
    assert unbound.why.endswith("bound to no driver")


def test_device_that_only_the_bus_lists_is_lost_and_named_by_its_address() -> None:
    (found,) = look([], [device(FIRST)], [on_bus(FIRST), on_bus(SECOND)])
    assert found.lost and (found.device.uuid, found.device.model) == (f"n1-{SECOND}", UNKNOWN_MODEL)


def test_device_shown_with_other_partitions_or_replaced_is_not_absent() -> None:
    assert look([device(FIRST)], [device(FIRST)], [on_bus(FIRST)]) == []
    assert look([device(FIRST, "GPU-a.3")], [device(SECOND, "GPU-a")], []) == []
    assert look([device(FIRST, "GPU-a")], [device(FIRST, "GPU-new")], []) == []


def test_device_taken_out_or_bound_to_another_driver_is_not_absent() -> None:
    had, shown = [device(FIRST), device(SECOND)], [device(FIRST)]
    assert look(had, shown, [on_bus(SECOND)], removed=("GPU-02", SECOND)) == []
    assert look(had, shown, [], removed=(SECOND,)) == []
    assert look(had, shown, [on_bus(SECOND, "vfio-pci")]) == []


def test_missing_driver_does_not_prove_a_loss() -> None:
    (found,) = look(
        [device(FIRST)],
        [],
        [on_bus(FIRST), on_bus(SECOND)],
        missing="Driver/library version mismatch",
    )
    assert not found.lost and "version mismatch" in found.why


def test_devices_that_no_library_can_see_are_not_expected() -> None:
    assert look([device(FIRST, vendor="amd")], [], []) == []
    bus = [on_bus(SECOND, "i915", "intel", "0x0300"), on_bus(FIRST, "", "amd")]
    assert absent(had=[], vendors={"intel": Vendor(())}, bus=bus, removed=(), node_id="n1") == []
    (found,) = absent(
        had=[],
        vendors={"intel": Vendor(())},
        bus=[on_bus(SECOND, "xe", "intel", "0x0380")],
        removed=(),
        node_id="n1",
    )
    assert found.device.vendor == "intel"


def test_the_bus_lists_gpus_and_no_virtual_functions_or_other_cards(tmp_path: Path) -> None:
    trees.gpu(tmp_path, FIRST)
    trees.gpu(tmp_path, SECOND, driver="")
    trees.gpu(tmp_path, "0000:03:00.0", kind="0x020000")
    trees.gpu(tmp_path, "0000:04:00.0", vendor="0x1a03", kind="0x030000")
    trees.gpu(tmp_path, "0000:05:00.0")
    (tmp_path / "bus/pci/devices/0000:05:00.0/physfn").mkdir()
    assert gpus(tmp_path) == [
        OnBus(FIRST, "nvidia", "0x0302", "nvidia"),
        OnBus(SECOND, "nvidia", "0x0302", ""),
    ]
    assert gpus(tmp_path / "none") == []


def local(root: Path, removed: tuple[str, ...] = ()) -> LocalDriver:
    return LocalDriver(
        vendors=[VendorDevices(VendorProcess("nvidia", 10.0, 20.0))],
        sys_root=root,
        node_id="n1",
        removed=removed,
    )


@pytest.mark.attack
async def test_cold_start_reports_a_gpu_that_is_only_on_the_bus(
    fakes: Fakes, tmp_path: Path
) -> None:
    root = tmp_path / "sys"
    for bus in range(1, 9):
        trees.gpu(root, f"0000:{bus:02x}:00.0")
    fakes.tell("nvidia", "count * 8", "* 3 15")
    driver = local(root)
    inventory = await driver.inventory()
    assert len(inventory) == 8
    assert {uuid: each.lost for uuid, each in driver.absent.items()} == {"n1-0000:04:00.0": True}
    await driver.close()


async def test_known_devices_stay_while_the_library_is_silent(fakes: Fakes, tmp_path: Path) -> None:
    fakes.tell("nvidia", "count * 2")
    before = local(tmp_path)
    known = await before.inventory()
    await before.close()
    fakes.tell("nvidia", "count * 2", "nvmlDeviceGetCount_v2 * hang")
    after = local(tmp_path)
    after.known = before.known
    after.vendors[0].process.begin_s = 1.0
    assert await after.inventory() == known
    assert after.absent == {} and list(await after.sample()) == []
    await after.close()
