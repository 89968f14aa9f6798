"""The driver command of each device control (`libs/common/devices/device_controls.py`).

Raises nothing: the driver's answer is the outcome. The driver's own deadline applies. Tests:
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

# The command for a value as `device_controls.read` returns it. Resets are not here: they all go
# through `health/resetting.py`.
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
UNKNOWN: Final = (
    "this node's agent does not know this control: it is older than the gateway; update the agent"
)


async def carry_out(driver: Driver, order: ControlOrder) -> ControlOrder:
    """Return the order with its outcome.

    A mode that needs a reset is reset too, because the device is free.
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
    """The settings of one agent's devices.

    One mode changes at a time: each change may change the list of devices.
    """

    def __init__(
        self, driver: Driver, instances: Instances, tell: Callable[[Observation], None]
    ) -> None:
        self.driver, self.instances, self.tell = driver, instances, tell
        self.turn = asyncio.Lock()

    async def control(self, order: ControlOrder) -> Sequence[Gpu]:
        """Change a setting and report the outcome; return the devices, empty if they cannot have
        changed.

        MIG instances that no attempt owns are removed before a change of mode.
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
    """Return the current modes of the devices, by control."""
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
