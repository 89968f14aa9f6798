"""Sample the devices: ask the driver for events and then for readings, at a set rate or when woken.

Only the last sample of each device is kept. Events are logged and passed on. A silent device costs
no more than the driver's deadline, and a late round is not made up for.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from libs.common.model import GpuId
from services.node_agent.drivers import Driver
from services.node_agent.drivers.readings import ANSWERS, LOST, WEDGED, Event, Sample

SERIOUS: Final = (WEDGED, LOST)

logger = logging.getLogger(__name__)


class Sampling:
    """The samples of one node; `latest` is empty until `run` has begun.

    `every_ms` 0: only when woken, as for simulated devices. `on_round` is called after each round;
    its samples are newer than its events.
    """

    def __init__(self, driver: Driver, every_ms: int) -> None:
        self.driver, self.every_s = driver, every_ms / 1_000
        self.latest: Mapping[GpuId, Sample] = {}
        self.on_round: Callable[[Sequence[Event], Mapping[GpuId, Sample]], None] = (
            lambda events, samples: None
        )
        self.wake = asyncio.Event()
        self.turn = asyncio.Lock()

    async def run(self) -> None:
        """Sample for ever."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            self.wake.clear()
            await self.look()
            due_s = max(due_s + self.every_s, loop.time())
            try:
                async with asyncio.timeout_at(due_s if self.every_s else None):
                    await self.wake.wait()
            except TimeoutError:
                continue

    async def now(self) -> Mapping[GpuId, Sample]:
        """Return the last samples; new ones if the devices are sampled on demand."""
        if not self.every_s:
            await self.look()
        return self.latest

    async def look(self) -> None:
        """Sample once; earlier events are reported when it returns."""
        async with self.turn:
            events = await self.driver.events()
            self.latest = await self.driver.sample()
            for event in events:
                _log(event)
            self.on_round(events, self.latest)


def _log(event: Event) -> None:
    level = (
        logging.ERROR
        if event.kind in SERIOUS
        else logging.INFO
        if event.kind == ANSWERS
        else logging.WARNING
    )
    logger.log(
        level,
        "GPU %s %s: %s %s",
        event.vendor,
        event.pci_bus or "(all)",
        event.kind,
        event.text or event.number,
    )
