"""A gateway that follows the log, as the real one does: it folds every commit, and stores a
snapshot after every few of them, from which the next gateways, schedulers and quotas start.

The other plans have a gateway that only records (`client.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.snapshot_store import SnapshotStore
from services.api_gateway.gateway import Gateway
from services.api_gateway.views.snapshots import Snapshots
from tests.sim.client import Client
from tests.sim.settings import settings_of
from tests.sim.workload import Act

if TYPE_CHECKING:
    from tests.sim.slot import Slot


class OftenStored(Snapshots):
    """Snapshots that are due after every few commits."""

    def __init__(self, store: SnapshotStore, every: int) -> None:
        super().__init__(store, 0)
        self.every = every

    def due(self, seq: int) -> bool:
        return seq >= self.stored_seq + self.every


class Follower(Client):
    """The users of a gateway that follows the log."""

    def __init__(self, gateway: Gateway, acts: list[Act], acked: set[int]) -> None:
        self.gateway = gateway
        self.writer = gateway.writer
        self.acts = [act for act in acts if act.number not in acked]
        self.acked = acked

    async def run(self) -> None:
        """Replay from the newest snapshot, then follow the log and record every act at its time."""
        await self.gateway.replay()
        self.gateway.caught_up = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.writer.run())
            tasks.create_task(self.gateway._read())
            await self.act(tasks)


def follower_of(slot: Slot) -> Follower:
    """Return the gateway of a process."""
    world = slot.world
    gateway = Gateway(
        log=slot.open_log(),
        bus=slot.open_bus(),
        clock=slot.clock,
        settings=settings_of(world.plan, f"g{slot.starts}"),
        outputs=MemoryOutputs(),
        store=world.snapshots,
    )
    gateway.snapshots = OftenStored(world.snapshots, world.plan.snapshot_every)
    return Follower(gateway, world.acts, world.acts_acked)
