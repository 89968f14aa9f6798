"""Stops of attempts, each repeated until the supervisor has it.

The core orders each stop once. Tests: tests/integration/test_failed_closings.py.
"""

import asyncio
import contextlib
import logging
from typing import Final

from libs.common.errors import Refused, Unavailable
from services.node_agent.supervision.supervised_job import Key
from services.node_agent.supervision.supervisor_client import SupervisorClient

AGAIN_S: Final = 1.0

logger = logging.getLogger(__name__)


class Stops:
    """The stops of one agent's attempts. `latest` has those that are under way."""

    def __init__(self, supervisors: SupervisorClient) -> None:
        self.supervisors = supervisors
        self.latest: dict[Key, object] = {}

    async def stop(self, key: Key, signal: int, grace_ms: int) -> None:
        """Stop an attempt; harmless if it has ended.

        If its supervisor cannot be asked, ask again until the grace is over: then the core kills
        the attempt. A later stop replaces this one.
        """
        order = self.latest[key] = object()
        loop = asyncio.get_running_loop()
        left_s = grace_ms / 1000
        until_s, failures = loop.time() + left_s, 0
        try:
            while self.latest.get(key) is order and (not failures or left_s > 0):
                try:
                    with contextlib.suppress(Refused):
                        await self.supervisors.stop(key, signal, left_s)
                    return
                except Unavailable as error:
                    failures += 1
                    if failures == 1:
                        logger.warning("%s.%d cannot be stopped yet: %s", *key, error)
                await asyncio.sleep(AGAIN_S)
                left_s = until_s - loop.time()
        finally:
            if self.latest.get(key) is order:
                del self.latest[key]
