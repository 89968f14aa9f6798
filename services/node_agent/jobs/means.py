"""What an attempt is given beside its process, and gives back at its release: its place on shared
devices, its container.
"""

from collections.abc import Callable, Collection, Sequence

from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import Gpu, GpuId
from services.node_agent.core.observations import Adopted, Observation
from services.node_agent.core.state import key_of
from services.node_agent.drivers import DeviceNodes
from services.node_agent.jobs.protocol import Launch
from services.node_agent.runtimes.containers import GONE, Containers
from services.node_agent.sharing.shares import Shares


class Means:
    """The default has neither daemons nor containers (the simulation)."""

    def __init__(self, shares: Shares | None = None, containers: Containers | None = None) -> None:
        self.shares, self.containers = shares or Shares(), containers or Containers()

    async def adopt(self, adopted: Sequence[Adopted], tell: Callable[[Observation], None]) -> None:
        """What the agent before this one gave; what nobody accounts for is ended."""
        await self.shares.adopt(adopted, tell)
        self.containers.adopt([key_of(found.ref) for found in adopted])

    def isolation(self, inventory: Sequence[Gpu]) -> dict[str, str]:
        """As NodeRegistered says it."""
        return {**self.shares.isolation(inventory), **self.containers.isolation()}

    async def hold(
        self,
        launch: Launch,
        order: StartOrder,
        inventory: Sequence[Gpu],
        nodes: DeviceNodes,
        wanted: Callable[[], bool],
    ) -> Launch:
        """The launch with all that it needs, as long as it is `wanted`.

        Raises NoImage or Refused; then `give_up` is to follow.
        """
        made = await self.containers.hold(
            await self.shares.hold(launch, order, inventory), order, inventory, nodes, wanted
        )
        if not wanted():
            raise Refused("it was stopped before it began")
        return made

    async def let_go(self, key: str) -> tuple[dict[str, str], list[str]]:
        """What the receipt says, and what is left of the attempt's own. Harmless when repeated."""
        boxed = await self.containers.let_go(key)
        return await self.shares.let_go(key) | boxed, [
            f"container {said}" for said in boxed.values() if said != GONE
        ]

    async def left(self, uuids: Collection[GpuId]) -> dict[GpuId, str]:
        """What is left on these devices of what nobody uses."""
        return await self.shares.left(uuids)

    async def give_up(self, key: str) -> None:
        """Of an attempt that was not begun."""
        await self.let_go(key)
        self.forget(key)

    def forget(self, key: str) -> None:
        self.shares.forget(key)
        self.containers.forget(key)

    async def close(self) -> None:
        """All of it lives on."""
        await self.containers.close()
        await self.shares.close()
