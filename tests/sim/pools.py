"""Memory pools in one run: jobs that ask for them, and the agent's side of the simulated broker.

Which jobs have pools is a pure function of the seed with dice of its own, so that the other choices
of a run stay as they were.
"""

import random
from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.means import ENFORCED
from libs.common.messages import StartOrder
from libs.common.messages.memory_messages import MemoryReport
from libs.common.model import POOLS, WHOLE_GPU, Gpu, JobSpec
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Launch
from services.node_agent.memory import grants as g
from services.node_agent.memory.pools import RETURNED
from tests.sim.broker import SimBroker
from tests.sim.orders import TimedFacts

PART_OF_SEEDS: Final = 0.6
PART_OF_JOBS: Final = 0.5
GIB: Final = 1 << 30


def with_pools(seed: int, acts: TimedFacts) -> TimedFacts:
    """Return the same acts; in most seeds some jobs ask for memory pools."""
    dice = random.Random(f"pools {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return acts
    return [
        (
            at_s,
            tuple(
                replace(fact, spec=_pooled(dice, fact.spec))
                if isinstance(fact, f.JobSubmitted)
                else fact
                for fact in facts
            ),
        )
        for at_s, facts in acts
    ]


def _pooled(dice: random.Random, spec: JobSpec) -> JobSpec:
    if dice.random() >= PART_OF_JOBS or spec.mig_profile:
        return spec
    whole = 80 * GIB * spec.gpu_share // WHOLE_GPU
    part = spec.gpu_memory_bytes or whole
    words: dict[str, Any] = {"pool_bytes": part * dice.choice((25, 50, 100)) // 100}
    if dice.random() < 0.3:
        words["host_pool_bytes"] = dice.choice((64, 256)) << 20
    return replace(spec, **words)


class SimPools:
    """The agent's side of the broker: see `services.node_agent.memory.pools.Pools`."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker

    async def listen(self, bus: object, node_id: str) -> None:
        """The simulated gateway does not ask."""

    def adopt(self, keys: Collection[str], inventory: Sequence[Gpu]) -> None:
        self.broker.agent_came()
        for key in [each for each in self.broker.books.attempts if each not in keys]:
            self.broker.released(key)

    def isolation(self) -> dict[str, str]:
        return {POOLS: ENFORCED}

    async def hold(self, launch: Launch, order: StartOrder, inventory: Sequence[Gpu]) -> Launch:
        if order.spec.pools_on_node_bytes:
            held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
            size = order.spec.pool_bytes
            limits = {self.broker.numbers.number_of(gpu): size for gpu in held} if size else {}
            if order.spec.host_pool_bytes:
                limits[g.HOST] = order.spec.host_pool_bytes
            self.broker.admit(key_of(launch.ref), limits)
        return launch

    async def let_go(self, key: str) -> dict[str, str]:
        if key not in self.broker.books.attempts:
            return {}
        self.broker.released(key)
        return {POOLS: RETURNED}

    def forget(self, key: str) -> None:
        """Released attempts are in no book."""

    def report(self) -> MemoryReport:
        return MemoryReport()

    async def close(self) -> None:
        """The broker lives on."""
