"""The simulated gateway: it records what the users do, in time, and repeats what was not
acknowledged when it died.

Each start takes a fresh instance id, as a real gateway does; a repeated JobSubmitted of the same
job changes nothing.
"""

import asyncio

from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.process.clock import Clock
from libs.common.transport.log import Log
from libs.common.transport.writer import Writer
from tests.sim.workload import Act


class Client:
    """`acked` outlives the process: the users know what was promised to them."""

    def __init__(
        self, log: Log, clock: Clock, instance: str, acts: list[Act], acked: set[int]
    ) -> None:
        self.writer = Writer(log, clock, subjects.gateway(instance), lambda: 0)
        self.acts = [act for act in acts if act.number not in acked]
        self.acked = acked

    async def run(self) -> None:
        """Record every act at its time, without waiting for the answer before the next act."""
        await self.writer.attach()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.writer.run())
            await self.act(tasks)

    async def act(self, tasks: asyncio.TaskGroup) -> None:
        """Begin every act at its time."""
        loop = asyncio.get_running_loop()
        for act in self.acts:
            await asyncio.sleep(max(0.0, act.at_s - loop.time()))
            tasks.create_task(self._record(act))

    def say(self, fact: AnyFact) -> None:
        """Record one fact now, once, without waiting for the answer."""
        self.writer.put((fact,))

    async def _record(self, act: Act) -> None:
        await self.writer.put(act.facts)
        self.acked.add(act.number)
