"""The resident data of a simulated machine: the memory outlives the agent and ends with the power.

Twin of `services/node_agent/resident/`. A replica with a standby loses its engine now and then; the
report of its runner counts these deaths.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from libs.common.life import kept_life
from libs.common.messages import KeepOrder, StartOrder
from libs.common.model import AttemptRef, Gpu, NodeId
from libs.common.state.cluster import is_removed
from services.node_agent.core import keeping
from services.node_agent.core import state as s
from services.node_agent.core.actions import KeepData
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.observations import KeepDone, KeepHeld, KeepSeen, StandbySeen
from services.node_agent.directories.protocol import Launch, OnEvent
from services.node_agent.jobs.means import Means
from services.node_agent.resident.reports import held_order
from tests.sim.pools import SimPools

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

# A machine has 1 GiB of memory for each GPU: weights fill seven eighths of it, so that jobs need
# the room.
WEIGHTS_BYTES_PER_GPU: Final = 7 << 27
LOOK_S: Final = 0.5
TENANT: Final = "default"
DIES: Final = 0.02
LOST: Final = 0.05


def means_of(machine: Machine) -> Means:
    """Return what the attempts of a machine have besides their processes."""
    pools = SimPools(machine.brokers[-1])
    return Means(pools=pools, resident=SimResident(machine))  # type: ignore[arg-type]


class SimResident:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dice = random.Random(f"resident {machine.node_id} {machine.boot}")

    def isolation(self) -> dict[str, str]:
        return {}

    async def start(
        self,
        tell: OnEvent,
        keeps: Callable[[], Keeps],
        living: Collection[str],
        inventory: Sequence[Gpu],
    ) -> None:
        self.tell, self.keeps = tell, keeps
        held = [key.rpartition("/") for key in self.machine.resident]
        tell(KeepHeld(tuple(held_order(tier, TENANT, model) for model, _, tier in held)))

    async def close(self) -> None:
        """The memory stays."""

    async def carry_out(self, action: KeepData) -> None:
        order = action.order
        await asyncio.sleep(self.dice.uniform(0.01, 1.5))
        if action.remove:
            self.machine.resident.pop(keeping.key_of(order), None)
        elif order.tier == kept_life.HOST:
            self._host(order)
        elif order.tier == kept_life.ARTEFACT and self.dice.random() < 0.5:
            self._say(order, kept_life.READY, 0)
        self.tell(KeepDone(order.model, order.tier))

    def _host(self, order: KeepOrder) -> None:
        if not order.granted:
            self._say(order, kept_life.MEASURED, self._weights_bytes())
        elif self.dice.random() < LOST:
            self._say(order, kept_life.FAILED, 0)
        else:
            self.machine.resident[keeping.key_of(order)] = order.granted
            self._say(order, kept_life.READY, self._weights_bytes())

    def _weights_bytes(self) -> int:
        return len(self.machine.gpus) * WEIGHTS_BYTES_PER_GPU

    def _say(self, order: KeepOrder, state: str, size: int) -> None:
        seen = KeepSeen(
            model=order.model,
            tier=order.tier,
            request=order.request,
            number=order.number,
            state=state,
            size_bytes=size,
            restore_ms=self.dice.randint(1, 9_000),
        )
        self.tell(seen)

    async def prepare(
        self,
        launch: Launch,
        order: StartOrder,
        gpus: Sequence[Gpu],
        drivers: Mapping[str, str],
        wanted: Callable[[], bool],
    ) -> Launch:
        return launch

    async def let_go(self, key: str) -> str:
        return ""

    def device_bytes(self) -> dict[tuple[str, str], int]:
        return {}

    def processes(self) -> Collection[int]:
        return ()

    async def finished(self, ref: AttemptRef, healthy: bool, ready_ms: int) -> None:
        """A simulated replica compiles nothing."""

    async def watch(self, state: Callable[[], s.State]) -> None:
        deaths = self.machine.deaths
        while True:
            await asyncio.sleep(LOOK_S)
            for key, attempt in state().attempts.items():
                if attempt.standby is None or attempt.phase != s.LAUNCHED:
                    continue
                if self.dice.random() < DIES:
                    deaths[key] = deaths.get(key, 0) + 1
                if key in deaths:
                    self.tell(StandbySeen(key, deaths[key], 1, "signal 9"))


def unwanted(world: World) -> list[tuple[str, str]]:
    """Return the nodes and keys of resident data that is in memory and not wanted there.

    A node that lies may keep what it likes: it uses its own memory only. So may a node that was
    removed while it was silent: it gets no more orders.
    """
    cluster = world.reference
    return [
        (node_id, key)
        for node_id, machine in world.machines.items()
        if node_id not in world.lying and not is_removed(cluster, NodeId(node_id))
        for key in machine.resident
        if key not in cluster.kept
        or (entry := cluster.kept[key].entries.get(NodeId(node_id))) is None
        or entry.state == kept_life.EVICTED
    ]
