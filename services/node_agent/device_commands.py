"""What each control of a device (`libs/common/device_controls.py`) is for its driver, and how it is carried out.

Raises nothing: what the driver answers is the outcome. The driver's own deadline is over it. Tests: tests/unit/test_device_commands.py.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from libs.common import device_controls as c
from libs.common.errors import MusterError
from libs.common.messages import ControlOrder
from services.node_agent.drivers import Driver
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Command, Done, Lacking

# Of a value as `device_controls.read` gives it. The reset is not here: it goes the way of all resets (`health/resetting.py`).
COMMANDS: Final[dict[str, Callable[[str], Command]]] = {
    c.POWER: lambda value: r.SetPowerCap(int(value or 0) * c.MW),
    c.CLOCKS: lambda value: r.LockClocks(*c.range_of(value)),
    c.PERSISTENCE: lambda value: r.SetPersistence(value == "on"),
    c.COMPUTE_MODE: lambda value: r.SetComputeMode(value or c.COMPUTE_MODES[0]),
    c.ECC: lambda value: r.SetEcc(value == "on" if value else None),
}
UNKNOWN: Final = "this node's agent does not know it: it is older than the gateway"


async def carry_out(driver: Driver, order: ControlOrder) -> ControlOrder:
    """The order with what became of it."""
    command = COMMANDS.get(order.control)
    if command is None:
        return replace(order, outcome=c.LACKING, detail=UNKNOWN)
    try:
        done = await driver.control(order.uuid, command(order.value))
    except MusterError as error:
        return replace(order, outcome=c.FAILED, detail=str(error))
    return replace(order, outcome=outcome_of(done), detail=done.why if isinstance(done, Lacking) else done.note)


def outcome_of(done: Done | Lacking) -> str:
    if isinstance(done, Done):
        return c.DONE
    return c.DENIED if done.denied else c.LACKING
