"""The present readings of a node's devices, as a gateway gets them."""

from libs.common.model import GpuId
from services.node_agent.devices.present import UNKNOWN, report_of
from services.node_agent.drivers.readings import Sample


def test_readings_are_those_of_the_last_sample_and_lacking_ones_are_unknown() -> None:
    sample = Sample(pci_bus="1", at_ns=1, busy_percent=90, power_mw=350_000, stale=True)
    (found,) = report_of({GpuId("g"): sample}).devices
    assert (found.uuid, found.busy_percent, found.power_mw) == ("g", 90, 350_000)
    assert found.stale and not found.simulated
    assert found.temperature_c == found.memory_used_bytes == UNKNOWN
