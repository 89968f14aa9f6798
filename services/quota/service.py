"""Quota as a process: the shared shell over its state; beside what it commits it only says how far it has folded."""

import asyncio

from libs.common import snapshot_store, subjects
from libs.common.bus import Bus
from libs.common.cancellation import before
from libs.common.clock import Clock
from libs.common.cluster import Cluster
from libs.common.log import Log
from libs.common.service import Shell, Silent
from libs.common.settings import Settings
from libs.common.snapshot_store import SnapshotStore
from libs.common.writer import Writer
from services.quota.decide import decide
from services.quota.state import State


class Quota:
    """One quota process."""

    def __init__(self, log: Log, bus: Bus, clock: Clock, settings: Settings, store: SnapshotStore) -> None:
        self.log = log
        self.bus = bus
        self.store = store
        self.state = State(Cluster())
        self.writer = Writer(log, clock, subjects.QUOTA, lambda: self.state.seq, settings.log_append_ms / 1_000)
        self.shell = Shell(log, self.writer, self.state, lambda _: decide(self.state), Silent())

    async def _on_position(self, subject: str, data: bytes) -> bytes:
        return b"%d" % self.state.seq

    async def _open(self) -> None:
        self.state = self.shell.state = State(await snapshot_store.begin(self.log, self.store))
        await self.shell.replay()
        await self.bus.subscribe(subjects.ask_quota("position"), self._on_position)

    async def run(self, stop: asyncio.Event) -> None:
        """Snapshot and tail, then serve until `stop`. Raises Stopped when that comes before the replay is over."""
        await before(stop, self._open())
        serving = asyncio.create_task(self.shell.serve(), name="shell")
        waiting = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            waiting.cancel()
            serving.result()
        serving.cancel()
