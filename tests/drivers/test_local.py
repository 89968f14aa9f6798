"""The agent's driver for this machine's own devices, over the real NVML binding and a library built from C."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from libs.common.errors import Unavailable
from libs.common.model import Gpu, GpuId
from libs.doctor import MISSING, OK, WRONG, checks
from libs.embedded import local_gpus
from services.node_agent.drivers.local import LocalDriver

SOURCE, AMD_SOURCE = Path(__file__).with_name("nvml.c"), Path(__file__).with_name("amdsmi.c")
DEVICES = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
FIRST, SECOND = GpuId("GPU-fake-0"), GpuId("GPU-fake-1")


def build(folder: Path, name: str, *sources: Path) -> Path:
    """A shared library from C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to build the libraries that stand in for the vendors'")
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, *sources], check=True)
    return folder / name


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("lib"), "libnvidia-ml.so.1", SOURCE)


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    """The folder of a library for AMD's binding, which on import looks up more than is called here."""
    found = importlib.util.find_spec("amdsmi")
    if found is None or not found.submodule_search_locations:
        pytest.skip("AMD's binding is not installed: pip install 'muster-gpu[amd]'")
    wrapper = (Path(found.submodule_search_locations[0]) / "amdsmi_wrapper.py").read_text()
    named = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper))
    rest = named - set(re.findall(r"^int (\w+)\(", AMD_SOURCE.read_text(), re.MULTILINE))
    unused = tmp_path / "unused.c"
    unused.write_text("".join(f"int {name}(void) {{ return 2; }}\n" for name in sorted(rest)))
    return build(tmp_path, "libamd_smi.so", AMD_SOURCE, unused).parent


@pytest.fixture
def world(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the library looks."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path))
    return tmp_path


async def test_the_inventory_is_what_the_vendor_says(world: Path) -> None:
    driver = LocalDriver()
    assert list(await driver.inventory()) == [
        Gpu(FIRST, 0, "nvidia", "Fake H100", 80 << 30),
        Gpu(SECOND, 1, "nvidia", "Fake H100", 80 << 30),
    ]
    await driver.close()


async def test_memory_that_did_not_come_back_makes_a_device_unclean_and_no_other(world: Path) -> None:
    (world / "used1").write_text("40")
    driver = LocalDriver()
    await driver.inventory()
    assert await driver.unclean([FIRST, SECOND]) == {}
    (world / "used1").write_text("2000")
    assert await driver.unclean([FIRST, SECOND]) == {SECOND: "2000 MiB of its memory are used, 40 MiB when it was idle"}
    (world / "used1").write_text("41")
    assert await driver.unclean([SECOND]) == {}
    await driver.close()


async def test_a_driver_that_hangs_makes_its_devices_unclean_and_answers_again_when_it_can(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = LocalDriver()
    await driver.inventory()
    driver.answer_s = 1.0
    (world / "hang").touch()
    assert "did not answer" in (await driver.unclean([FIRST]))[FIRST]
    (world / "hang").unlink()
    driver.answer_s = 10.0
    assert await driver.unclean([FIRST]) == {}
    await driver.close()


async def test_a_child_that_dies_is_begun_again(world: Path) -> None:
    driver = LocalDriver()
    await driver.inventory()
    assert driver.child is not None
    driver.child.kill()
    await driver.child.wait()
    assert await driver.unclean([FIRST]) == {}
    await driver.close()


@pytest.mark.skipif(DEVICES, reason="this machine has GPUs")
async def test_a_machine_without_devices_says_why_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    driver = LocalDriver()
    assert list(await driver.inventory()) == []
    assert "no GPU was found on this machine (nvidia: " in caplog.text
    await driver.close()


async def test_what_is_no_answer_is_unavailable() -> None:
    driver = LocalDriver((sys.executable, "-c", "input(); print('not json')"))
    with pytest.raises(Unavailable, match="did not answer"):
        await driver.inventory()


def test_one_line_says_which_devices_a_machine_has_and_the_doctor_says_the_same(world: Path) -> None:
    assert local_gpus.survey() == "GPUs of this machine: nvidia: 2 x Fake H100"
    here, *others = checks.drivers()
    assert (here.what, here.state, here.found) == ("driver nvidia", OK, "2 x Fake H100")
    assert all(other.state == MISSING and not other.needed for other in others)


async def test_devices_of_two_vendors_are_found_together(world: Path, amd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{amd}:{os.environ['LD_LIBRARY_PATH']}")
    assert local_gpus.survey() == "GPUs of this machine: nvidia: 2 x Fake H100; amd: 1 x Fake MI300X"
    driver = LocalDriver()
    third = GpuId("GPU-abcdef0123456789")
    assert list(await driver.inventory())[2:] == [Gpu(third, 0, "amd", "Fake MI300X", 192 << 30)]
    assert await driver.unclean([FIRST, third]) == {}
    await driver.close()


@pytest.mark.skipif(DEVICES, reason="this machine has devices")
def test_one_line_says_that_there_is_none_and_why_of_each_vendor() -> None:
    assert local_gpus.survey().startswith("no GPU was found on this machine (nvidia: NVML Shared Library Not Found; amd: ")
    assert local_gpus.survey().endswith(("libamd_smi.so not found)", "pip install 'muster-gpu[amd]')"))
    assert "\n" not in local_gpus.survey()
    assert {found.state for found in checks.drivers()} == {MISSING}


def test_a_driver_that_hangs_is_one_line_too(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "hang").touch()
    monkeypatch.setattr(local_gpus, "SURVEY_S", 1.0)
    assert "do not answer" in local_gpus.survey()
    assert [found.state for found in checks.drivers()] == [WRONG]
