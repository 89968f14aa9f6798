"""What each control of a device (`libs/common/devices/device_controls.py`) is for its driver, and
how it is carried out.

Raises nothing: what the driver answers is the outcome. The driver's own deadline is over it. Tests:
tests/unit/test_device_commands.py.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from libs.common.devices import device_controls as c
from libs.common.errors import MusterError
from libs.common.messages import ControlOrder
from libs.common.model import Gpu, GpuId
from services.node_agent.core.observations import DeviceControlled, DevicesListed, Observation
from services.node_agent.devices.instances import Instances
from services.node_agent.drivers import Driver
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Command, Done, Lacking

# Of a value as `device_controls.read` gives it. The reset is not here: it goes the way of all
# resets (`health/resetting.py`).
COMMANDS: Final[dict[str, Callable[[str], Command]]] = {
    c.POWER: lambda value: r.SetPowerCap(int(value or 0) * c.MW),
    c.CLOCKS: lambda value: r.LockClocks(*c.range_of(value)),
    c.PERSISTENCE: lambda value: r.SetPersistence(value == "on"),
    c.COMPUTE_MODE: lambda value: r.SetComputeMode(value or c.COMPUTE_MODES[0]),
    c.ECC: lambda value: r.SetEcc(value == "on" if value else None),
    c.MIG: lambda value: r.SetMigMode(value == "on"),
    c.COMPUTE_PARTITION: lambda value: r.SetPartition(compute=c.meant(c.COMPUTE_PARTITION, value)),
    c.MEMORY_PARTITION: lambda value: r.SetPartition(memory=c.meant(c.MEMORY_PARTITION, value)),
}
UNKNOWN: Final = "this node's agent does not know it: it is older than the gateway"


async def carry_out(driver: Driver, order: ControlOrder) -> ControlOrder:
    """The order with what became of it.

    Of a mode that counts after a reset the reset is done too, for nobody has the device.
    """
    try:
        command = COMMANDS[order.control](order.value)
    except (KeyError, ValueError):
        return replace(order, outcome=c.LACKING, detail=UNKNOWN)
    try:
        done = await driver.control(order.uuid, command)
        if (
            c.meant(order.control, order.value)
            and isinstance(done, Done)
            and done.note == r.AFTER_RESET
        ):
            done = await driver.control(order.uuid, r.Reset())
            if isinstance(done, Lacking):
                return replace(
                    order,
                    outcome=c.FAILED,
                    detail=f"{r.AFTER_RESET}, and it cannot be reset: {done.why}",
                )
    except MusterError as error:
        return replace(order, outcome=c.FAILED, detail=str(error))
    return replace(
        order, outcome=outcome_of(done), detail=done.why if isinstance(done, Lacking) else done.note
    )


class Controlling:
    """For one agent.

    One mode at a time: what devices there are is known when the last one was set.
    """

    def __init__(
        self, driver: Driver, instances: Instances, tell: Callable[[Observation], None]
    ) -> None:
        self.driver, self.instances, self.tell = driver, instances, tell
        self.turn = asyncio.Lock()

    async def control(self, order: ControlOrder) -> Sequence[Gpu]:
        """The node's devices where they may be others now.

        A card keeps no MIG instance of nobody's over its mode.
        """
        if not c.meant(order.control, order.value):
            self.tell(DeviceControlled(await carry_out(self.driver, order)))
            return ()
        async with self.turn:
            await self.instances.clear([order.uuid], self.tell)
            done, before = await carry_out(self.driver, order), list(self.instances.gpus())
            found = await self.driver.inventory()
            self.tell(DevicesListed(modes_of(self.driver, found), before != list(found)))
            self.tell(DeviceControlled(done))
            return found


def modes_of(driver: Driver, gpus: Iterable[Gpu]) -> dict[tuple[GpuId, str], str]:
    """The modes that devices are in, by the controls that set them."""
    found: dict[tuple[GpuId, str], str] = {}
    for uuid in (gpu.uuid for gpu in gpus):
        modes = driver.modes(uuid)
        mig = "" if modes.mig is None else c.ON_OFF[not modes.mig]
        named = {c.MIG: mig, c.COMPUTE_PARTITION: modes.compute, c.MEMORY_PARTITION: modes.memory}
        found |= {(uuid, control): mode for control, mode in named.items() if mode}
    return found


def outcome_of(done: Done | Lacking) -> str:
    if isinstance(done, Done):
        return c.DONE
    return c.DENIED if done.denied else c.LACKING
