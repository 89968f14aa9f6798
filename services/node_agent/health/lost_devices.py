"""Reports devices that the machine has and no driver shows, when an agent starts.

A lost device is an error like one that is lost later: GpuErrorSeen, GpuFaulted, the end of its
jobs. Both facts are in the commit of NodeRegistered, so that no scheduler places anything on the
device. A device without a loaded driver is only out of use: a library that cannot be opened (for
example after an upgrade) says nothing about jobs that run. Tests:
tests/drivers/test_lost_devices.py.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.devices.error_catalogue import Seen
from libs.common.facts import NodeFact
from libs.common.life import gpu_life
from libs.common.model import Gpu, GpuId
from services.node_agent.core import devices, kept_devices
from services.node_agent.core import observations as o
from services.node_agent.core.apply import apply
from services.node_agent.core.devices import Devices, Trouble
from services.node_agent.core.state import State
from services.node_agent.directories import keeping_files
from services.node_agent.directories.protocol import Memory
from services.node_agent.drivers import Driver
from services.node_agent.drivers.absent import FILE, KnownDevices
from services.node_agent.drivers.readings import LOST
from services.node_agent.health.watch import DRIVER, SAME_AS

NO_DRIVER: Final = "no_driver"
# Errors in the commit of a registration; more follow in later commits.
FACTS_MAX: Final = 64

logger = logging.getLogger(__name__)


async def previous(memory: Memory) -> KnownDevices:
    """Return what the agent before this one kept.

    An unreadable file counts as none: the PCI bus still lists the devices.
    """
    data = await memory.kept(FILE)
    try:
        return msgspec.json.decode(data, type=KnownDevices) if data else KnownDevices()
    except msgspec.DecodeError as error:
        logger.warning(
            "%s cannot be read (%s): only the PCI bus shows which devices are lost", FILE, error
        )
        return KnownDevices()


async def keep(memory: Memory, driver: Driver, boot_id: str) -> None:
    """Keep the known devices for the next agent, before a commit names them."""
    data = msgspec.json.encode(KnownDevices(boot_id, tuple(driver.known)))
    if not driver.simulated and data != await memory.kept(FILE):
        await keeping_files.kept(memory, FILE, data)


async def look(driver: Driver, memory: Memory, known: Devices, boot_id: str) -> Sequence[Gpu]:
    """Return the devices of this machine, with those that the agent before this one knew.

    A device that was taken out is forgotten.
    """
    before = await previous(memory)
    driver.known, driver.hurry = before.devices, before.boot_id == boot_id
    inventory = await driver.inventory()
    gone = {device.uuid for device in before.devices} - {device.uuid for device in driver.known}
    kept_devices.restore(
        devices=known,
        boot_id=boot_id,
        gpus=shown(driver, inventory),
        data=await memory.kept(kept_devices.FILE),
        gone=gone,
    )
    return inventory


async def registration_facts(
    driver: Driver, inventory: Sequence[Gpu], state: State, memory: Memory, now_ns: int
) -> Sequence[NodeFact]:
    """Return the facts about devices for the commit of NodeRegistered.

    They are kept on disk before they are published, if it has space; else that is tried again.
    """
    for each in seen(driver, inventory, state):
        apply(state, each, now_ns)
    facts = devices.facts(state.devices, state.node_id, FACTS_MAX)
    if facts or state.devices.unsaved:
        data = kept_devices.encode(state.devices)
        state.devices.unsaved = not await keeping_files.kept(memory, kept_devices.FILE, data)
    return facts


def shown(driver: Driver, inventory: Sequence[Gpu]) -> list[Gpu]:
    """Return the devices that their driver shows."""
    return [gpu for gpu in inventory if gpu.uuid not in driver.absent]


def seen(driver: Driver, inventory: Sequence[Gpu], state: State) -> list[o.Observation]:
    """Return an observation for each absent device.

    An error that an earlier agent reported is repeated only for jobs on the device.
    """
    found: list[o.Observation] = []
    working = {
        uuid for attempt in state.attempts.values() for uuid in attempt.gpus if attempt.exit is None
    }
    for uuid, absent in driver.absent.items():
        device = absent.device
        found.append(
            o.DeviceTroubleChanged(
                uuid,
                LOST if absent.lost else NO_DRIVER,
                Trouble(gpu_life.OFFLINE, absent.why, source=DRIVER),
            )
        )
        if absent.lost and (
            uuid in working or not devices.needs_reboot_or_replacement(state.devices, uuid)
        ):
            name = SAME_AS.get((device.vendor, LOST), LOST)
            found.append(
                o.DeviceErrorSeen(
                    uuid,
                    Seen(
                        vendor=device.vendor,
                        model=device.model,
                        driver=device.driver_version,
                        error=name,
                        text=absent.why,
                    ),
                    DRIVER,
                )
            )
    return [*found, *_unknown_losses(driver, inventory, sorted(working))]


def _unknown_losses(
    driver: Driver, inventory: Sequence[Gpu], working: Sequence[GpuId]
) -> list[o.Observation]:
    """Return errors for jobs on devices that this machine no longer has, so that those devices
    count as lost.

    A machine that shows no device at all proves nothing.
    """
    known = [gpu.uuid for gpu in inventory]
    if driver.simulated or not shown(driver, inventory):
        return []
    why = "no driver of this machine shows it, and it is not known to have it"
    return [
        o.DeviceErrorSeen(uuid, Seen(vendor="", model="", driver="", error=LOST, text=why), DRIVER)
        for uuid in working
        if uuid not in known
    ]
