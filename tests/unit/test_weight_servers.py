"""Devices have numbers in the weight servers only on nodes that keep weights."""

from pathlib import Path

from libs.common.model import Gpu, GpuId
from services.node_agent.memory.device_numbers import FILE
from services.node_agent.resident.weight_servers import WeightServers


def gpu(uuid: str, index: int) -> Gpu:
    return Gpu(uuid=GpuId(uuid), index=index, vendor="nvidia", model="M", memory_bytes=1 << 30)


def servers(folder: Path) -> WeightServers:
    return WeightServers(folder, changed=lambda change: None, found=lambda entries: None)


def test_node_without_weights_writes_no_device_numbers(tmp_path: Path) -> None:
    made = servers(tmp_path / "weights")
    made.adopt((), [gpu("a", 0), gpu("b", 1)])
    made.use([gpu("a", 0)])
    assert not (tmp_path / "weights").exists()


def test_device_gets_its_number_when_weights_are_to_be_kept_on_it(tmp_path: Path) -> None:
    made = servers(tmp_path)
    made.adopt((), [gpu("a", 0), gpu("b", 1)])
    assert made.device(GpuId("b")).number == 1
    assert (tmp_path / FILE).exists()
    made.use([gpu("b", 0), gpu("c", 1)])
    numbers = [made.device(GpuId(uuid)).number for uuid in ("a", "b", "c")]
    assert numbers == [0, 1, 2]
