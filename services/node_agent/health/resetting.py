"""The reset of a free device: save evidence, because a reset clears it; reset; restore settings;
check.

The device is well if its driver accepted the reset, it answers, and nothing is left on it. If the
disk has no space for the evidence, it goes into the agent's log: a job may have filled the disk,
and the device must not need a restart of the machine for that. Raises nothing: a failure is part of
the observation. Tests: tests/unit/test_device_reset.py.
"""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.devices.device_controls import FAILED
from libs.common.devices.error_catalogue import NO_ACTION
from libs.common.errors import MusterError, Refused
from libs.common.model import GpuId
from services.node_agent.core.actions import ResetDevice
from services.node_agent.core.observations import DeviceReset
from services.node_agent.devices.device_commands import carry_out, outcome_of
from services.node_agent.drivers import Driver
from services.node_agent.drivers.readings import Lacking, Reset, Sample

# Stores (name, content) on this machine.
Keep = Callable[[str, bytes], Awaitable[None]]
# Returns why a device failed the burn-in; empty if it passed.
BurnIn = Callable[[GpuId], Awaitable[str]]
FREE: Final = "free"
LOGGED: Final = "in the agent's log, because it could not be saved: "

logger = logging.getLogger(__name__)


async def untried(uuid: GpuId) -> str:
    return ""


async def reset(
    driver: Driver, keep: Keep, action: ResetDevice, burn_in: BurnIn = untried
) -> DeviceReset:
    """Reset a device and return the result."""
    uuid = action.uuid
    try:
        before = (await driver.sample()).get(uuid)
        evidence = {
            "uuid": uuid,
            "reason": action.reason,
            "at_ns": time.time_ns(),
            "sample": msgspec.to_builtins(before),
        }
        where = await _kept(keep, f"evidence-{uuid}-{evidence['at_ns']}.json", evidence)
        if (refused := await _refused(driver, uuid)) is not None:
            return refused
        put_back = tuple([await carry_out(driver, order) for order in action.controls])
        held = await driver.unclean([uuid])
        found = _found(uuid, held, (await driver.sample()).get(uuid))
        failed = "" if found.problem else await burn_in(uuid)
        found = (
            DeviceReset(uuid, f"after its reset the burn-in failed: {failed}") if failed else found
        )
        checks = {**found.checks, **where} if not found.problem else found.checks
        return replace(found, checks=checks, controls=put_back)
    except (MusterError, OSError) as error:
        return DeviceReset(uuid, str(error))


async def _kept(keep: Keep, name: str, evidence: Mapping[str, object]) -> dict[str, str]:
    """Save the evidence; return an entry for the checks if only the agent's log has it."""
    try:
        await keep(name, json.dumps(evidence, indent=1).encode())
    except OSError as error:
        logger.error("%s cannot be saved (%s); its content: %s", name, error, json.dumps(evidence))
        return {"evidence": f"{LOGGED}{error}"}
    return {}


async def _refused(driver: Driver, uuid: GpuId) -> DeviceReset | None:
    """Begin the reset; return why the driver did not begin, None if it did.

    Raises Unavailable if the driver does not answer.
    """
    try:
        done = await driver.control(uuid, Reset())
    except Refused as error:
        return DeviceReset(uuid, str(error), refused=FAILED)
    if isinstance(done, Lacking):
        return DeviceReset(uuid, f"it cannot be reset: {done.why}", refused=outcome_of(done))
    return None


def _found(uuid: GpuId, held: Mapping[GpuId, str], sample: Sample | None) -> DeviceReset:
    """Return the result of the check after a reset."""
    if sample is None or sample.stale:
        return DeviceReset(uuid, "it does not answer after its reset")
    if sample.remap_pending == 1 or (
        isinstance(sample.recovery_action, int) and sample.recovery_action != NO_ACTION
    ):
        return DeviceReset(uuid, "after its reset its driver still asks for one")
    if uuid in held:
        return DeviceReset(uuid, f"after its reset {held[uuid]}")
    return DeviceReset(uuid, "", {"reset": "done", "driver": "answers", "memory": FREE})
