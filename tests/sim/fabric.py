"""The network between simulated machines for one run: probes measure it, operators ask for tests.

Own dice, so that runs without tests stay as they were. Some machines are slow, so that the
scheduler suspects and drains them; an operator returns them a while later.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Final

from libs.common import facts as f
from libs.common.messages import ProbeOrder
from libs.common.model import NodeId
from services.node_agent.fabric.probes.allowance import Allowance
from services.node_agent.fabric.probes.exchange import Received
from services.node_agent.fabric.probes.prober import MEET_S, USED_UP, Measured
from tests.sim.bus import Network

if TYPE_CHECKING:
    from tests.sim.world import World

PART_OF_SEEDS: Final = 0.4
TESTS_MAX: Final = 3
# Tests begin before jobs do and while they run; one begins after them.
WITHIN_S: Final = 16.0
SLOW_PART: Final = 0.3
FAST: Final = 2_500_000
PROBE_S: Final = 0.2
RETURN_AFTER_S: Final = 3.0
LOOK_EVERY_S: Final = 0.5
# An agent's time for probes is used up after a few of them.
SAVED_NS: Final = 1_000_000_000
SUBJECT: Final = "probe"
AFTER_JOBS: Final = "test-after-jobs"


class SimProber:
    """The twin of `TcpProber`: both ends of a pair must meet."""

    engine = "sim"

    def __init__(self, network: Network, host: str, capacities: dict[str, int]) -> None:
        self.network = network
        self.address = f"{host}:1"
        self.host = host
        self.capacities = capacities
        self.allowance = Allowance(_now_ns(), SAVED_NS)

    async def probe(self, order: ProbeOrder) -> Measured:
        begun_ns = _now_ns()
        if not self.allowance.may_begin(begun_ns):
            return Measured(error=USED_UP, refused=True)
        try:
            return await self._measured(order)
        finally:
            self.allowance.spend(_now_ns() - begun_ns)

    async def _measured(self, order: ProbeOrder) -> Measured:
        meeting = (order.test, order.number, *sorted((self.host, order.peer)))
        there = self.network.probing.setdefault(meeting, {})
        there[self.host] = None
        await asyncio.sleep(PROBE_S)
        if order.peer not in there or not self.network.passes(self.host, order.peer, SUBJECT):
            await asyncio.sleep(MEET_S)
            return Measured(error=f"{order.peer} stalled")
        rate = min(self.capacities[self.host], self.capacities[order.peer])
        return Measured(Received(rate, rate // 2, 50_000, 1_000))

    async def close(self) -> None:
        return


def _now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def capacities_of(seed: int, count: int) -> dict[str, int]:
    """Return what the machines of this seed can do."""
    dice = random.Random(f"fabric {seed}")
    return {f"n{i}": FAST // 2 if dice.random() < SLOW_PART else FAST for i in range(count)}


def begin(world: "World") -> None:
    dice = random.Random(f"tests {world.plan.seed}")
    if dice.random() >= PART_OF_SEEDS:
        return
    for number in range(dice.randint(1, TESTS_MAX)):
        world.loop.call_at(dice.uniform(0.5, WITHIN_S), ask, world, f"test-{number}")
    world.network.tests_awaited.append(AFTER_JOBS)
    world.loop.call_later(LOOK_EVERY_S, ask_when_idle, world)
    world.loop.call_later(LOOK_EVERY_S, give_back, world, {})


def ask(world: "World", test: str) -> None:
    """Repeat a request until the log has it."""
    fabric = world.reference.fabric
    if test in fabric.requests or test in fabric.tests or test in fabric.ended:
        return
    _say(world, f.FabricTestRequested(test=test))
    world.loop.call_later(LOOK_EVERY_S, ask, world, test)


def ask_when_idle(world: "World") -> None:
    """Ask for a test once all jobs have ended, because busy nodes are not measured."""
    if world.all_ended():
        ask(world, AFTER_JOBS)
    else:
        world.loop.call_later(LOOK_EVERY_S, ask_when_idle, world)


def give_back(world: "World", seen: dict[tuple[NodeId, str], float]) -> None:
    """Return nodes that the scheduler drained a while ago, for as long as the run lasts."""
    for node in world.reference.nodes.values():
        if node.is_drained:
            since_s = seen.setdefault((node.node_id, node.drained_by), world.loop.now)
            if world.loop.now - since_s > RETURN_AFTER_S:
                _say(world, f.NodeDrainCleared(node_id=node.node_id, test=node.drained_by))
    world.loop.call_later(LOOK_EVERY_S, give_back, world, seen)


def _say(world: "World", fact: f.FabricTestRequested | f.NodeDrainCleared) -> None:
    gateway = world.slots["gateway"]
    if gateway.process.alive and gateway.service is not None:
        gateway.process.deliver(gateway.service.say, fact)


def is_at_rest(world: "World") -> bool:
    """Return whether no test waits or runs, the awaited ones have ended, and no node is drained."""
    fabric = world.reference.fabric
    drained = any(node.is_drained for node in world.reference.nodes.values())
    missing = any(test not in fabric.ended for test in world.network.tests_awaited)
    return not fabric.requests and not fabric.tests and not drained and not missing
