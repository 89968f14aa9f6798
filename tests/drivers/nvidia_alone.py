"""A driver with NVIDIA's devices only: the real binding over a library built from C."""

from libs.common.model import GpuId
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess

FIRST, SECOND = GpuId("GPU-fake-0"), GpuId("GPU-fake-1")


def nvidia_alone() -> LocalDriver:
    return LocalDriver(vendors=[VendorDevices(VendorProcess("nvidia", 10.0, 20.0))])
