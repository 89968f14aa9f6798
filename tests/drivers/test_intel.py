"""The driver of Intel's devices: the real binding over a library built from C."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.model import Gpu, GpuHold, GpuId
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import NOT_READ, Done, Lacking, Process
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.health.operator_command import OperatorCommand
from tests.drivers import trees
from tests.drivers.conftest import load_from
from tests.drivers.fakes import HERE, ZE_LOADER, Fakes, build
from tests.integration.agent_world import world_at

FIRST, SECOND = (
    GpuId("GPU-a00e0d0c-0b0a-0908-0706-050403020100"),
    GpuId("GPU-a10e0d0c-0b0a-0908-0706-050403020100"),
)
LOST, NO_PERMISSION = 0x70000001, 0x70010000
SETTABLE = {"power_mw": (150_000, 600_000), "clocks_mhz": (300, 1600)}


def intel_alone() -> LocalDriver:
    return LocalDriver(vendors=[VendorDevices(VendorProcess("intel", 10.0, 20.0))])


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    fakes.tell("intel", "count * 2")
    driver = intel_alone()
    yield driver
    await driver.close()


async def test_inventory_matches_the_vendors_library(driver: LocalDriver) -> None:
    gpus = list(await driver.inventory())
    assert gpus[1] == Gpu(
        uuid=SECOND,
        index=1,
        vendor="intel",
        model="Fake Max 1550",
        memory_bytes=128 << 30,
        pci_bus="0000:3b:00.0",
        **SETTABLE,
    )
    first = driver.vendors[0].devices["0000:3a:00.0"]
    assert (first.uuid, first.driver_version, first.mig, first.links) == (
        FIRST,
        "1.6.33578",
        NOT_READ,
        NOT_READ,
    )


async def test_rates_are_reported_from_the_second_sample_on(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("intel", "count * 2", "used_mib 0 2000", "pid 0 4711")
    await driver.vendors[0].discover()
    early = (await driver.sample())[FIRST]
    for rate in (early.busy_percent, early.memory_busy_percent, early.power_mw):
        assert isinstance(rate, Lacking) and "two samples" in rate.why
    one, other = (await driver.sample()).values()
    assert (one.busy_percent, one.memory_busy_percent, one.power_mw, one.energy_mj) == (
        25,
        10,
        240_000,
        480_000,
    )
    assert (one.memory_total_bytes, one.memory_used_bytes, other.memory_used_bytes) == (
        128 << 30,
        2000 << 20,
        0,
    )
    assert (one.temperature_c, one.memory_temperature_c, one.power_cap_mw) == (47, 52, 600_000)
    assert (one.clock_mhz, one.memory_clock_mhz, one.throttled) == (1600, 3200, ("thermal_limit",))
    assert (one.pcie_sent_bytes, one.pcie_received_bytes, one.pcie_replays) == (2000, 1000, 4)
    assert one.processes == (Process(4711, 7 << 20),) and other.processes == ()
    assert one.ecc_corrected == one.fan_percent == one.encoder_percent == NOT_READ


async def test_power_clocks_and_reset(driver: LocalDriver) -> None:
    await driver.inventory()
    for command in (r.SetPowerCap(450_000), r.LockClocks(900, 1200), r.Reset()):
        assert await driver.control(FIRST, command) == Done()
    one, other = (await driver.sample()).values()
    assert (one.power_cap_mw, one.clock_mhz, other.power_cap_mw, other.clock_mhz) == (
        450_000,
        1200,
        600_000,
        1600,
    )
    for command in (r.SetPowerCap(0), r.LockClocks(0, 0)):
        assert await driver.control(FIRST, command) == Done()
    one = (await driver.sample())[FIRST]
    assert (one.power_cap_mw, one.clock_mhz) == (600_000, 1600)
    assert await driver.control(FIRST, r.SetEcc(False)) == Done(note="it counts after a reset")
    assert await driver.control(FIRST, r.SetEcc(True)) == Done()


async def test_an_invalid_value_is_refused_and_a_missing_control_is_lacking(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    with pytest.raises(Refused, match="zesPowerSetLimitsExt answered 0x78000004"):
        await driver.control(FIRST, r.SetPowerCap(900_000))
    for command in (
        r.SetPersistence(True),
        r.SetComputeMode("default"),
        r.SetMigMode(True),
        r.SetPartition("CPX"),
    ):
        assert isinstance(await driver.control(FIRST, command), Lacking)
    fakes.tell("intel", "count * 2", f"zesFrequencySetRange * {NO_PERMISSION}")
    found = [
        await driver.control(FIRST, command)
        for command in (r.LockClocks(900, 1200), r.SetEcc(None))
    ]
    assert [isinstance(each, Lacking) and each.denied for each in found] == [True, False]
    fakes.tell("intel", "count * 2", f"zesDeviceReset * {0x78000003}")
    assert isinstance(await driver.control(FIRST, r.Reset()), Lacking)
    assert await driver.events() == []


async def test_lost_or_hanging_device_is_named_and_the_other_works_on(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    fakes.tell("intel", "count * 2", f"* 1 {LOST}")
    assert list(await driver.sample()) == [FIRST]
    fakes.tell("intel", "count * 2", "zesTemperatureGetState 0 hang")
    driver.vendors[0].process.answer_s = driver.vendors[0].process.begin_s = 0.5
    await driver.sample()  # the first silence keeps what is known
    assert list(await driver.sample()) == [SECOND]
    events = [(event.kind, event.pci_bus) for event in await driver.events()]
    assert sorted(events) == sorted(
        [(r.LOST, "0000:3b:00.0"), (r.WEDGED, "0000:3a:00.0"), (r.ANSWERS, "0000:3b:00.0")]
    )


async def test_device_lost_before_the_agents_start_hides_no_other(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("intel", "count * 2", f"* 0 {LOST}")
    assert [(gpu.uuid, gpu.index) for gpu in await driver.inventory()] == [(SECOND, 1)]


async def test_missing_functions_are_lacking_readings_and_a_failed_start_lists_no_device(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.tell("intel", "count * 1")
    build(tmp_path / "old", ZE_LOADER, HERE / "zes.c", without="zesTemperatureGetState")
    load_from(tmp_path / "old", monkeypatch)
    driver = intel_alone()
    await driver.inventory()
    sample = (await driver.sample())[FIRST]
    assert (
        isinstance(sample.temperature_c, Lacking) and "undefined symbol" in sample.temperature_c.why
    )
    assert sample.clock_mhz == 1600
    await driver.close()
    build(tmp_path / "broken", ZE_LOADER, HERE / "zes.c", without="zesInit")
    load_from(tmp_path / "broken", monkeypatch)
    driver = intel_alone()
    assert await driver.inventory() == []
    assert "undefined symbol: zesInit" in driver.missing["intel"]
    await driver.close()


async def test_a_node_whose_gpus_changed_says_so_and_numbers_them_anew_at_the_next_inventory(
    fakes: Fakes, tmp_path: Path
) -> None:
    """Level Zero has no other names for devices than their numbers."""
    for address in ("0000:3a:00.0", "0000:3b:00.0"):
        trees.gpu(tmp_path / "sys", address, vendor="0x8086", kind="0x038000", driver="xe")
    fakes.tell("intel", "count * 2")
    driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("intel", 10.0, 20.0))], sys_root=tmp_path / "sys"
    )
    await driver.inventory()
    assert await driver.renumbered("intel") == await driver.renumbered("nvidia") == ""
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").unlink()
    trees.gpu(tmp_path / "sys", "0000:3c:00.0", vendor="0x8086", kind="0x038000", driver="")
    assert await driver.renumbered("intel") == (
        "the GPUs of this node changed since the agent numbered them (0000:3b:00.0 is not on the "
        "PCI bus any more, 0000:3c:00.0 is new on the PCI bus). Restart the agent of this node"
    )
    assert await driver.renumbered("nvidia") == ""
    fakes.tell("intel", "count * 3")
    found = {gpu.pci_bus: gpu.index for gpu in await driver.inventory()}
    assert found == {"0000:3a:00.0": 0, "0000:3b:00.0": 1, "0000:3c:00.0": 2}
    assert await driver.renumbered("intel") == ""
    (tmp_path / "sys/bus/pci/devices/0000:3a:00.0/driver").unlink()
    assert "(0000:3a:00.0 is bound to no driver)" in await driver.renumbered("intel")
    await driver.close()


async def test_a_job_that_would_get_a_stale_number_is_refused_and_so_is_an_operators_command(
    fakes: Fakes, tmp_path: Path
) -> None:
    for address in ("0000:3a:00.0", "0000:3b:00.0"):
        trees.gpu(tmp_path / "sys", address, vendor="0x8086", kind="0x038000", driver="xe")
    fakes.tell("intel", "count * 2")
    driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("intel", 10.0, 20.0))], sys_root=tmp_path / "sys"
    )
    async with world_at(tmp_path / "state", real=driver) as world:
        order = world.order("a", "echo $ZE_AFFINITY_MASK")
        await world.place(replace(order, gpus=(GpuHold(SECOND),)))
        await world.said(f.JobFinished, "a")
        assert (await world.output("a")).data == b"1\n"
        (tmp_path / "sys/bus/pci/devices/0000:3a:00.0").unlink()
        await world.place(replace(world.order("b", "true"), gpus=(GpuHold(SECOND),)))
        assert (await world.said(f.JobRefused, "b")).reason == (
            f"b.1 cannot be started, because GPU 1 may not be {SECOND} any more: the GPUs of this "
            "node changed since the agent numbered them (0000:3a:00.0 is not on the PCI bus any "
            "more). Restart the agent of this node"
        )
        work = world.agent.devices
        tried = OperatorCommand("true", 1_000, {}, lambda: work.inventory, driver.renumbered)
        assert "not run, because GPU 1 may be another one by now" in await tried.on(SECOND)
    await driver.close()
