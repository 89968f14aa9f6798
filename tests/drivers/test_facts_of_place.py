"""The agent's facts about the topology of its devices.

tests/unit/test_device_topology.py tests how the agent finds it.
"""

from pathlib import Path

import pytest

from libs.common.devices.topology import Topology
from libs.common.model import GpuId
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from tests.drivers import trees
from tests.drivers.fakes import Fakes


async def test_facts_of_a_real_device_have_its_place(fakes: Fakes, tmp_path: Path) -> None:
    fakes.tell("nvidia", "count * 4", "links 0 4", "links 1 4")
    root = tmp_path / "sys"
    above = "pci0000:00/0000:00:01.0/0000:00:02.0"
    for i, numa in enumerate((0, 0, 1)):
        trees.place(root, f"{above}/0000:00:0{i + 3}.0/0000:0{i + 1}:00.0", numa, "0-7")
    driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("nvidia", 10.0, 20.0))], sys_root=root
    )
    gpus = await driver.inventory()
    assert [(gpu.numa, gpu.switch) for gpu in gpus] == [
        (0, "0000:00:02.0"),
        (0, "0000:00:02.0"),
        (1, "0000:00:02.0"),
        (-1, ""),
    ]
    assert gpus[0].links == gpus[1].links != "" and gpus[2].links == gpus[3].links == ""
    found = await driver.topology()
    assert found.paths[0] == ("X", "NV4", "PIX", "?") and found.spots[3].device == "GPU-fake-3"
    await driver.close()


@pytest.mark.parametrize(
    ("model", "near", "pair", "far"),
    [("Simulated H100", "NV", "NV", "NV"), ("Simulated L4", "PIX", "NODE", "SYS")],
)
async def test_facts_of_a_simulated_node_have_its_topology(
    model: str, near: str, pair: str, far: str
) -> None:
    found: Topology = await SimulatedDriver("n", 8, model).topology()
    assert found.simulated and found.spots[7].device == GpuId("GPU-n-7")
    assert (found.paths[0][1], found.paths[0][2], found.paths[0][4]) == (near, pair, far)
