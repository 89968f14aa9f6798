"""The agent's interface to its devices: real ones (`local.py`) and simulated ones (`simulated.py`).

A driver never blocks the event loop. Vendors' libraries are called in child processes with
deadlines.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from libs.common.devices.topology import Topology
from libs.common.model import Gpu, GpuId
from services.node_agent.drivers.absent import Absent
from services.node_agent.drivers.readings import (
    Command,
    Device,
    Done,
    Event,
    Lacking,
    Modes,
    Sample,
)

# Major and minor numbers of character devices.
DeviceNodes = Mapping[GpuId, Sequence[tuple[int, int]]]
# The device nodes that open a device's MIG instances, by their names (`sysfs.capabilities`).
Capabilities = Mapping[GpuId, Mapping[str, tuple[int, int]]]


class Driver(Protocol):
    """The devices of one node."""

    # The device nodes of each device, without those that devices share (nvidiactl, kfd).
    # `inventory` and `read_nodes` fill them.
    nodes: DeviceNodes
    capabilities: Capabilities
    # The lowest memory use ever seen, by PCI address. Set what earlier agents saw before
    # `inventory`.
    baseline: dict[str, int]
    # The devices that the machine has. Set those that the previous agent knew before `inventory`;
    # afterwards they are those for the next agent.
    known: Sequence[Device]
    # True if the inventory gets only the deadline of other calls, because this agent must renew the
    # leases of running jobs.
    hurry: bool
    # Devices of the inventory that their driver does not show. `inventory` fills them.
    absent: Mapping[GpuId, Absent]

    @property
    def simulated(self) -> bool:
        """Return whether the devices are simulated, which NodeRegistered records."""
        ...

    async def inventory(self) -> Sequence[Gpu]:
        """Return every device of the machine, by vendor and index.

        Devices that no driver shows come last; `absent` has them too.
        """
        ...

    async def read_nodes(self) -> None:
        """Read `nodes` and `capabilities` again: their numbers may have changed since.

        A driver that hangs does not stop it: its devices keep their last nodes.
        """
        ...

    async def renumbered(self, vendor: str, wait_s: float = 0.0) -> str:
        """Return why indexes of the vendor's GPUs may name other devices than at the inventory, and
        what to do; empty if they name the same ones.

        Wait up to `wait_s` seconds while a card is being divided or the GPUs are listed again.
        """
        ...

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        """Return those of these devices that are still in use, each with the reason: a process that
        holds it, or memory above its baseline.
        """
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of this machine's drivers, by name. Empty before `inventory`."""
        ...

    def version_of(self, uuid: GpuId) -> str:
        """Return the version of the device's driver; empty if it is not known."""
        ...

    def modes(self, uuid: GpuId) -> Modes:
        """Return how the device is divided, as the last inventory found it."""
        ...

    async def sample(self) -> Mapping[GpuId, Sample]:
        """Return a sample of each device.

        A device that does not answer is left out, and `events` reports it.
        """
        ...

    async def events(self) -> Sequence[Event]:
        """Return the events since the last call."""
        ...

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        """Carry out a command.

        Raises Refused if the device or its driver refuses, Unavailable if it does not answer.
        """
        ...

    async def topology(self) -> Topology:
        """Return the topology of the devices and network cards, as the inventory found it."""
        ...

    async def close(self) -> None:
        """Close the devices."""
        ...
