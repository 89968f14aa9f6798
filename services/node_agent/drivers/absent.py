"""Finds the devices that this machine has but its drivers do not show. Pure.

A machine has the devices that the previous agent knew and those that its PCI bus lists. A device is
absent if its driver does not show it and no operator has taken it out. It stays in the inventory,
out of use. `Absent` says whether it is lost or only its driver is not loaded. Tests:
tests/drivers/test_absent.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from libs.common.devices.partition import card_of
from services.node_agent.drivers.readings import Device
from services.node_agent.drivers.sysfs import OnBus

# The kernel's drivers under which a vendor's library can see a device. Under another one (such as
# vfio-pci) the device belongs to another user, for example a virtual machine.
KERNEL_DRIVERS: Final = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("xe", "i915")}
# A PCI class. A display controller of AMD or Intel may be part of the processor. Their libraries
# need not show it.
VGA: Final = "0x0300"
# File in the agent's state directory that holds `KnownDevices`.
FILE: Final = "devices-had.json"
UNKNOWN_MODEL: Final = "unknown model"


class Absent(NamedTuple):
    """A device that its driver does not show, and why.

    `lost`: the vendor's driver answers but does not show the device. Otherwise the driver itself
    does not answer, which proves nothing about the device.
    """

    device: Device
    why: str
    lost: bool


class Vendor(NamedTuple):
    """The devices that one vendor's library shows; `missing` says why it shows none."""

    shown: Sequence[Device]
    missing: str = ""


class KnownDevices(msgspec.Struct, frozen=True):
    """The devices that an agent knew, for the next agent of this machine.

    `boot_id` names the boot in which the agent called the driver.
    """

    boot_id: str = ""
    devices: tuple[Device, ...] = ()


def absent(
    had: Iterable[Device],
    vendors: Mapping[str, Vendor],
    bus: Sequence[OnBus],
    removed: Collection[str],
    node_id: str,
) -> list[Absent]:
    """Return the devices of `had` and of the bus that no driver shows.

    `removed`: UUIDs and addresses that an operator has taken out.
    """
    known = [device for device in had if not {device.uuid, device.pci_bus} & set(removed)]
    given_away = {
        each.pci_bus
        for each in bus
        if each.driver and each.driver not in KERNEL_DRIVERS[each.vendor]
    }
    found = []
    for device in known:
        vendor = vendors.get(device.vendor)
        if (
            vendor is not None
            and not _is_shown(device, vendor.shown)
            and device.pci_bus not in given_away
        ):
            found.append(_absent(device, vendor, bus))
    addresses = {device.pci_bus for device in known} | {
        each.pci_bus for vendor in vendors.values() for each in vendor.shown
    }
    for each in bus:
        vendor = vendors.get(each.vendor)
        if (
            vendor is not None
            and _counts(each, vendor)
            and each.pci_bus not in (*addresses, *given_away, *removed)
        ):
            found.append(_absent(_unknown(each, node_id), vendor, bus))
    return found


def _is_shown(device: Device, shown: Sequence[Device]) -> bool:
    """Return whether the driver shows the device.

    It counts as shown also if its card is divided otherwise or another card is in its slot.
    """
    return any(
        each.pci_bus == device.pci_bus or card_of(each.uuid) == card_of(device.uuid)
        for each in shown
    )


def _counts(each: OnBus, vendor: Vendor) -> bool:
    """Return whether the vendor's library should show a device that no agent has seen before."""
    return not vendor.missing and may_be_absent(each)


def may_be_absent(each: OnBus) -> bool:
    """Return whether a GPU on the bus is not part of the processor, so that jobs may get it."""
    return each.vendor == "nvidia" or each.pci_class != VGA


def _absent(device: Device, vendor: Vendor, bus: Sequence[OnBus]) -> Absent:
    if vendor.missing:
        return Absent(
            device, f"the driver of {device.vendor} does not show it: {vendor.missing}", lost=False
        )
    where = next((each for each in bus if each.pci_bus == device.pci_bus), None)
    if where is None:
        return Absent(
            device,
            f"the driver of {device.vendor} does not show it, and it is not on the PCI bus",
            lost=True,
        )
    bound = f"bound to {where.driver}" if where.driver else "bound to no driver"
    return Absent(
        device,
        f"the driver of {device.vendor} does not show it; it is on the PCI bus, {bound}",
        lost=True,
    )


def _unknown(each: OnBus, node_id: str) -> Device:
    """Return a device for a PCI address.

    Only its driver knows its UUID, so its node and address name it until then.
    """
    uuid = f"{node_id}-{each.pci_bus}"
    return Device(
        pci_bus=each.pci_bus,
        uuid=uuid,
        index=-1,
        vendor=each.vendor,
        model=UNKNOWN_MODEL,
        driver_version="",
    )
