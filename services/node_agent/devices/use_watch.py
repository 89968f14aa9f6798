"""Sample the devices of jobs, for what each job uses of them.

The core adds the readings up (`core/device_use.py`). Simulated devices are sampled on demand, so
this watch asks for a sample more often while a job is young: a short job has some too.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from libs.common.model import GpuId
from services.node_agent.core.device_use import Reading
from services.node_agent.core.observations import UseSampled
from services.node_agent.core.state import Attempt, State
from services.node_agent.core.use_round import is_sampled
from services.node_agent.devices.attempts import at_work
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories.protocol import OnEvent
from services.node_agent.drivers.readings import Reading as Value
from services.node_agent.drivers.readings import Sample

LOOK_S: Final = 1.0
# Jobs that are older than the first are sampled every this many looks.
YOUNG_LOOKS: Final = 10
EVERY_LOOKS: Final = 5
# At most so many attempts are young at one time; the looks of others are not counted.
YOUNG_MAX: Final = 1_000


async def watch(state: Callable[[], State], sampling: Sampling, tell: OnEvent) -> None:
    """Sample the devices of running jobs, for ever."""
    looks, young = 0, dict[str, int]()
    while True:
        await asyncio.sleep(LOOK_S)
        running = {key: one for key, one in state().attempts.items() if is_sampled(one)}
        looks, young = looks + 1, _counted(young, running)
        if running and (looks % EVERY_LOOKS == 0 or _has_young(young)):
            tell(UseSampled(readings(state(), await sampling.now())))


def _counted(before: Mapping[str, int], running: Mapping[str, Attempt]) -> dict[str, int]:
    """Return for how many looks each running attempt has been there, up to YOUNG_LOOKS."""
    keys = list(running)[-YOUNG_MAX:]
    return {key: min(before.get(key, 0) + 1, YOUNG_LOOKS) for key in keys}


def _has_young(young: Mapping[str, int]) -> bool:
    return any(count < YOUNG_LOOKS for count in young.values())


def readings(state: State, samples: Mapping[GpuId, Sample]) -> dict[GpuId, Reading]:
    """Return the readings of devices on which attempts work; a stale sample is none."""
    working = at_work(state)
    return {
        uuid: Reading(
            busy_percent=_known(sample.busy_percent),
            memory_used_bytes=_known(sample.memory_used_bytes),
            memory_bytes=_known(sample.memory_total_bytes),
            power_mw=_known(sample.power_mw),
            energy_mj=_known(sample.energy_mj),
            jobs=len(working[uuid]),
            simulated=sample.simulated,
        )
        for uuid, sample in samples.items()
        if uuid in working and not sample.stale
    }


def _known(value: Value) -> int | None:
    return value if isinstance(value, int) else None
