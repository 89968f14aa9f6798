"""A device keeps its number in the memory broker and the weight servers, whatever its vendor's
index is by now.
"""

from pathlib import Path

import pytest

from libs.common.model import Gpu, GpuId
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


def test_devices_are_numbered_anew_if_the_file_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text("no JSON")
    assert DeviceNumbers(tmp_path).number_of(gpu("b", 1)) == 1
    assert "cannot be read" in caplog.text
    assert DeviceNumbers(tmp_path).numbers == {"b": 1}


def test_a_number_counts_also_if_it_cannot_be_written_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "memory").touch()
    numbers = DeviceNumbers(tmp_path / "memory")
    assert [numbers.number_of(gpu("b", 1)), numbers.number_of(gpu("b", 0))] == [1, 1]
    assert "free space, then restart the agent" in caplog.text
