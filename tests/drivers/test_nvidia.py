"""The driver of NVIDIA's devices: the real binding over a library built from C."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from libs.common.errors import Refused, Unavailable
from libs.common.messages import ControlOrder
from libs.common.model import Gpu, GpuId
from services.node_agent.devices.device_commands import carry_out
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import (
    Done,
    Lacking,
    Link,
    Process,
)
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.metrics.exposition import text
from tests.drivers.conftest import load_from
from tests.drivers.fakes import HERE, NVML, Fakes, build
from tests.drivers.nvidia_alone import FIRST, SECOND, nvidia_alone

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb")
XID, XID_EVENT = 79, 8


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    driver = nvidia_alone()
    yield driver
    await driver.close()


async def test_inventory_matches_the_vendors_library(driver: LocalDriver, fakes: Fakes) -> None:
    fakes.tell("nvidia", "mig 1 1")
    gpus = await driver.inventory()
    assert [gpu.uuid for gpu in gpus] == [FIRST, SECOND]
    memory, capability = 80 << 30, (9, 0)
    known = {
        "power_mw": (200_000, 700_000),
        "clocks_mhz": (1, 1980),
        "mig_profiles": PROFILES,
        "mig": True,
    }
    assert gpus[1] == Gpu(
        uuid=SECOND,
        index=1,
        vendor="nvidia",
        model="Fake H100",
        memory_bytes=memory,
        compute_capability=capability,
        pci_bus="0000:02:00.0",
        **known,
    )


async def test_description_has_driver_version_mig_mode_and_links(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "links 0 18", "switch 0 1", "links 1 4", "mig 1 1")
    await driver.inventory()
    first, second = driver.vendors[0].devices.values()
    assert (first.driver_version, first.mig, first.links) == (
        "580.65.06",
        False,
        (Link("nvlink", "switch", 18),),
    )
    assert (second.mig, second.links) == (True, (Link("nvlink", "0000:01:00.0", 4),))


async def test_versions_of_driver_and_libraries_are_reported(
    driver: LocalDriver, fakes: Fakes
) -> None:
    assert driver.versions == {}
    await driver.inventory()
    assert driver.versions == {"nvidia": "580.65.06", "nvml": "13.580.65.06", "cuda": "13.0"}
    fakes.tell("nvidia", "nvmlSystemGetCudaDriverVersion_v2 * 13", "nvmlSystemGetNVMLVersion * 13")
    await driver.inventory()
    assert driver.versions == {"nvidia": "580.65.06"}


async def test_reserved_memory_is_neither_used_nor_free(driver: LocalDriver, fakes: Fakes) -> None:
    fakes.tell("nvidia", "used_mib 0 2000", "nvmlDeviceGetMemoryInfo_v2 1 25")
    gpus = await driver.inventory()
    samples = await driver.sample()
    assert samples[FIRST].memory_reserved_bytes == 600 << 20
    assert (
        isinstance(samples[SECOND].memory_reserved_bytes, Lacking)
        and samples[SECOND].memory_used_bytes == 600 << 20
    )
    lines = text(node="n1", gpus=gpus, samples=samples, jobs={}, nvidia_version="580").splitlines()
    told = {line.split("{")[0]: line.rsplit(" ", 1)[1] for line in lines if FIRST in line}
    kept = [told[f"DCGM_FI_DEV_FB_{name}"] for name in ("USED", "RESERVED", "FREE")]
    assert kept == ["2000.0", "600.0", str(80 * 1024.0 - 2600)]
    assert [SECOND in line for line in lines if line.startswith("DCGM_FI_DEV_FB_RESERVED")] == [
        False
    ]
    assert [
        line.rsplit(" ", 1)[1]
        for line in lines
        if line.startswith("DCGM_FI_DEV_FB_FREE") and SECOND in line
    ] == [str(80 * 1024.0 - 600)]


async def test_sample_has_readings_and_reasons_for_missing_ones(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "used_mib 0 2000", "pid 0 4711", "ecc 1 3", "unwell 0 1", "recovery 0 2")
    await driver.inventory()
    samples = await driver.sample()
    one, other = samples[FIRST], samples[SECOND]
    assert (
        one.busy_percent,
        one.memory_busy_percent,
        one.encoder_percent,
        one.decoder_percent,
    ) == (37, 12, 1, 2)
    assert (one.memory_total_bytes, one.memory_used_bytes) == (80 << 30, 2000 << 20)
    assert (one.temperature_c, one.memory_temperature_c, one.power_mw, one.power_cap_mw) == (
        45,
        61,
        123_456,
        700_000,
    )
    assert (one.clock_mhz, one.memory_clock_mhz, one.throttled) == (
        1980,
        2619,
        ("power_cap", "thermal_software"),
    )
    assert (one.energy_mj, one.remapped_corrected, one.remap_failed, one.pcie_sent_bytes) == (
        83,
        142,
        145,
        197,
    )
    assert (one.recovery_action, other.recovery_action, other.remap_failed) == (
        2,
        Lacking("Not Supported"),
        0,
    )
    assert (one.link_sent_bytes, one.link_errors) == (138 << 10, 38 + 52 + 59)
    assert one.processes == (Process(4711, 2000 << 20),) and other.processes == ()
    assert (other.ecc_corrected, other.ecc_uncorrected) == (3, 3)
    assert one.fan_percent == one.pcie_replays == Lacking("Not Supported")
    assert one.at_ns <= other.at_ns < one.at_ns + 10**9


@pytest.mark.attack
async def test_errors_of_sram_and_its_threshold_are_read(driver: LocalDriver, fakes: Fakes) -> None:
    fakes.tell("nvidia", "sram 0 4", "sram_exceeded 0 1", "nvmlDeviceGetSramEccErrorStatus 1 3")
    await driver.inventory()
    one, other = (await driver.sample()).values()
    assert (one.sram_uncorrected, one.sram_threshold) == (5, 1)
    assert other.sram_uncorrected == other.sram_threshold == Lacking("Not Supported")


async def test_older_driver_lacks_missing_functions_and_reports_the_rest(
    libraries: Path, fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "old", NVML, HERE / "nvml.c", without="nvmlDeviceGetFieldValues")
    load_from(tmp_path / "old", monkeypatch)
    driver = nvidia_alone()
    await driver.inventory()
    sample = (await driver.sample())[FIRST]
    assert (
        sample.energy_mj
        == sample.link_errors
        == sample.link_counts
        == Lacking("Function Not Found")
    )
    assert sample.power_mw == 123_456
    await driver.close()


async def test_struct_of_another_version_is_lacking_or_read_by_the_older_call(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell(
        "nvidia",
        "nvmlDeviceGetMemoryInfo_v2 0 25",
        "nvmlDeviceGetTemperatureV * 25",
        "nvmlDeviceGetUtilizationRates 0 25",
    )
    await driver.inventory()
    one, other = (await driver.sample()).values()
    assert (one.memory_used_bytes, other.memory_used_bytes) == (600 << 20, 0)
    assert one.temperature_c == 46
    assert isinstance(one.busy_percent, Lacking) and other.busy_percent == 37


async def test_an_xid_is_an_event_of_its_device(driver: LocalDriver, fakes: Fakes) -> None:
    await driver.inventory()
    assert await driver.events() == []
    fakes.happen("nvidia", 1, XID_EVENT, XID)
    (event,) = await driver.events()
    assert (event.vendor, event.pci_bus, event.kind, event.number) == (
        "nvidia",
        "0000:02:00.0",
        r.XID,
        XID,
    )
    assert await driver.events() == []


@pytest.mark.attack
async def test_an_xid_of_a_mig_instance_names_the_instance(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    assert await driver.events() == []
    fakes.tell("nvidia", "instance 0 5")
    fakes.happen("nvidia", 0, XID_EVENT, 94)
    fakes.happen("nvidia", 1, XID_EVENT, 94)
    assert [(event.pci_bus, event.instance) for event in await driver.events()] == [
        ("0000:01:00.0", 5),
        ("0000:02:00.0", None),
    ]


async def test_power_and_clocks_are_set_and_restored(driver: LocalDriver) -> None:
    await driver.inventory()
    assert await driver.control(FIRST, r.SetPowerCap(300_000)) == Done()
    assert await driver.control(FIRST, r.LockClocks(1200, 1500)) == Done()
    one, other = (await driver.sample()).values()
    assert (one.power_cap_mw, one.clock_mhz) == (300_000, 1500)
    assert (other.power_cap_mw, other.clock_mhz) == (700_000, 1980)
    assert await driver.control(FIRST, r.SetPowerCap(0)) == Done()
    assert await driver.control(FIRST, r.LockClocks(0, 0)) == Done()
    assert (
        await driver.control(FIRST, r.SetPersistence(True))
        == await driver.control(FIRST, r.SetComputeMode("prohibited"))
        == Done()
    )
    one = (await driver.sample())[FIRST]
    assert (one.power_cap_mw, one.clock_mhz) == (700_000, 1980)


async def test_a_command_is_not_carried_out_on_another_device_in_the_same_slot(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    await driver.close()  # as after a hang: the next process finds what is there now
    fakes.tell("nvidia", "count * 2", "uuid 0 7")
    for command in (r.SetPowerCap(300_000), r.Reset()):
        with pytest.raises(Refused) as refused:
            await driver.control(FIRST, command)
        assert str(refused.value) == (
            "GPU GPU-fake-0: another device (GPU-fake-7) is now at 0000:01:00.0: restart the "
            "agent of this node"
        )
    assert await driver.control(SECOND, r.SetPowerCap(300_000)) == Done()
    found = (await driver.sample()).values()
    assert [each.power_cap_mw for each in found] == [700_000, 300_000]


async def test_ecc_is_set_and_active_after_a_reset(driver: LocalDriver) -> None:
    await driver.inventory()
    assert await driver.control(FIRST, r.SetEcc(False)) == Done(note="it counts after a reset")
    assert await driver.control(FIRST, r.SetEcc(None)) == Done()


async def test_control_order_is_carried_out_or_fails_with_the_reason(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    power = ControlOrder(FIRST, "power", "300", 7)
    assert await carry_out(driver, power) == replace(power, outcome="done")
    assert (await driver.sample())[FIRST].power_cap_mw == 300_000
    code = {"lacking": 3, "denied": 4, "failed": 2}
    for outcome, number in code.items():
        fakes.tell("nvidia", f"nvmlDeviceSetPowerManagementLimit * {number}")
        assert (await carry_out(driver, power)).outcome == outcome
    fakes.tell("nvidia", "nvmlDeviceSetPowerManagementLimit 0 hang")
    driver.vendors[0].process.answer_s = 0.5
    found = await carry_out(driver, power)
    assert (found.outcome, "did not answer within 0.5 s" in found.detail) == ("failed", True)
    assert list(await driver.sample()) == [FIRST, SECOND]


async def test_an_invalid_value_is_refused_and_a_missing_control_is_lacking(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.inventory()
    with pytest.raises(Refused, match="GPU-fake-0: Invalid Argument"):
        await driver.control(FIRST, r.SetPowerCap(5))
    with pytest.raises(Refused, match="no compute mode"):
        await driver.control(FIRST, r.SetComputeMode("loud"))
    with pytest.raises(Refused, match="has no GPU"):
        await driver.control(GpuId("GPU-none"), r.Reset())
    fakes.tell("nvidia", "nvmlDeviceSetGpuLockedClocks * 3", "nvmlDeviceSetPersistenceMode * 4")
    assert await driver.control(FIRST, r.LockClocks(1, 2)) == Lacking("Not Supported")
    assert await driver.control(FIRST, r.SetPersistence(True)) == Lacking(
        "Insufficient Permissions", denied=True
    )
    assert isinstance(await driver.control(FIRST, r.SetPartition("CPX")), Lacking)


async def test_reset_runs_nvidias_tool_with_its_own_deadline_and_reports_its_refusal(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nsleep 0.5\ntest ! -e {tmp_path}/busy || '
        f'{{ echo "GPU is in use"; exit 1; }}\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    driver = nvidia_alone()
    await driver.inventory()
    driver.vendors[0].process.answer_s = 0.2
    assert await driver.control(SECOND, r.Reset()) == Done()
    driver.vendors[0].process.answer_s = 10.0
    assert (tmp_path / "asked").read_text() == "--gpu-reset -i 0000:02:00.0\n"
    (tmp_path / "busy").touch()
    with pytest.raises(Refused, match="GPU is in use"):
        await driver.control(SECOND, r.Reset())
    assert len(await driver.sample()) == 2
    await driver.close()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await driver.control(SECOND, r.Reset()) == Lacking("nvidia-smi is not on PATH")
    await driver.close()


async def test_reset_goes_on_when_the_agent_stops_and_is_ended_at_its_deadline(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        f"#!/bin/sh\necho begins\ntouch {tmp_path}/begun\nsleep 1\necho ends\n"
        f"touch {tmp_path}/done\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    driver = nvidia_alone()
    await driver.inventory()
    reset = asyncio.create_task(driver.control(SECOND, r.Reset()))
    async with asyncio.timeout(10):
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
    reset.cancel()
    await asyncio.gather(reset, return_exceptions=True)
    await driver.close()
    async with asyncio.timeout(10):
        while not (tmp_path / "done").exists():
            await asyncio.sleep(0.01)
    (tmp_path / "done").unlink()
    driver = nvidia_alone()
    await driver.inventory()
    driver.vendors[0].process.reset_s = 0.5
    with pytest.raises(Unavailable):
        await driver.control(SECOND, r.Reset())
    await asyncio.sleep(1)
    assert not (tmp_path / "done").exists()
    await driver.close()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ((), ""),
        (("fabric * 3",), ""),
        (("fabric * 1",), "its registration has not started: is the fabric manager running?"),
        (
            ("fabric * 2", "nvmlDeviceGetGpuFabricInfoV * 13"),
            "its registration is in progress: is the fabric manager running?",
        ),
        (("fabric * 3", "fabric_status * 999"), "its registration failed: Unknown Error"),
    ],
)
async def test_fabric_that_is_not_up_is_reported_with_the_reason(
    fakes: Fakes, told: tuple[str, ...], why: str
) -> None:
    fakes.tell("nvidia", *told)
    driver = LocalDriver(vendors=[VendorDevices(VendorProcess("nvidia", 10.0, 20.0))])
    await driver.inventory()
    assert [sample.fabric for sample in (await driver.sample()).values()] == [why, why]
    await driver.close()
