"""Opening a vendor's library, and calls that hang, are missing, or come from a fork."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from libs.job.device.cuda import DESCRIPTION, Cuda
from libs.job.device.driver_library import CALL_VARIABLE, Library, time_limit_s
from libs.job.device.errors import Cause, DeviceError
from tests.vendors.fakes import KINDS, Fake, compiled

PATIENCE_S = 30.0


def test_a_library_is_opened_at_the_first_call() -> None:
    cuda = Cuda(Library(DESCRIPTION, "/nonexistent/libcuda.so.1"))
    with pytest.raises(DeviceError) as caught:
        cuda.devices()
    error = caught.value
    assert (error.cause, error.call, error.code) == (Cause.NO_LIBRARY, "dlopen", 0)
    assert "/nonexistent/libcuda.so.1" in str(error) and "MUSTER_CUDA_LIBRARY" in str(error)


def test_the_environment_names_another_file(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fake.kind.description.variable, str(fake.path))
    assert len(fake.kind.vendor(Library(fake.kind.description)).devices()) == 2


def test_initialisation_comes_before_every_other_call(fake: Fake) -> None:
    """The libraries refuse everything before it, as the vendors' do."""
    described = fake.kind.description._replace(start=lambda library: None)
    with pytest.raises(DeviceError) as caught:
        fake.kind.driver(Library(described, str(fake.path))).granularity(0)
    assert caught.value.cause == Cause.NOT_INITIALISED
    assert fake.driver().granularity(0) == 2 << 20


def test_a_failing_initialisation_is_reported_and_tried_again(fake: Fake) -> None:
    fake.fail("init", fake.kind.lost)
    driver = fake.driver()
    with pytest.raises(DeviceError) as caught:
        driver.granularity(0)
    assert (caught.value.cause, caught.value.call) == (
        Cause.DEVICE_LOST,
        fake.kind.steps["init"],
    )
    fake.heal()
    assert driver.granularity(0) == 2 << 20


@pytest.mark.parametrize("step", ["init", "create"])
def test_a_call_that_hangs_is_named_within_the_deadline(
    fake: Fake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CALL_VARIABLE, "0.3")
    fake.fail(step, "hang")
    driver, began = fake.driver(), time.monotonic()
    with pytest.raises(DeviceError) as caught:
        driver.create(0, 2 << 20)
    assert time.monotonic() - began < PATIENCE_S
    assert (caught.value.cause, caught.value.call) == (Cause.HANGS, fake.kind.steps[step])
    assert "no answer within 0.3 s" in str(caught.value)


def test_after_a_hang_every_call_of_that_library_fails_at_once_and_other_vendors_work(
    fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CALL_VARIABLE, "0.3")
    fakes["cuda"].fail("create", "hang")
    driver = fakes["cuda"].driver()
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:
            driver.create(0, 2 << 20)
    assert "cuMemCreate never returned, earlier in this process" in str(caught.value)
    monkeypatch.setenv(CALL_VARIABLE, "1000")
    with pytest.raises(DeviceError, match="never returned"):
        driver.reserve(2 << 20)
    assert fakes["hip"].driver().create(0, 2 << 20)


def test_threads_that_wait_behind_a_hang_are_told_as_well(
    fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CALL_VARIABLE, "0.3")
    fakes["cuda"].fail("create", "hang")
    driver, causes = fakes["cuda"].driver(), []

    def call() -> None:
        try:
            driver.create(0, 2 << 20)
        except DeviceError as error:
            causes.append(error.cause)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert causes == [Cause.HANGS] * 4


def test_a_process_with_a_call_that_hangs_ends(fakes: dict[str, Fake]) -> None:
    fakes["cuda"].fail("init", "hang")
    program = (
        "import sys\n"
        "from libs.job.device.cuda import DESCRIPTION, Cuda\n"
        "from libs.job.device.driver_library import Library\n"
        "Cuda(Library(DESCRIPTION, sys.argv[1])).devices()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(fakes["cuda"].path)],
        env={**os.environ, CALL_VARIABLE: "0.3"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1 and "cuInit failed" in done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_a_function_that_an_older_library_lacks_is_named(name: str, tmp_path: Path) -> None:
    step = "export" if name == "level_zero" else "create"
    function = KINDS[name].steps[step]
    fake = Fake(name, compiled(tmp_path / "old", name, without=function), tmp_path)
    driver = fake.driver()
    with pytest.raises(DeviceError) as caught:
        driver.export(driver.create(0, 2 << 20))
    assert (caught.value.cause, caught.value.call) == (Cause.DRIVER_TOO_OLD, function)
    assert KINDS[name].description.needs in str(caught.value)


def test_an_old_level_zero_creates_and_maps_but_adopts_nothing(tmp_path: Path) -> None:
    old = compiled(tmp_path / "old", "level_zero", without="zePhysicalMemGetProperties")
    driver = Fake("level_zero", old, tmp_path).driver()
    size = driver.granularity(0)
    driver.map(driver.reserve(size), size, driver.create(0, size), 0)
    with pytest.raises(DeviceError) as caught:
        driver.adopt(0, 0, size)
    assert caught.value.cause == Cause.DRIVER_TOO_OLD


def test_no_device_is_not_the_same_as_no_library(fake: Fake) -> None:
    fake.tell("count * 0")
    with pytest.raises(DeviceError) as caught:
        fake.vendor().devices()
    assert caught.value.cause == Cause.NO_DEVICE


def test_a_fork_is_refused_before_the_driver_is_asked(fake: Fake) -> None:
    vendor = fake.vendor()
    vendor.devices()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        text = "the fork was served"
        try:
            vendor.devices()
        except DeviceError as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 4096).decode()
    os.close(read)
    os.close(write)
    assert f"process {os.getpid()} opened the driver" in said and "spawn" in said
    assert len(vendor.devices()) == 2


def test_a_fork_of_a_process_that_did_not_use_the_driver_may_use_it(fake: Fake) -> None:
    vendor = fake.vendor()
    child = os.fork()
    if not child:
        os._exit(0 if len(vendor.devices()) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("said", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CALL_VARIABLE, said)
    with pytest.raises(DeviceError, match=f"{CALL_VARIABLE} is '{said}'"):
        time_limit_s("cuda")


def test_a_bug_in_the_work_is_not_a_hang(fake: Fake) -> None:
    """The caller hears of it at once, and the next call has a thread again."""
    library = fake.compiled_library()
    hook, threading.excepthook = threading.excepthook, lambda arguments: None
    try:
        with pytest.raises(AssertionError, match="see the trace"):
            library.run(lambda: [][0])
    finally:
        threading.excepthook = hook
    assert library.run(lambda: "works") == "works"
