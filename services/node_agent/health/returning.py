"""The return of quarantined devices: repeat the release check until it finds nothing.

Holders count from the start of the job that left something, as at its release and also under the
next agent; from the boot on if that start is unknown. The least memory that each device was seen to
use is kept for the next agent of the same boot. Tests: tests/integration/test_release.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from libs.common.devices.error_catalogue import REBOOT_NODE
from libs.common.life.gpu_life import OFFLINE, QUARANTINED
from libs.common.model import GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import devices
from services.node_agent.core import observations as o
from services.node_agent.core.devices import Trouble
from services.node_agent.core.state import State
from services.node_agent.devices.attempts import can_be_checked, undivided
from services.node_agent.directories import keeping_files
from services.node_agent.directories.protocol import Memory
from services.node_agent.drivers import Driver
from services.node_agent.health.resetting import BurnIn

LOOK_S: Final = 1.0
BURN_IN: Final = "burn_in"
BURN_IN_FAILED: Final = "burn_in_failed"
# The file in the state directory.
IDLE_FILE: Final = "devices-idle.json"

Check = Callable[[a.CheckRelease], Awaitable[o.ReleaseChecked]]


class Idle(msgspec.Struct, frozen=True):
    """The least used memory since the boot, by PCI address."""

    boot_id: str
    least_bytes: dict[str, int]


async def watch(
    state: Callable[[], State],
    check: Check,
    burn_in: BurnIn,
    tell: Callable[[o.Observation], None],
    memory: Memory,
    driver: Driver,
) -> None:
    """Check the quarantined devices every LOOK_S, for ever, and report those that are clean."""
    kept: dict[str, int] = {}
    while True:
        if driver.baseline != kept:
            kept = dict(driver.baseline)
            data = msgspec.json.encode(Idle(state().devices.boot_id, kept))
            await keeping_files.kept(memory, IDLE_FILE, data)
        await asyncio.sleep(LOOK_S)
        for uuid in can_be_checked(state(), devices.quarantined(state().devices)):
            if uuid in state().devices.resetting:
                continue
            checked = await check(_look(uuid, state().devices.left))
            if uuid in checked.unclean:
                continue
            failed = await burn_in(uuid) if undivided(state(), [uuid]) else ""
            if failed:
                tell(
                    o.DeviceTroubleChanged(
                        uuid,
                        BURN_IN_FAILED,
                        Trouble(OFFLINE, f"it was tried, and {failed}", REBOOT_NODE, BURN_IN),
                    )
                )
            tell(
                o.DeviceTroubleChanged(
                    uuid, QUARANTINED, None, checked.checks if not failed else {}
                )
            )


def _look(uuid: GpuId, left: Mapping[GpuId, devices.Leftover]) -> a.CheckRelease:
    found = left.get(uuid, devices.LEFT_BY_UNKNOWN)
    return a.CheckRelease(found.ref, (uuid,), found.processes_gone, began_ns=found.began_ns)


async def idle(memory: Memory, boot_id: str) -> dict[str, int]:
    """Return what the previous agent of this boot kept."""
    data = await memory.kept(IDLE_FILE)
    before = msgspec.json.decode(data, type=Idle) if data else Idle(boot_id, {})
    return before.least_bytes if before.boot_id == boot_id else {}
