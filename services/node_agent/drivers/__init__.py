"""What a vendor's devices are asked and told, as one small protocol; `local.py` are this machine's
own, `simulated.py` are in name only.

A driver never blocks the event loop: one that calls a vendor's library does so in a child process
with a deadline.
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
# The nodes through which a device's MIG instances are opened, by their names
# (`sysfs.capabilities`).
Capabilities = Mapping[GpuId, Mapping[str, tuple[int, int]]]


class Driver(Protocol):
    """The devices of one node."""

    # By what each device is opened, as far as that is its own: what several share (nvidiactl, kfd)
    # is not here. Known once `inventory` was.
    nodes: DeviceNodes
    capabilities: Capabilities
    # By PCI address the least memory that was seen used: what was known of it before goes in before
    # `inventory`.
    baseline: dict[str, int]
    # The devices that the machine has: what the agent before this one knew goes in before
    # `inventory`, the next agent's comes out after it.
    known: Sequence[Device]
    # True if the inventory gets only the deadline of other calls, because this agent must renew the
    # leases of running jobs.
    hurry: bool
    # Devices of the inventory that their driver does not show. Known once `inventory` was.
    absent: Mapping[GpuId, Absent]

    @property
    def simulated(self) -> bool:
        """Whether the devices exist only in name; NodeRegistered says so."""
        ...

    async def inventory(self) -> Sequence[Gpu]:
        """Return every device of the machine, by vendor and index.

        Those that no driver shows are last, and in `absent`.
        """
        ...

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        """Of these devices the ones that something still holds, and what: a holder, memory above
        its baseline.
        """
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of this machine's drivers, by name. Known once `inventory` was."""
        ...

    def version_of(self, uuid: GpuId) -> str:
        """The version of the device's driver; empty where it is not known."""
        ...

    def modes(self, uuid: GpuId) -> Modes:
        """How the device is divided, as the last inventory found it."""
        ...

    async def sample(self) -> Mapping[GpuId, Sample]:
        """How each device is now; one that does not answer is left out, and an event says so."""
        ...

    async def events(self) -> Sequence[Event]:
        """What happened since the last call."""
        ...

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        """Raises Refused when the device or its driver does not do it, Unavailable when it does not
        answer.
        """
        ...

    async def topology(self) -> Topology:
        """How the devices and the node's network cards lie to each other, as it was when they were
        found.
        """
        ...

    async def close(self) -> None:
        """Let go of the devices."""
        ...
