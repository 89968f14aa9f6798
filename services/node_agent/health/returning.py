"""A device that was quarantined because something was left on it comes back by itself, once the same look finds nothing.

Who had it open is counted from when its job began, as at the release; an agent that began meanwhile knows nothing of that job, and asks the
driver alone. Tests: tests/integration/test_release.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from libs.common.gpu_life import QUARANTINED
from libs.common.model import AttemptRef, GpuId, JobId
from services.node_agent import actions as a
from services.node_agent import observations as o
from services.node_agent.health import devices
from services.node_agent.holders import undivided
from services.node_agent.state import State

LOOK_S: Final = 1.0
UNKNOWN: Final = AttemptRef(JobId(""), 0)

Check = Callable[[a.CheckRelease], Awaitable[o.ReleaseChecked]]


async def watch(
    state: Callable[[], State], check: Check, last: Mapping[GpuId, a.CheckRelease], tell: Callable[[o.Observation], None]
) -> None:
    """`last` are the looks that found something."""
    while True:
        await asyncio.sleep(LOOK_S)
        for uuid in undivided(state(), devices.quarantined(state().devices)):
            if uuid not in (await check(last.get(uuid, a.CheckRelease(UNKNOWN, (uuid,), True)))).unclean:
                tell(o.DeviceAils(uuid, QUARANTINED, None))
