"""A writer that must not exist: a watchdog that reads heartbeats and records NodeLost beside the
scheduler.

Only a planted bug uses it.
"""

import asyncio
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common import fold, reading, subjects
from libs.common.messages import Heartbeat
from libs.common.process.clock import Clock
from libs.common.state.cluster import Cluster
from libs.common.transport.bus import Bus
from libs.common.transport.log import Log
from libs.common.transport.writer import Writer
from services.scheduler.leases.leases import Leases

SUBJECT: Final = "facts.watchdog"
LOOK_S: Final = 0.1


class Watchdog:
    """A watchdog with the scheduler's own rule, a lease and a margin of silence, but another
    subject.
    """

    def __init__(self, log: Log, bus: Bus, clock: Clock) -> None:
        self.log = log
        self.bus = bus
        self.clock = clock
        self.cluster = Cluster()
        self.leases = Leases()
        self.writer = Writer(log, clock, SUBJECT, lambda: self.cluster.seq)

    async def run(self) -> None:
        await self.writer.attach()
        await self.bus.subscribe(f"{subjects.HEARTBEAT}.*", self._on_heartbeat)
        self.leases.begin(self.cluster, self.clock.boot_ns())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            tasks.create_task(self._look())

    async def _read(self) -> None:
        async for batch in self.log.read(0):
            for entry in batch:
                commit = reading.read(self.cluster.writers, entry.subject, entry.data)
                fold.apply_entry(self.cluster, entry.seq, entry.subject, commit)

    async def _look(self) -> None:
        while True:
            now_ns = self.clock.boot_ns()
            for node_id, incarnation in self.leases.silent(self.cluster, self.cluster, now_ns):
                await self.writer.commit([f.NodeLost(node_id=node_id, incarnation=incarnation)])
            await asyncio.sleep(LOOK_S)

    async def _on_heartbeat(self, subject: str, data: bytes) -> bytes | None:
        beat = msgspec.msgpack.decode(data, type=Heartbeat)
        self.leases.hear(self.cluster, beat.node_id, self.clock.boot_ns(), True)
        self.leases.grant(self.cluster, beat.node_id, self.clock.boot_ns())
        return None
