"""A device keeps its number in the memory broker and the weight servers, whatever its vendor's
index is by now.
"""

from pathlib import Path

import msgspec
import pytest

from libs.common.model import Gpu, GpuId
from services.node_agent.drivers import absent
from services.node_agent.drivers.absent import KnownDevices
from services.node_agent.drivers.readings import Device
from services.node_agent.memory.device_numbers import FILE, DeviceNumbers
from services.node_agent.memory.grants import HOST


def gpu(uuid: str, index: int, vendor: str = "nvidia") -> Gpu:
    return Gpu(uuid=GpuId(uuid), index=index, vendor=vendor, model="M", memory_bytes=1 << 30)


def test_each_vendor_counts_its_devices_from_a_number_of_its_own() -> None:
    numbers = DeviceNumbers()
    inventory = [gpu("a", 0), gpu("b", 1), gpu("c", 0, "amd"), gpu("d", 0, "intel")]
    found = numbers.devices_of(inventory)
    assert [(each.uuid, each.number, each.driver) for each in found] == [
        ("a", 0, "cuda"),
        ("b", 1, "cuda"),
        ("c", 1_000, "hip"),
        ("d", 2_000, "level_zero"),
    ]


def test_a_device_keeps_its_number_when_its_index_changes_also_under_the_next_agent(
    tmp_path: Path,
) -> None:
    first = DeviceNumbers(tmp_path / "memory")
    assert [first.number_of(each) for each in (gpu("a", 0), gpu("b", 1))] == [0, 1]
    second = DeviceNumbers(tmp_path / "memory")
    assert [second.number_of(each) for each in (gpu("b", 0), gpu("c", 1))] == [1, 2]
    assert DeviceNumbers(tmp_path / "memory").number_of(gpu("a", 1)) == 0


def test_an_absent_device_has_not_the_number_of_host_memory() -> None:
    numbers = DeviceNumbers()
    found = [numbers.number_of(each) for each in (gpu("a", 0), gpu("x", -1), gpu("y", -1))]
    assert found == [0, 1, 2] and HOST not in found


def test_devices_get_new_numbers_if_the_file_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text("no JSON")
    assert DeviceNumbers(tmp_path).number_of(gpu("b", 1)) == 1
    assert "is damaged" in caplog.text
    assert DeviceNumbers(tmp_path).numbers == {"b": 1}


def test_file_that_cannot_be_read_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, other = tmp_path / FILE, tmp_path / "other"
    DeviceNumbers(tmp_path).number_of(gpu("a", 7))
    file.rename(other)
    file.mkdir()  # also root cannot read it
    assert DeviceNumbers(tmp_path).number_of(gpu("a", 0)) == 0
    assert "make it readable, then restart the agent" in caplog.text
    assert "cannot be written" not in caplog.text and not (tmp_path / f"{FILE}.new").exists()
    file.rmdir()
    other.rename(file)
    assert DeviceNumbers(tmp_path).number_of(gpu("a", 0)) == 7


def kept_by_an_older_agent(state: Path, *devices: tuple[str, int, str]) -> None:
    known = [
        Device(pci_bus=uuid, uuid=uuid, index=index, vendor=vendor, model="M", driver_version="")
        for uuid, index, vendor in devices
    ]
    (state / absent.FILE).write_bytes(msgspec.json.encode(KnownDevices("boot", tuple(known))))


def test_first_agent_with_the_file_begins_with_the_indexes_that_the_previous_agent_knew(
    tmp_path: Path,
) -> None:
    kept_by_an_older_agent(tmp_path, ("a", 0, "nvidia"), ("b", 1, "nvidia"), ("c", 0, "amd"))
    numbers = DeviceNumbers(tmp_path / "memory")
    inventory = [gpu("b", 0), gpu("c", 0, "amd"), gpu("a", 0)]  # a is lost: b has its index now
    assert [numbers.number_of(each) for each in inventory] == [1, 1_000, 0]
    kept_by_an_older_agent(tmp_path, ("b", 0, "nvidia"), ("a", 0, "nvidia"), ("c", 0, "amd"))
    again = DeviceNumbers(tmp_path / "memory")
    assert [again.number_of(each) for each in inventory] == [1, 1_000, 0]


def test_device_that_no_driver_had_shown_gets_a_number_after_the_others(tmp_path: Path) -> None:
    kept_by_an_older_agent(tmp_path, ("x", -1, "nvidia"), ("a", 0, "nvidia"), ("b", 0, "nvidia"))
    numbers = DeviceNumbers(tmp_path / "memory")
    assert [numbers.number_of(each) for each in (gpu("x", -1), gpu("a", 1))] == [2, 0]
    assert HOST not in numbers.numbers.values()


def test_damaged_list_of_known_devices_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / absent.FILE).write_text("no JSON")
    assert DeviceNumbers(tmp_path / "memory").number_of(gpu("b", 1)) == 1


def test_a_number_counts_also_if_it_cannot_be_written_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = DeviceNumbers(tmp_path / "memory")
    (tmp_path / "memory").touch()
    assert [numbers.number_of(gpu("b", 1)), numbers.number_of(gpu("b", 0))] == [1, 1]
    assert "free space, then restart the agent" in caplog.text
