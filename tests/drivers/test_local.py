"""The devices of this machine, of all vendors together.

The real bindings run over libraries built from C. The doctor and the survey read the same devices.
"""

from pathlib import Path

import msgspec
import pytest

from libs.common.model import GpuId
from libs.doctor import MISSING, OK, SLOW, WRONG, checks
from libs.embedded import local_gpus
from services.node_agent.drivers.absent import FILE, KnownDevices
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Device
from tests.drivers.fakes import Fakes

DEVICES = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
FIRST, SECOND = GpuId("GPU-fake-0"), GpuId("GPU-fake-1")


async def test_memory_still_in_use_makes_only_its_device_unclean(
    fakes: Fakes,
) -> None:
    fakes.tell("nvidia", "used_mib 1 40")
    driver = LocalDriver()
    await driver.inventory()
    assert await driver.unclean([FIRST, SECOND]) == {}
    fakes.tell("nvidia", "used_mib 1 2000")
    assert await driver.unclean([FIRST, SECOND]) == {
        SECOND: "2000 MiB of its memory are used, 40 MiB when it was idle"
    }
    fakes.tell("nvidia", "used_mib 1 41")
    assert await driver.unclean([SECOND]) == {}
    fakes.tell("nvidia", "used_mib 1 2000")
    driver.resident = lambda uuid: 1_960 << 20 if uuid == SECOND else 0
    assert await driver.unclean([FIRST, SECOND]) == {}  # weights stay between jobs
    assert await driver.unclean([GpuId("GPU-none")]) == {
        GpuId("GPU-none"): "the driver does not know the device any more"
    }
    await driver.close()


async def test_inventory_has_the_devices_of_two_vendors(fakes: Fakes) -> None:
    fakes.tell("amd", "count * 1")
    assert (
        local_gpus.survey() == "GPUs of this machine: nvidia: 2 x Fake H100; amd: 1 x Fake MI300X"
    )
    driver = LocalDriver()
    third = GpuId("GPU-abcdef0123456789")
    assert [gpu.uuid for gpu in await driver.inventory()] == [FIRST, SECOND, third]
    fakes.tell("amd", "count * 1", "used_mib 0 9000")
    assert list(await driver.unclean([FIRST, third])) == [third]
    await driver.close()


async def test_a_vendor_without_devices_keeps_no_process(fakes: Fakes) -> None:
    driver = LocalDriver()
    await driver.inventory()
    assert [vendor.process.child is not None for vendor in driver.vendors] == [True, False, False]
    assert await driver.events() == [] and [
        vendor.process.child is not None for vendor in driver.vendors
    ] == [True, False, False]
    await driver.close()


async def test_a_driver_that_hangs_wedges_no_other_vendor(fakes: Fakes) -> None:
    fakes.tell("amd", "amdsmi_init * hang")
    driver = LocalDriver(2.0, begin_s=4.0)
    assert [gpu.uuid for gpu in await driver.inventory()] == [FIRST, SECOND]
    assert list(await driver.sample()) == [FIRST, SECOND]
    assert [(event.kind, event.vendor, event.pci_bus) for event in await driver.events()] == [
        ("driver_wedged", "amd", "")
    ]
    assert "did not answer" in driver.missing["amd"]
    await driver.close()


async def test_device_without_memory_readings_is_judged_by_its_processes(
    fakes: Fakes,
) -> None:
    silent = ("nvmlDeviceGetMemoryInfo * 3", "nvmlDeviceGetMemoryInfo_v2 * 3")
    fakes.tell("nvidia", *silent)
    driver = LocalDriver()
    assert [gpu.memory_bytes for gpu in await driver.inventory()] == [0, 0]
    fakes.tell("nvidia", *silent, "pid 1 4711")
    assert await driver.unclean([FIRST, SECOND]) == {SECOND: "process 4711 uses it"}
    driver.holds = lambda: {4711}
    assert await driver.unclean([FIRST, SECOND]) == {}  # the weight server
    fakes.tell("nvidia", *silent, "nvmlDeviceGetComputeRunningProcesses_v3 0 3")
    assert list(await driver.unclean([FIRST])) == [FIRST]
    await driver.close()


@pytest.mark.skipif(DEVICES, reason="this machine has GPUs")
async def test_machine_without_devices_logs_the_reason_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = LocalDriver()
    assert list(await driver.inventory()) == []
    assert "no GPU was found on this machine (nvidia: NVML Shared Library Not Found" in caplog.text
    assert await driver.sample() == {} and await driver.events() == []
    await driver.close()


def test_survey_and_doctor_report_the_same_devices(
    fakes: Fakes,
) -> None:
    fakes.tell("nvidia", "persistent * 1")
    assert local_gpus.survey() == "GPUs of this machine: nvidia: 2 x Fake H100"
    here, *others = checks.drivers()
    assert (here.what, here.state, here.found) == ("driver nvidia", OK, "2 x Fake H100")
    assert all(other.state == MISSING and not other.needed for other in others)


def test_doctor_lists_gpus_with_persistence_mode_off(fakes: Fakes) -> None:
    fakes.tell("nvidia", "persistent 0 1", "persistent 1 0")
    (found,) = [each for each in checks.drivers() if each.what == "persistence mode"]
    assert (found.state, found.needed) == (SLOW, False)
    assert (
        "off on 0000:02:00.0:" in found.found
        and "nvidia-smi -pm 1" in found.fix
        and "nvidia-persistenced" in found.fix
    )


def test_doctor_is_silent_about_gpus_with_persistence_mode_on_or_without_it(
    fakes: Fakes,
) -> None:
    fakes.tell("nvidia", "persistent 0 1", "nvmlDeviceGetPersistenceMode 1 3")
    fakes.tell("amd", "count * 1")
    assert [each for each in checks.drivers() if each.what == "persistence mode"] == []


def test_a_driver_that_hangs_is_reported_in_one_line(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.tell("nvidia", "nvmlDeviceGetCount_v2 * hang")
    monkeypatch.setenv("MUSTER_DRIVER_BEGIN_MS", "1000")
    assert "the driver of nvidia did not answer within 1 s" in local_gpus.survey()
    monkeypatch.setattr(local_gpus, "SURVEY_S", 0.5)
    assert "do not answer" in local_gpus.survey()
    assert [found.state for found in checks.drivers()] == [WRONG]


def test_doctor_names_a_gpu_that_an_agent_knew_but_no_driver_shows(
    fakes: Fakes, tmp_path: Path
) -> None:
    fakes.tell("nvidia", "persistent * 1")
    device = Device(
        pci_bus="0000:09:00.0",
        uuid="GPU-a",
        index=2,
        vendor="nvidia",
        model="H100",
        driver_version="580",
    )
    (tmp_path / "services/local").mkdir(parents=True)
    (tmp_path / "services/local" / FILE).write_bytes(
        msgspec.json.encode(KnownDevices("boot", (device,)))
    )
    found = checks.drivers(tmp_path)
    assert [(each.what, each.state) for each in found[:2]] == [
        ("driver nvidia", OK),
        ("GPU 0000:09:00.0", WRONG),
    ]
    assert "does not show it" in found[1].found and "MUSTER_GPUS_REMOVED" in found[1].fix
