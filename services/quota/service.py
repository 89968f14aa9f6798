"""Quota as a process: the shared shell over its state; it says nothing but what it commits."""

import asyncio

from libs.common import subjects
from libs.common.cancellation import before
from libs.common.clock import Clock
from libs.common.cluster import Cluster
from libs.common.log import Log
from libs.common.service import Shell, Silent
from libs.common.settings import Settings
from libs.common.writer import Writer
from services.quota.decide import decide
from services.quota.state import State


class Quota:
    """One quota process."""

    def __init__(self, log: Log, clock: Clock, settings: Settings) -> None:
        self.state = State(Cluster())
        self.writer = Writer(log, clock, subjects.QUOTA, lambda: self.state.seq)
        self.shell = Shell(log, self.writer, self.state, lambda _: decide(self.state), Silent())

    async def run(self, stop: asyncio.Event) -> None:
        """Replay, then serve until `stop`. Raises Stopped when that comes before the replay is over."""
        await before(stop, self.shell.replay())
        serving = asyncio.create_task(self.shell.serve(), name="shell")
        waiting = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            waiting.cancel()
            serving.result()
        serving.cancel()
