"""The driver of AMD's devices: the real binding over a library built from C."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.errors import Refused
from libs.common.model import Gpu, GpuId
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import NOT_READ, Done, Lacking, Link, Process
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from tests.drivers.conftest import load_from
from tests.drivers.fakes import Fakes, build_amd

FIRST, SECOND = GpuId("GPU-abcdef0123456789"), GpuId("GPU-abcdef012345678a")
GPU_PRE_RESET = 3
SETTABLE = {"power_mw": (150_000, 750_000), "clocks_mhz": (132, 2100)}


def amd_alone() -> LocalDriver:
    return LocalDriver(vendors=[VendorDevices(VendorProcess("amd", 10.0, 20.0))])


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    fakes.tell("amd", "count * 2")
    driver = amd_alone()
    yield driver
    await driver.close()


async def test_inventory_matches_the_vendors_library(driver: LocalDriver) -> None:
    gpus = list(await driver.inventory())
    assert gpus[1] == Gpu(
        uuid=SECOND,
        index=1,
        vendor="amd",
        model="Fake MI300X",
        memory_bytes=192 << 30,
        pci_bus="0000:c2:00.0",
        links=gpus[0].links,
        **SETTABLE,
    )
    first = driver.vendors[0].devices["0000:c1:00.0"]
    assert (first.driver_version, first.compute_partition, first.memory_partition) == (
        "6.12.12",
        "SPX",
        "NPS1",
    )
    assert first.links == (Link("xgmi", "0000:c2:00.0", 1),) and first.mig == NOT_READ


async def test_sample_has_readings_and_reasons_for_missing_ones(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("amd", "count * 2", "used_mib 0 2000", "pid 0 4711", "ecc 1 3")
    await driver.inventory()
    one, other = (await driver.sample()).values()
    assert (one.busy_percent, one.memory_busy_percent) == (
        41,
        Lacking("the driver does not know its umc_activity"),
    )
    assert (one.memory_total_bytes, one.memory_used_bytes) == (192 << 30, 2000 << 20)
    assert (one.temperature_c, one.memory_temperature_c, one.power_mw, one.power_cap_mw) == (
        63,
        58,
        321_000,
        750_000,
    )
    assert (one.energy_mj, one.clock_mhz, one.memory_clock_mhz, one.pcie_replays) == (
        31_000,
        2100,
        1300,
        5,
    )
    assert (one.link_sent_bytes, one.link_received_bytes) == (20 << 10, 10 << 10)
    assert one.processes == (Process(4711, 7 << 20),) and other.processes == ()
    assert (other.ecc_corrected, other.ecc_uncorrected) == (3, 0)
    assert isinstance(one.fan_percent, Lacking) and "NOT_SUPPORTED" in one.fan_percent.why
    assert one.throttled == one.encoder_percent == NOT_READ


async def test_events_are_reported_with_their_device(driver: LocalDriver, fakes: Fakes) -> None:
    await driver.inventory()
    assert await driver.events() == []
    fakes.happen("amd", 1, GPU_PRE_RESET, 7)
    (event,) = await driver.events()
    assert (event.vendor, event.pci_bus, event.kind, event.text) == (
        "amd",
        "0000:c2:00.0",
        r.RESET_BEGAN,
        "GPU_PRE_RESET 7",
    )


async def test_power_clocks_partitions_and_reset(driver: LocalDriver) -> None:
    await driver.inventory()
    for command in (r.SetPowerCap(500_000), r.LockClocks(1000, 1500), r.Reset()):
        assert await driver.control(FIRST, command) == Done()
    one, other = (await driver.sample()).values()
    assert (one.power_cap_mw, one.clock_mhz, other.power_cap_mw, other.clock_mhz) == (
        500_000,
        1500,
        750_000,
        2100,
    )
    for command in (r.SetPowerCap(0), r.LockClocks(0, 0)):
        assert await driver.control(FIRST, command) == Done()
    one = (await driver.sample())[FIRST]
    assert (one.power_cap_mw, one.clock_mhz) == (750_000, 2100)


async def test_each_compute_partition_of_a_card_is_a_device(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    assert await driver.control(FIRST, r.SetPartition("CPX", "NPS4")) == Done()
    gpus = await driver.inventory()
    assert [gpu.uuid for gpu in gpus] == [
        FIRST,
        *(f"{FIRST}.{part}" for part in range(1, 8)),
        SECOND,
    ]
    assert [gpu.pci_bus for gpu in gpus[:2]] == ["0000:c1:00.0", "0000:c1:00.1"] and gpus[
        1
    ].memory_bytes == 48 << 30
    first = driver.vendors[0].devices["0000:c1:00.0"]
    assert (first.compute_partition, first.memory_partition) == ("CPX", "NPS4")
    assert len(await driver.sample()) == len(gpus)
    assert await driver.control(GpuId(f"{FIRST}.3"), r.SetPartition("SPX", "NPS1")) == Done()
    assert [gpu.uuid for gpu in await driver.inventory()] == [FIRST, SECOND]


async def test_unsupported_partition_is_lacking_and_partitioning_in_use_is_refused(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    fakes.tell(
        "amd",
        "count * 2",
        "amdsmi_set_gpu_compute_partition 0 2",
        "amdsmi_set_gpu_memory_partition 1 30",
    )
    assert isinstance(await driver.control(FIRST, r.SetPartition("CPX")), Lacking)
    with pytest.raises(Refused, match="AMDSMI_STATUS_BUSY"):
        await driver.control(SECOND, r.SetPartition(memory="NPS4"))
    assert [gpu.uuid for gpu in await driver.inventory()] == [FIRST, SECOND]


async def test_an_invalid_value_is_refused_and_a_missing_control_is_lacking(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    with pytest.raises(Refused, match="INVAL"):
        await driver.control(FIRST, r.SetPowerCap(900_000))
    with pytest.raises(Refused, match="partition mode 'YPX' is not known: use one of SPX"):
        await driver.control(FIRST, r.SetPartition("YPX"))
    for command in (
        r.SetPersistence(True),
        r.SetComputeMode("default"),
        r.SetEcc(True),
        r.SetMigMode(True),
        r.ListMigInstances(),
    ):
        assert isinstance(await driver.control(FIRST, command), Lacking)
    fakes.tell("amd", "count * 2", "amdsmi_set_power_cap * 10", "amdsmi_set_gpu_clk_limit * 2")
    found = [
        await driver.control(FIRST, command)
        for command in (r.SetPowerCap(500_000), r.LockClocks(1000, 1500))
    ]
    assert [isinstance(each, Lacking) and each.denied for each in found] == [True, False]
    fakes.tell(
        "amd", "count * 2", "amdsmi_reset_gpu * 2", "amdsmi_init_gpu_event_notification 0 10"
    )
    assert isinstance(await driver.control(FIRST, r.Reset()), Lacking)
    assert await driver.events() == []


async def test_lost_or_hanging_device_is_named_and_the_other_works_on(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    fakes.tell("amd", "count * 2", "* 1 31")
    assert list(await driver.sample()) == [FIRST]
    fakes.tell("amd", "count * 2", "amdsmi_get_power_info 0 hang")
    driver.vendors[0].process.answer_s = driver.vendors[0].process.begin_s = 0.5
    await driver.sample()  # the first silence keeps what is known
    assert list(await driver.sample()) == [SECOND]
    events = [(event.kind, event.pci_bus) for event in await driver.events()]
    assert sorted(events) == sorted(
        [(r.LOST, "0000:c2:00.0"), (r.WEDGED, "0000:c1:00.0"), (r.ANSWERS, "0000:c2:00.0")]
    )


async def test_device_lost_before_the_agents_start_hides_no_other(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("amd", "count * 2", "* 0 31")
    assert [(gpu.uuid, gpu.index) for gpu in await driver.inventory()] == [(SECOND, 1)]


async def test_missing_library_function_is_the_reason_for_no_devices(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_amd(tmp_path / "old", without="amdsmi_reset_gpu")
    load_from(tmp_path / "old", monkeypatch)
    driver = amd_alone()
    assert await driver.inventory() == []
    assert "undefined symbol: amdsmi_reset_gpu" in driver.missing["amd"]
    await driver.close()
