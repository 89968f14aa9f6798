"""Quota as a process: the shared shell over its state.

Besides committing facts, it gives gateways parts of the present minute's budgets (`rates.py`) and
answers how far it has folded.
"""

import asyncio

from libs.common import subjects
from libs.common.messages import rate_messages
from libs.common.process.cancellation import before
from libs.common.process.clock import Clock
from libs.common.process.pulse import Pulse
from libs.common.process.service import DECIDER, READER, Shell, Silent
from libs.common.process.serving_tasks import serve_together, until
from libs.common.settings.settings import Settings
from libs.common.state.accounts import limits_of
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.log import Log
from libs.common.transport.snapshot_store import SnapshotStore
from libs.common.transport.writer import Writer
from services.quota.decide import decide
from services.quota.rates import Rates
from services.quota.state import State


class Quota:
    """One quota process."""

    def __init__(
        self, log: Log, bus: Bus, clock: Clock, settings: Settings, store: SnapshotStore
    ) -> None:
        self.log = log
        self.bus = bus
        self.clock = clock
        self.store = store
        self.state = State(Cluster())
        self.writer = Writer(
            log,
            clock,
            subject=subjects.QUOTA,
            seen=lambda: self.state.seq,
            budget_s=settings.log_append_ms / 1_000,
        )
        self.rates = Rates(clock.wall_ns())
        pulse = Pulse(settings.alive_file, READER, DECIDER)
        self.shell = Shell(
            log,
            writer=self.writer,
            state=self.state,
            propose=lambda now_ns: decide(self.state, now_ns),
            voice=Silent(),
            pulse=pulse,
        )

    async def _on_position(self, subject: str, data: bytes) -> bytes:
        return b"%d" % self.state.seq

    async def _on_reserve(self, subject: str, data: bytes) -> bytes:
        ask = rate_messages.decode_ask(data)
        limits = limits_of(self.state.cluster, ask.tenant, ask.account)
        return rate_messages.encode(self.rates.reserve(limits, ask, self.clock.wall_ns()))

    async def _on_return(self, subject: str, data: bytes) -> None:
        self.rates.take_back(rate_messages.decode_return(data), self.clock.wall_ns())

    async def _open(self) -> None:
        self.state = self.shell.state = State(await snapshot_store.begin(self.log, self.store))
        await self.shell.replay()
        await self.bus.subscribe(subjects.ask_quota("position"), self._on_position)
        await self.bus.subscribe(subjects.ask_quota("reserve"), self._on_reserve)
        await self.bus.subscribe(subjects.ask_quota("return"), self._on_return)

    async def run(self, stop: asyncio.Event) -> None:
        """Restore from the snapshot and the log, then serve until `stop`.

        Raises Stopped if `stop` is set before the replay is over.
        """
        await before(stop, self._open())
        await serve_together(deciding=self.shell.serve(), stop=until(stop))
