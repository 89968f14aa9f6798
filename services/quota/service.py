"""Quota as a process: the shared shell over its state; it says nothing but what it commits."""

import asyncio
from collections.abc import Sequence

from libs.common import subjects
from libs.common.clock import Clock
from libs.common.cluster import Cluster
from libs.common.facts import AnyFact, Commit
from libs.common.log import Entry, Log
from libs.common.service import Shell
from libs.common.settings import Settings
from libs.common.writer import Writer
from services.quota.decide import decide
from services.quota.state import State


class Quota:
    """One quota process: core and (silent) voice of the shell in one."""

    def __init__(self, log: Log, clock: Clock, settings: Settings) -> None:
        self.state = State(Cluster())
        self.writer = Writer(log, clock, subjects.QUOTA, lambda: self.state.seq)
        self.shell = Shell(log, self.writer, self, self)

    @property
    def seq(self) -> int:
        return self.state.seq

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        self.state.apply_entry(seq, subject, commit)

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        self.state.apply_own(facts, at_ns)

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        self.state.skip_own(seq, subject, commit)

    def decide(self, now_ns: int) -> Sequence[AnyFact]:
        return decide(self.state)

    def folded(self, entry: Entry, commit: Commit) -> None:
        return

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        return

    async def run(self, stop: asyncio.Event) -> None:
        """Replay, then serve until `stop`."""
        await self.shell.replay()
        serving = asyncio.create_task(self.shell.serve(), name="shell")
        waiting = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            waiting.cancel()
            serving.result()
        serving.cancel()
