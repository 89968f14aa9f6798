"""Sample the devices of jobs, for what each job uses of them.

The core adds the readings up (`core/device_use.py`). Simulated devices are sampled on demand, so
this watch asks for a sample more often while a job is young: a short job has some too. The sums are
kept in a file now and then, so that the next agent goes on with them. Tests:
tests/integration/test_use_watch.py.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from libs.common.model import GpuId
from services.node_agent.core.device_use import Reading, Use
from services.node_agent.core.observations import UseSampled
from services.node_agent.core.state import Attempt, State
from services.node_agent.core.use_round import is_sampled
from services.node_agent.devices.attempts import at_work
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories.protocol import Memory, OnEvent
from services.node_agent.drivers.readings import Reading as Value
from services.node_agent.drivers.readings import Sample

LOOK_S: Final = 1.0
# Jobs that are older than the first are sampled every this many looks.
YOUNG_LOOKS: Final = 10
EVERY_LOOKS: Final = 5
# At most so many attempts are young at one time; the looks of others are not counted.
YOUNG_MAX: Final = 1_000
# The sums are kept every this many looks.
KEEP_LOOKS: Final = 15
FILE: Final = "device-use"

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[str, Use])

logger = logging.getLogger(__name__)


async def watch(
    state: Callable[[], State], sampling: Sampling, tell: OnEvent, memory: Memory
) -> None:
    """Sample the devices of running jobs, for ever."""
    looks, young = 0, dict[str, int]()
    tell(UseSampled({}, kept=restored(await memory.kept(FILE))))
    while True:
        await asyncio.sleep(LOOK_S)
        running = {key: one for key, one in state().attempts.items() if is_sampled(one)}
        looks, young = looks + 1, _counted(young, running)
        if running and (looks % EVERY_LOOKS == 0 or _has_young(young)):
            tell(UseSampled(readings(state(), await sampling.now())))
        if running and looks % KEEP_LOOKS == 0:
            await _keep(memory, {key: one.use for key, one in running.items()})


def restored(data: bytes) -> dict[str, Use]:
    """Return what an earlier agent kept; nothing if the file is missing or damaged."""
    try:
        return _decoder.decode(data) if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("the use of devices that was kept cannot be read: %s", error)
        return {}


async def _keep(memory: Memory, uses: Mapping[str, Use]) -> None:
    try:
        await memory.keep(FILE, _encode(uses))
    except OSError as error:
        logger.warning("the use of devices could not be kept: %s", error)


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
