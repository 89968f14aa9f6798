"""Reads the device nodes of all devices without waiting for a driver that hangs.

NVIDIA's numbers are in /proc, and a read of these files calls the driver. A read that hangs keeps
its thread until the driver answers, so there is only one at a time. Tests:
tests/drivers/test_device_nodes.py.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from libs.common.model import GpuId
from services.node_agent.drivers import Capabilities, DeviceNodes, sysfs
from services.node_agent.drivers.absent import may_be_absent
from services.node_agent.drivers.readings import Device

# How long a round waits for the nodes of a vendor.
READ_S: Final = 2.0

logger = logging.getLogger(__name__)

Found = tuple[DeviceNodes, Capabilities]


class NodeReads:
    """The reads of all vendors' device nodes."""

    def __init__(self, vendors: Sequence[str], sys_root: Path, proc_root: Path) -> None:
        self.sys_root = sys_root
        self.vendors = [_VendorReads(vendor, sys_root, proc_root) for vendor in vendors]
        self._nodes: DeviceNodes = {}
        self._turn = asyncio.Lock()

    async def read(self, devices: Sequence[Device]) -> Found:
        """Return the nodes of these devices, and of GPUs that have appeared on the PCI bus since.

        GPUs without a device are named by their address. A vendor whose driver hangs has the nodes
        that were read last.
        """
        bus = await asyncio.to_thread(sysfs.gpus, self.sys_root)
        async with self._turn:
            found = await asyncio.gather(
                *(each.read(_addresses(each.vendor, devices, bus)) for each in self.vendors)
            )
            nodes = {uuid: held for by_uuid, _ in found for uuid, held in by_uuid.items()}
            self._nodes = sysfs.merged(self._nodes, nodes)
            able = {uuid: named for _, by_uuid in found for uuid, named in by_uuid.items()}
            return self._nodes, able


def _addresses(
    vendor: str, devices: Sequence[Device], bus: Sequence[sysfs.OnBus]
) -> dict[GpuId, str]:
    """Return the addresses of a vendor's GPUs, each by its UUID or its address."""
    found = {GpuId(each.uuid): each.pci_bus for each in devices if each.vendor == vendor}
    new = (each for each in bus if each.vendor == vendor and may_be_absent(each))
    return found | {
        GpuId(each.pci_bus): each.pci_bus for each in new if each.pci_bus not in found.values()
    }


class _VendorReads:
    """The reads of one vendor's device nodes, one at a time."""

    def __init__(self, vendor: str, sys_root: Path, proc_root: Path) -> None:
        self.vendor, self.sys_root, self.proc_root = vendor, sys_root, proc_root
        self._last: Found = {}, {}
        # The result, or why the nodes cannot be read.
        self._reading: asyncio.Future[Found | str] | None = None
        self._failed = ""

    async def read(self, addresses: Mapping[GpuId, str]) -> Found:
        """Return the nodes of these devices; those read last if they cannot be read now."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=READ_S)
        if self._reading is None or self._reading.done():
            self._reading = self._begin(addresses)
            await asyncio.wait({self._reading}, timeout=READ_S)
        why = f"its driver did not answer within {READ_S:g} s"
        if self._reading.done():
            found, self._reading = self._reading.result(), None
            if isinstance(found, str):
                why = found
            else:
                self._last, why = found, ""
        if why and not self._failed:
            logger.error(
                "the device nodes of %s cannot be read: %s. The device filters of jobs name the "
                "nodes that were read last",
                self.vendor,
                why,
            )
        self._failed = why
        nodes, able = self._last
        return {uuid: nodes.get(uuid, ()) for uuid in addresses}, able

    def _begin(self, addresses: Mapping[GpuId, str]) -> asyncio.Future[Found | str]:
        """Read in a daemon thread, for which the end of the agent does not wait."""
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[Found | str] = loop.create_future()

        def run() -> None:
            found: Found | str
            try:
                found = self._read(addresses)
            except (OSError, ValueError) as error:  # the file is damaged
                found = f"its files are not as expected: {error}"
            with suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(reading.set_result, found)

        try:
            threading.Thread(target=run, name=f"nodes of {self.vendor}", daemon=True).start()
        except RuntimeError as error:  # the agent has as many threads as it may have
            reading.set_result(f"the agent could not start a thread ({error})")
        return reading

    def _read(self, addresses: Mapping[GpuId, str]) -> Found:
        nodes = {
            uuid: sysfs.device_nodes(address, self.sys_root, self.proc_root)
            for uuid, address in addresses.items()
        }
        able = {
            uuid: sysfs.capabilities(address, self.proc_root) for uuid, address in addresses.items()
        }
        return nodes, able
