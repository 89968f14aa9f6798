"""The real devices of this machine, of all vendors.

Each vendor's library runs in a child process of its own. A driver that hangs makes its devices
unclean. It never blocks the agent or another vendor. A device is clean if its memory use is near
the lowest that agents have seen since the machine booted.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from libs.common.devices.topology import Topology
from libs.common.errors import Refused, Unavailable
from libs.common.model import Gpu, GpuId
from services.node_agent.drivers import Capabilities, DeviceNodes, renumbering, sysfs
from services.node_agent.drivers.absent import Absent, Vendor, absent
from services.node_agent.drivers.child import VENDORS
from services.node_agent.drivers.node_reads import NodeReads
from services.node_agent.drivers.readings import (
    Command,
    Device,
    Done,
    Event,
    Fault,
    Lacking,
    Modes,
    Reset,
    Sample,
    SetMigMode,
    SetPartition,
)
from services.node_agent.drivers.sysfs import Seat
from services.node_agent.drivers.topology import Part, groups, switch, topology
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import ANSWER_S, BEGIN_S, RESET_S, VendorProcess

# Memory above the baseline that contexts of monitors and the driver's own caches may use.
SLACK_BYTES: Final = 256 << 20
# Names of drivers that differ from their vendor's name.
DRIVERS: Final = {"amd": "amdgpu", "intel": "level_zero"}

logger = logging.getLogger(__name__)


class LocalDriver:
    """The driver of real devices; see `drivers.Driver`."""

    simulated = False

    def __init__(
        self,
        answer_s: float = ANSWER_S,
        vendors: Sequence[VendorDevices] = (),
        sys_root: Path = sysfs.SYS,
        proc_root: Path = sysfs.PROC,
        reset_s: float = RESET_S,
        node_id: str = "",
        removed: Collection[str] = (),
        begin_s: float = BEGIN_S,
    ) -> None:
        """Create the driver; `inventory` finds the devices.

        `removed` are the UUIDs or PCI addresses of GPUs that an operator took out of the machine,
        or that Muster must not use.
        """
        self.node_id, self.removed = node_id, removed
        self.sys_root, self.proc_root = sys_root, proc_root
        self.parts: list[Part] = []
        self.nodes: DeviceNodes = {}
        self.capabilities: Capabilities = {}
        self.vendors = vendors or [
            VendorDevices(VendorProcess(vendor, answer_s, begin_s, reset_s=reset_s))
            for vendor in VENDORS
        ]
        self.baseline: dict[str, int] = {}
        # Weights that stay on the devices between jobs, and the processes that hold them.
        self.resident: Callable[[GpuId], int] = lambda uuid: 0
        self.holds: Callable[[], Collection[int]] = lambda: ()
        self.hurry = False
        self.latest: dict[GpuId, Sample] = {}
        self.known: Sequence[Device] = ()
        self.absent: Mapping[GpuId, Absent] = {}
        names = [vendor.process.vendor for vendor in self.vendors]
        self._reads = NodeReads(names, sys_root, proc_root)
        # The GPUs on the PCI bus at the inventory.
        self.bus: Sequence[sysfs.OnBus] = ()
        # The vendors whose devices may have other indexes once the next inventory is complete.
        self.renumbering: set[str] = set()

    async def inventory(self) -> Sequence[Gpu]:
        """Return the devices of this machine.

        For a vendor that does not answer, return the devices that the previous agent knew.
        """
        await self._read_bus()
        for vendor in self.vendors:
            known = [device for device in self.known if device.vendor == vendor.process.vendor]
            vendor.process.hurry = self.hurry
            vendor.known = {
                device.pci_bus: device
                for device in known
                if not {device.uuid, device.pci_bus} & set(self.removed)
            }
        await asyncio.gather(*(vendor.discover() for vendor in self.vendors))
        if not any(vendor.devices for vendor in self.vendors):
            logger.warning("%s", self.nothing)
        await self.sample()
        self.parts = await asyncio.to_thread(self._parts)
        for vendor in self.vendors:
            vendor.process.hurry = False
        seats, links = {part.pci_bus: part.seat for part in self.parts}, groups(self.parts)
        self.absent = await asyncio.to_thread(self._absent)
        await self.read_nodes()
        shown = [device for _, _, device in self._devices()]
        away = [
            each.device
            for uuid, each in self.absent.items()
            if all(uuid != device.uuid for device in shown)
        ]
        self.known = [*shown, *away]
        for each in self.absent.values():
            logger.error("GPU %s %s: %s", each.device.vendor, each.device.pci_bus, each.why)
        # A vendor that did not list its devices shows the old ones, with their old indexes.
        self.renumbering &= {
            vendor.process.vendor
            for vendor in self.vendors
            if vendor.devices and not vendor.answers
        }
        gpus = [
            _gpu(device, seats[device.pci_bus], links.get(device.pci_bus, "")) for device in shown
        ]
        return [
            *gpus,
            *(_gpu(device, sysfs.seat(device.pci_bus, self.sys_root), "") for device in away),
        ]

    def _absent(self) -> dict[GpuId, Absent]:
        """Return the absent devices, with those that their vendor lists but that are lost."""
        vendors = {
            vendor.process.vendor: Vendor(
                tuple(vendor.devices.values()), "" if vendor.answers else vendor.missing
            )
            for vendor in self.vendors
        }
        found = absent(
            had=self.known,
            vendors=vendors,
            bus=self.bus,
            removed=self.removed,
            node_id=self.node_id,
        )
        for vendor in self.vendors:
            listed = (
                (vendor.devices[address], why)
                for address, why in vendor.lost.items()
                if address in vendor.devices
            )
            found += [Absent(device, why, lost=True) for device, why in listed]
        return {GpuId(each.device.uuid): each for each in found}

    async def topology(self) -> Topology:
        return topology(self.parts)

    async def renumbered(self, vendor: str, wait_s: float = 0.0) -> str:
        if not await renumbering.ended(vendor, self.renumbering, wait_s):
            return renumbering.LISTED_AGAIN
        now = await asyncio.to_thread(sysfs.gpus, self.sys_root)
        changes = sysfs.changes(vendor, self.bus, now)
        return renumbering.CHANGED.format(changes=changes) if changes else ""

    async def _read_bus(self) -> None:
        """Read the PCI bus, and restart the process of each vendor whose GPUs there changed.

        A vendor's process lists its devices only when it starts.
        """
        before, self.bus = self.bus, await asyncio.to_thread(sysfs.gpus, self.sys_root)
        for vendor in self.vendors:
            if before and sysfs.changes(vendor.process.vendor, before, self.bus):
                self.renumbering.add(vendor.process.vendor)
                await vendor.restart()

    async def read_nodes(self) -> None:
        """See `drivers.Driver`. Absent devices count too: one that comes back is denied already."""
        devices = [each.device for each in self.absent.values()]
        devices += [device for _, _, device in self._devices()]
        self.nodes, self.capabilities = await self._reads.read(devices)

    def _parts(self) -> list[Part]:
        """Return the GPUs in the order of the inventory, then the network cards."""
        root, found = self.sys_root, []
        for number, (_, _, device) in enumerate(self._devices()):
            links = () if isinstance(device.links, Lacking) else device.links
            found.append(
                Part(
                    name=f"GPU{number}",
                    kind="gpu",
                    device=device.uuid,
                    pci_bus=device.pci_bus,
                    seat=sysfs.seat(device.pci_bus, root),
                    links=links,
                )
            )
        cards = sysfs.cards(root)
        return found + [
            Part(
                name=f"NIC{i}",
                kind="nic",
                device=card.name,
                pci_bus=card.pci_bus,
                seat=sysfs.seat(card.pci_bus, root),
            )
            for i, card in enumerate(cards)
        ]

    @property
    def nothing(self) -> str:
        return (
            "no GPU was found on this machine ("
            + "; ".join(f"{vendor}: {why}" for vendor, why in self.missing.items())
            + ")"
        )

    @property
    def missing(self) -> dict[str, str]:
        """The reason why a vendor has no device here, by vendor."""
        return {vendor.process.vendor: vendor.missing for vendor in self.vendors if vendor.missing}

    @property
    def versions(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for _, _, device in self._devices():
            found |= {
                DRIVERS.get(device.vendor, device.vendor): device.driver_version,
                **device.versions,
            }
        return {name: version for name, version in found.items() if version}

    def version_of(self, uuid: GpuId) -> str:
        return next(
            (device.driver_version for known, _, device in self._devices() if known == uuid), ""
        )

    def modes(self, uuid: GpuId) -> Modes:
        device = next((device for known, _, device in self._devices() if known == uuid), None)
        if device is None:
            return Modes()
        mig = None if isinstance(device.mig, Lacking) else device.mig
        return Modes(
            mig,
            *(
                "" if isinstance(mode, Lacking) else mode
                for mode in (device.compute_partition, device.memory_partition)
            ),
        )

    async def sample(self) -> Mapping[GpuId, Sample]:
        """Return a sample of each device.

        A device that was silent once keeps its last sample, marked as stale.
        """
        found = await self._sample(None)
        stale = [
            uuid
            for uuid, vendor, device in self._devices()
            if uuid not in found and vendor.is_stale(device.pci_bus)
        ]
        kept = {
            uuid: replace(self.latest[uuid], stale=True) for uuid in stale if uuid in self.latest
        }
        self.latest = {
            uuid: {**found, **kept}[uuid]
            for uuid, _, _ in self._devices()
            if uuid in found or uuid in kept
        }
        return self.latest

    async def _sample(self, wanted: Sequence[GpuId] | None) -> dict[GpuId, Sample]:
        """Return samples of all devices, or only of those that are `wanted`."""
        devices = [
            [each for each in vendor.devices.values() if wanted is None or each.uuid in wanted]
            for vendor in self.vendors
        ]
        found = await asyncio.gather(
            *(
                vendor.sample([device.pci_bus for device in own])
                for vendor, own in zip(self.vendors, devices, strict=True)
            )
        )
        for address, sample in (pair for samples in found for pair in samples.items()):
            if not isinstance(sample.memory_used_bytes, Lacking):
                self.baseline[address] = min(
                    sample.memory_used_bytes, self.baseline.get(address, sample.memory_used_bytes)
                )
        pairs = zip(devices, found, strict=True)
        return {
            GpuId(device.uuid): samples[device.pci_bus]
            for own, samples in pairs
            for device in own
            if device.pci_bus in samples
        }

    async def events(self) -> Sequence[Event]:
        return [
            event
            for found in await asyncio.gather(*(vendor.events() for vendor in self.vendors))
            for event in found
        ]

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        """Carry out a command. Raises Refused, and Unavailable if the driver does not answer.

        A device that is set aside accepts only a reset.
        """
        for known, vendor, device in self._devices():
            if known == uuid:
                if vendor.is_aside(device.pci_bus) and not isinstance(command, Reset):
                    raise Unavailable(f"GPU {uuid}: its driver does not answer")
                if isinstance(command, SetPartition):
                    self.renumbering.add(device.vendor)
                if isinstance(command, SetMigMode | SetPartition):
                    # The idle memory use differs between modes.
                    self.baseline.pop(device.pci_bus, None)
                answer = await vendor.control(device.pci_bus, command)
                if isinstance(command, SetPartition):
                    await vendor.restart()  # the next child process lists the new partitions
                if isinstance(answer, Fault):
                    raise Refused(f"GPU {uuid}: {answer.text}")
                assert isinstance(answer, Done | Lacking), "CONTROL has no other answers"
                return answer
        raise Refused(f"this node has no GPU {uuid}: muster gpus lists them")

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        samples = await self._sample(uuids)
        found = {
            uuid: self._held(device, samples.get(uuid), vendor)
            for uuid, vendor, device in self._devices()
            if uuid in uuids
        }
        unknown = dict.fromkeys(uuids, "the driver does not know the device any more")
        return {uuid: why for uuid, why in {**unknown, **found}.items() if why}

    async def close(self) -> None:
        await asyncio.gather(*(vendor.close() for vendor in self.vendors))

    def _devices(self) -> Iterator[tuple[GpuId, VendorDevices, Device]]:
        for vendor in self.vendors:
            for device in vendor.devices.values():
                yield GpuId(device.uuid), vendor, device

    def _held(self, device: Device, sample: Sample | None, vendor: VendorDevices) -> str:
        """Return why a device is not clean; empty if it is."""
        if sample is None:
            silent = vendor.is_aside(device.pci_bus) or vendor.is_stale(device.pci_bus)
            return "its driver does not answer" if silent else "the device is lost"
        used = sample.memory_used_bytes
        if isinstance(used, Lacking):
            return _by_processes(sample, self.holds())
        least = self.baseline[device.pci_bus] + self.resident(GpuId(device.uuid))
        return (
            f"{used >> 20} MiB of its memory are used, {least >> 20} MiB when it was idle"
            if used > least + SLACK_BYTES
            else ""
        )


def _by_processes(sample: Sample, but: Collection[int]) -> str:
    """Return why a device is not clean if it does not report its memory use.

    The processes in `but` may use it.
    """
    if isinstance(sample.processes, Lacking):
        return f"it reports neither its memory use nor its processes: {sample.processes.why}"
    return ", ".join(
        f"process {each.pid} uses it" for each in sample.processes if each.pid not in but
    )


def _gpu(device: Device, seat: Seat, links: str) -> Gpu:
    return Gpu(
        uuid=GpuId(device.uuid),
        index=device.index,
        vendor=device.vendor,
        model=device.model,
        memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
        pci_bus=device.pci_bus,
        numa=seat.numa,
        switch=switch(seat),
        links=links,
        mig_profiles=device.mig_profiles if device.mig is True else (),
        power_mw=(0, 0) if isinstance(device.power_mw, Lacking) else device.power_mw,
        clocks_mhz=(0, 0) if isinstance(device.clocks_mhz, Lacking) else device.clocks_mhz,
        mig=device.mig is True,
    )
