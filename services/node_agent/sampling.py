"""Asks this node's driver how its devices are, at a set rate, and what happened to them; events are logged as they come.

It keeps nothing but the last sample of each device. A device that does not answer is not waited for beyond its driver's own deadline, and a
round that took too long is not made up for.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from libs.common.model import GpuId
from services.node_agent.drivers import Driver
from services.node_agent.drivers.readings import ANSWERS, LOST, WEDGED, Event, Sample

SERIOUS: Final = (WEDGED, LOST)

logger = logging.getLogger(__name__)


class Sampling:
    """`latest` is empty until `run` has begun."""

    def __init__(self, driver: Driver, every_ms: int) -> None:
        self.driver, self.every_s = driver, every_ms / 1_000
        self.latest: Mapping[GpuId, Sample] = {}

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            self.latest = await self.driver.sample()
            for event in await self.driver.events():
                _log(event)
            due_s = max(due_s + self.every_s, loop.time())
            await asyncio.sleep(due_s - loop.time())


def _log(event: Event) -> None:
    level = logging.ERROR if event.kind in SERIOUS else logging.INFO if event.kind == ANSWERS else logging.WARNING
    logger.log(level, "GPU %s %s: %s %s", event.vendor, event.pci_bus or "(all)", event.kind, event.text or event.number)
