"""A node whose NVLink fabric is not up: its devices serve jobs that have one GPU there, and no
others.
"""

from libs.common import facts as f
from libs.common.life import gpu_life
from libs.common.model import Gpu, GpuId, NodeId
from libs.common.state.cluster import Cluster
from services.node_agent.core import devices as d
from services.node_agent.core.devices import Devices, Trouble
from services.node_agent.drivers.readings import Sample
from services.node_agent.health.watch import FABRIC
from services.scheduler.placement.hardware import NONE, Hardware, key_of
from services.scheduler.placement.resource_request import ResourceRequest
from tests.history import begun, recovered

ONE = GpuId("n1g1")
DOWN = Trouble(gpu_life.DEGRADED, "its registration has not started", alone=True)
GPUS = [
    Gpu(uuid=GpuId(f"g{index}"), index=index, vendor="nvidia", model="H100", memory_bytes=80 << 30)
    for index in range(2)
]


def test_single_hardware_serves_one_device_and_no_pair() -> None:
    up, down = Hardware(GPUS, ()), Hardware(GPUS, (), single=True)
    assert up.pick(3, 2, ResourceRequest(gpus=2)) is not NONE
    assert (
        down.pick(3, 2, ResourceRequest(gpus=2)) is NONE
        and down.pick(3, 1, ResourceRequest()) is not NONE
    )
    assert key_of(GPUS, ()) != key_of(GPUS, (), True)


def test_fault_that_says_alone_is_folded_and_recovery_clears_it() -> None:
    history = begun()
    fault = f.GpuFaulted(
        node_id=NodeId("n1"), uuid=ONE, health="degraded", reason=FABRIC, alone=True
    )
    assert history.say(fault)
    cluster: Cluster = history.cluster
    assert cluster.gpus[ONE].alone and cluster.gpus[ONE].takes_work
    assert history.say(recovered("n1", "n1g1"))
    assert not cluster.gpus[ONE].alone


def test_worse_trouble_does_not_hide_that_the_fabric_is_down() -> None:
    devices = Devices()
    d.add_trouble(devices, ONE, FABRIC, DOWN)
    d.add_trouble(
        devices, ONE, "remap_pending", Trouble(gpu_life.DEGRADED, "waits", "drain_then_reset")
    )
    (fact,) = d.facts(devices, NodeId("n1"), 10)
    assert isinstance(fact, f.GpuFaulted) and (fact.reason, fact.alone) == ("remap_pending", True)
    d.clear_trouble(devices, ONE, FABRIC)
    (fact,) = d.facts(devices, NodeId("n1"), 10)
    assert isinstance(fact, f.GpuFaulted) and not fact.alone


def test_sample_whose_fabric_is_up_says_nothing() -> None:
    assert Sample(pci_bus="a", at_ns=1, fabric="").fabric == ""
