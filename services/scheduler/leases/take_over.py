"""Decides when a standby scheduler may begin a term.

Two schedulers that begin one after the other disturb each other: the second term fences the first,
whose process ends and starts again. So a scheduler asks whether another leads before it replays and
again after the replay. The log's fence (`transport/writer.py`) stays the guarantee; this file only
avoids needless terms. Tests: tests/sim/test_terms.py.
"""

import asyncio
import logging
from typing import Final

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.facts import AnyFact, ClusterConfigured, TermBegan, decode
from libs.common.process.clock import Clock
from libs.common.process.pulse import NO_PULSE, Pulse
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.timing import Timing
from libs.common.transport.bus import Bus
from libs.common.transport.log import Log
from services.scheduler.plugins.plugged import Plugged

ASK_S: Final = 1.0
# Between two questions while no scheduler listens at all.
PAUSE_S: Final = 0.1
MS: Final = 1_000_000

logger = logging.getLogger(__name__)


class TakeOver:
    """The wait of one scheduler for its turn."""

    def __init__(
        self, log: Log, bus: Bus, clock: Clock, term_ms: int, pulse: Pulse = NO_PULSE
    ) -> None:
        self.log = log
        self.bus = bus
        self.clock = clock
        self.term_ms = term_ms
        self.pulse = pulse
        self.awaited = 0

    async def stand_by(self, patient: bool = False) -> None:
        """Wait while another scheduler answers. Silence for one term ends the wait.

        Unless `patient`, a subject without listeners ends it at once.
        """
        deadline_ns = self.clock.boot_ns() + self.term_ms * MS
        while self.clock.boot_ns() < deadline_ns:
            asked_ns = self.clock.boot_ns()
            self.pulse.beat()
            if await self._is_answered():
                deadline_ns = self.clock.boot_ns() + self.term_ms * MS
                await asyncio.sleep(ASK_S)
            elif self.clock.boot_ns() - asked_ns < ASK_S * 1e9 / 2:
                if not patient:
                    return
                await asyncio.sleep(PAUSE_S)
        logger.info("no scheduler answers: this one begins a term")

    async def has_a_rival(self, cluster: Cluster) -> bool:
        """Return whether another scheduler leads, or has just begun to and may not answer yet.

        `cluster` is folded to the log's end.

        A term that began lately counts once: a clock that is ahead makes it look young for ever.
        """
        if await self._is_answered():
            return True
        if cluster.epoch == self.awaited or not await self._began_recently(cluster):
            return False
        self.awaited = cluster.epoch
        return True

    async def _is_answered(self) -> bool:
        try:
            await self.bus.request(subjects.ask_scheduler("alive"), b"", ASK_S)
        except Unavailable:
            return False
        return True

    async def _began_recently(self, cluster: Cluster) -> bool:
        """Return whether the last term is younger than a term's length, by the stamp of its first
        commit.
        """
        first = await self.log.get(cluster.epoch) if cluster.epoch else None
        return (
            first is not None
            and self.clock.wall_ns() - decode(first.data).at_ns < self.term_ms * MS
        )


def opening_facts(settings: Settings, plugins: Plugged, cluster: Cluster) -> list[AnyFact]:
    """Return the facts of a term's first commit, in which a new cluster is configured as well."""
    began = TermBegan(instance=settings.instance, orders=plugins.orders, scores=plugins.scores)
    if cluster.configured:
        return [began]
    timing = Timing(settings.heartbeat_ms, settings.lease_ms, settings.margin_ms, settings.term_ms)
    return [began, ClusterConfigured(cluster_id=settings.cluster_id, timing=timing)]
