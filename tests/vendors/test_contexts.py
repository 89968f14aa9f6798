"""Devices, contexts, limits, peers and copies by their public face, for all vendors."""

import ctypes
from pathlib import Path

import pytest

from libs.job.device import context as public
from libs.job.device.context import Context, Limits, absent, copy, devices, peer_access
from libs.job.device.cuda import Cuda
from libs.job.device.errors import Cause, CrossVendorTransferError, DeviceError
from libs.job.device.hip import Hip, written
from libs.job.device.level_zero import LevelZero
from libs.job.device.vendor import Device
from libs.job.memory.cuda_driver import CudaDriver
from libs.job.memory.hip_driver import HipDriver
from libs.job.memory.level_zero_driver import LevelZeroDriver
from tests.vendors.fakes import Driver, Fake

SIZE = 2 << 20


@pytest.fixture(autouse=True)
def machine(fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two devices of each vendor."""
    for fake in fakes.values():
        monkeypatch.setenv(fake.kind.description.variable, str(fake.path))
    monkeypatch.setattr(public, "_opened", {})


def memory(device: Device) -> tuple[Driver, int]:
    """A driver over the process's own vendor, and the address of a mapped piece of the device."""
    vendor = public.vendor(device.vendor)
    driver: Driver
    if isinstance(vendor, Cuda):
        driver = CudaDriver(vendor)
    elif isinstance(vendor, Hip):
        driver = HipDriver(vendor)
    else:
        assert isinstance(vendor, LevelZero)
        driver = LevelZeroDriver(vendor)
    address = driver.reserve(SIZE)
    driver.map(address, SIZE, driver.create(device.ordinal, SIZE), device.ordinal)
    return driver, address


def cause(call: object, *arguments: object, **named: object) -> Cause:
    assert callable(call)
    with pytest.raises(DeviceError) as caught:
        call(*arguments, **named)
    return caught.value.cause


def test_devices_of_all_vendors_are_found() -> None:
    mib = 64 << 20
    assert devices() == (
        Device(
            vendor="nvidia",
            ordinal=0,
            uuid=f"GPU-{_uuid(1)}",
            name="Fake H200",
            pci_bus="0000:11:00.0",
            memory_bytes=mib,
        ),
        Device(
            vendor="nvidia",
            ordinal=1,
            uuid=f"GPU-{_uuid(2)}",
            name="Fake H200",
            pci_bus="0000:12:00.0",
            memory_bytes=mib,
        ),
        Device(
            vendor="amd",
            ordinal=0,
            uuid="GPU-aaaaaaaaaaaaaaaa",
            name="Fake MI300X",
            pci_bus="0000:05:00.0",
            memory_bytes=mib,
        ),
        Device(
            vendor="amd",
            ordinal=1,
            uuid="GPU-bbbbbbbbbbbbbbbb",
            name="Fake MI300X",
            pci_bus="0000:06:00.0",
            memory_bytes=mib,
        ),
        Device(
            vendor="intel",
            ordinal=0,
            uuid=f"GPU-{_uuid(1)}",
            name="Fake Max 1550",
            pci_bus="0000:4d:00.0",
            memory_bytes=mib,
        ),
        Device(
            vendor="intel",
            ordinal=1,
            uuid=f"GPU-{_uuid(2)}",
            name="Fake Max 1550",
            pci_bus="0000:4e:00.0",
            memory_bytes=mib,
        ),
    )
    assert devices("amd") == devices()[2:4] and absent() == {}


def _uuid(byte: int) -> str:
    return f"{byte:02x}" * 4 + ("-" + f"{byte:02x}" * 2) * 3 + "-" + f"{byte:02x}" * 6


def test_a_uuid_of_bytes_is_written_as_one() -> None:
    assert written(bytes(range(16))) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_an_absent_vendor_adds_no_device_and_says_why(
    fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSTER_HIP_LIBRARY", str(tmp_path / "gone.so"))
    fakes["level_zero"].tell("count * 0")
    assert [device.vendor for device in devices()] == ["nvidia", "nvidia"]
    assert {name: error.cause for name, error in absent().items()} == {
        "amd": Cause.NO_LIBRARY,
        "intel": Cause.NO_DEVICE,
    }


def test_a_broken_driver_is_not_hidden(fakes: dict[str, Fake]) -> None:
    fakes["cuda"].tell("cuDeviceGetName 1 719")
    assert cause(devices) == Cause.DEVICE_LOST


def test_an_unknown_vendor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DeviceError, match="'matrox' is no vendor; known are nvidia, amd, intel"):
        devices("matrox")


def test_a_process_has_one_primary_context_per_device(fake: Fake) -> None:
    device = next(each for each in devices() if each.vendor == fake.vendor().vendor)
    first, second = Context(device), Context(device)
    assert fake.uses(0) == 1 and fake.uses(1) == 0
    first.close()
    first.close()
    assert fake.uses(0) == 1
    second.close()
    assert fake.uses(0) == 0
    with Context(device):
        assert fake.uses(0) == 1


def test_a_closed_context_is_refused() -> None:
    context = Context(devices()[0])
    context.close()
    assert cause(context.limits) == Cause.INVALID_CONTEXT
    assert cause(context.read, 0, 1) == Cause.INVALID_CONTEXT


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_heap_and_stack_limits_are_set_and_read_back_as_the_driver_rounds(vendor: str) -> None:
    device = devices(vendor)[0]
    with Context(device) as context:
        assert context.limits() == Limits(heap_bytes=8 << 20, stack_bytes=1024)
        context.set_limits(stack_bytes=4097)
        assert context.limits() == Limits(heap_bytes=8 << 20, stack_bytes=4112)
    with Context(device, heap_bytes=64 << 20, stack_bytes=0) as context:
        assert context.limits() == Limits(heap_bytes=64 << 20, stack_bytes=0)


def test_limits_that_a_vendor_lacks_are_refused_and_leave_no_context(
    fakes: dict[str, Fake],
) -> None:
    device = devices("intel")[0]
    assert cause(Context, device, heap_bytes=1 << 20) == Cause.NOT_SUPPORTED
    assert fakes["level_zero"].uses(0) == 0
    with Context(device) as context:
        assert cause(context.memory) == Cause.NOT_SUPPORTED


def test_a_negative_limit_is_refused(fakes: dict[str, Fake]) -> None:
    assert cause(Context, devices()[0], stack_bytes=-1) == Cause.INVALID_VALUE
    assert fakes["cuda"].uses(0) == 0


def test_a_driver_s_refusal_of_a_limit_is_told_in_its_words(fakes: dict[str, Fake]) -> None:
    fakes["cuda"].tell("cuCtxSetLimit 0 215")
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_UNSUPPORTED_LIMIT \(215\)") as caught:
        Context(devices()[0], heap_bytes=1 << 20)
    assert caught.value.call == "cuCtxSetLimit" and caught.value.on == "device 0"


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_free_memory_falls_with_what_is_created(vendor: str) -> None:
    device = devices(vendor)[0]
    with Context(device) as context:
        assert context.memory() == (64 << 20, 64 << 20)
        memory(device)
        assert context.memory() == ((64 << 20) - SIZE, 64 << 20)


def test_the_peer_matrix_is_of_ordered_pairs_and_never_crosses_vendors(
    fakes: dict[str, Fake],
) -> None:
    fakes["hip"].tell("apart 1 1")
    found = peer_access(devices())
    assert len(found) == 36
    assert all(found[device, device] for device in devices())
    told = {
        (str(one), str(other))
        for (one, other), reached in found.items()
        if reached and one != other
    }
    assert told == {
        ("nvidia device 0", "nvidia device 1"),
        ("nvidia device 1", "nvidia device 0"),
        ("amd device 0", "amd device 1"),
        ("intel device 0", "intel device 1"),
        ("intel device 1", "intel device 0"),
    }


def test_a_peer_is_opened_as_often_as_one_likes(fake: Fake) -> None:
    one, other = devices(fake.vendor().vendor)
    with Context(one) as first, Context(other) as second:
        first.open_peer(second)
        first.open_peer(second)


def test_a_peer_out_of_reach_is_refused(fake: Fake) -> None:
    fake.tell("apart 0 1")
    one, other = devices(fake.vendor().vendor)
    with Context(one) as first, Context(other) as second:
        assert cause(first.open_peer, second) == Cause.PEER_UNREACHABLE


def test_a_peer_of_another_vendor_is_refused() -> None:
    first, second = Context(devices("nvidia")[0]), Context(devices("amd")[0])
    with first, second, pytest.raises(CrossVendorTransferError):
        first.open_peer(second)


def test_bytes_travel_between_devices_of_one_vendor_and_the_host(fake: Fake) -> None:
    one, other = devices(fake.vendor().vendor)
    (_, source), (_, target) = memory(one), memory(other)
    with Context(one) as first, Context(other) as second:
        first.write(source, b"0123456789" * 1_000)
        copy(destination=second, to_address=target, source=first, from_address=source, size=10_000)
        assert second.read(target, 10_000) == b"0123456789" * 1_000
        assert ctypes.string_at(target, 4) == b"0123"


def test_vendors_copy_to_each_other_through_the_host_and_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(public, "STAGING_BYTES", 4_096)
    one, other = devices("nvidia")[0], devices("intel")[1]
    (_, source), (_, target) = memory(one), memory(other)
    with Context(one) as first, Context(other) as second:
        first.write(source, b"abcdefg" * 2_000)
        with pytest.raises(CrossVendorTransferError, match="nvidia device 0 to intel device 1"):
            copy(
                destination=second,
                to_address=target,
                source=first,
                from_address=source,
                size=14_000,
            )
        assert second.read(target, 3) == bytes(3)
        copy(
            destination=second,
            to_address=target,
            source=first,
            from_address=source,
            size=14_000,
            through_host=True,
        )
        assert second.read(target, 14_000) == b"abcdefg" * 2_000


@pytest.mark.parametrize("size", [0, -1])
def test_a_copy_of_nothing_is_refused(size: int) -> None:
    with Context(devices()[0]) as context:
        assert cause(copy, context, 0, context, 0, size) == Cause.INVALID_VALUE


def test_the_caller_s_thread_keeps_its_own_current_context(fakes: dict[str, Fake]) -> None:
    """A context is current in the library's thread only: PyTorch's choice stays."""
    with Context(devices()[0], stack_bytes=2_048):
        library = ctypes.CDLL(str(fakes["cuda"].path))
        found = ctypes.c_size_t()
        assert library.cuCtxGetLimit(ctypes.byref(found), 0) == 201  # no context is current here
