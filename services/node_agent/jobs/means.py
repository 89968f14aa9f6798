"""The means of an attempt besides its process: a place on shared devices, memory pools, pulled
models, a door for tracers, a container, and its part of resident data. The attempt has them until
its release.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from libs.common.devices.means import ENFORCED
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import SHORT_ARRAYS, Gpu, GpuId
from libs.common.transport.bus import Bus
from services.node_agent.core.observations import Adopted, Observation
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Launch
from services.node_agent.directories.residence import NoResident, Residence
from services.node_agent.drivers import DeviceNodes
from services.node_agent.jobs.attempt_spans import AttemptSpans
from services.node_agent.memory.pools import RETURNED, Pools
from services.node_agent.pulled.pulled import Pulled
from services.node_agent.runtimes.containers import GONE, Containers
from services.node_agent.runtimes.images import Credentials
from services.node_agent.sharing.shares import Shares
from services.node_agent.tracing.tracing import Tracing
from services.node_agent.uploads.fetching import Uploads


class Means:
    """Shared devices, memory pools, containers and resident data of one agent.

    Without arguments there are none (the simulation). `uploads` fetches what jobs bring along from
    other nodes too; None: from gateways only. `spans` are those of the attempts.
    """

    uploads: Uploads | None = None

    def __init__(
        self,
        shares: Shares | None = None,
        containers: Containers | None = None,
        pools: Pools | None = None,
        resident: Residence | None = None,
        pulled: Pulled | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.shares, self.containers = shares or Shares(), containers or Containers()
        self.pools = pools or Pools()
        self.resident: Residence = resident or NoResident()
        self.pulled = pulled
        self.spans = AttemptSpans()
        self.tracing = tracing or Tracing()

    async def listen(self, bus: Bus, node_id: str) -> None:
        """Answer gateways that ask for pools, pulls of images, and pulled models."""
        await self.pools.listen(bus, node_id)
        await self.containers.images.listen(bus, node_id)
        await self.tracing.listen(bus, node_id)
        if self.pulled is not None:
            await self.pulled.listen(bus, node_id)

    async def adopt(
        self,
        adopted: Sequence[Adopted],
        tell: Callable[[Observation], None],
        inventory: Sequence[Gpu],
    ) -> None:
        """Take over what an earlier agent gave to these attempts, and end what belongs to none."""
        await self.shares.adopt(adopted, tell)
        self.pools.adopt([key_of(found.ref) for found in adopted], inventory)
        self.containers.adopt([key_of(found.ref) for found in adopted])
        await self.tracing.adopt({key_of(found.ref): found.rank for found in adopted})
        if self.pulled is not None:
            await asyncio.to_thread(self.pulled.adopt, {key_of(found.ref) for found in adopted})

    def isolation(self, inventory: Sequence[Gpu]) -> dict[str, str]:
        """Return the isolation that NodeRegistered reports."""
        return {
            **self.shares.isolation(inventory),
            **self.containers.isolation(),
            **self.pools.isolation(),
            **self.resident.isolation(),
            SHORT_ARRAYS: ENFORCED,
        }

    async def hold(
        self,
        launch: Launch,
        order: StartOrder,
        inventory: Sequence[Gpu],
        nodes: Callable[[], DeviceNodes],
        wanted: Callable[[], bool],
        credentials: Credentials,
    ) -> Launch:
        """Return the launch with its place on shared devices, its pools and its container, while
        it is `wanted`. `credentials`: see `Containers.hold`.

        Raises NoContainer or Refused; the caller then calls `give_up`.
        """
        shared = await self.shares.hold(launch, order, inventory)
        pooled = await self.pools.hold(shared, order, inventory)
        if self.pulled is not None:
            pooled = await self.pulled.hold(pooled, order)
        made = await self.containers.hold(
            self.tracing.hold(pooled, order),
            order,
            inventory=inventory,
            nodes=nodes,
            wanted=wanted,
            credentials=credentials,
        )
        if not wanted():
            raise Refused("it was stopped before it started")
        return made

    async def let_go(self, key: str) -> tuple[dict[str, str], list[str]]:
        """Return the entries of the release check, and what is left of the attempt. Harmless when
        repeated.
        """
        boxed = await self.containers.let_go(key)
        pooled = await self.pools.let_go(key)
        left = [f"container {said}" for said in boxed.values() if said != GONE]
        left += [f"memory pools {said}" for said in pooled.values() if said != RETURNED]
        left += filter(None, [await self.resident.let_go(key)])
        if self.pulled is not None:
            await self.pulled.let_go(key)
        self.tracing.let_go(key)
        return await self.shares.let_go(key) | pooled | boxed, left

    async def left(self, uuids: Collection[GpuId]) -> dict[GpuId, str]:
        """Return what unused daemons leave on these devices."""
        return await self.shares.left(uuids)

    async def give_up(self, key: str) -> None:
        """Undo `hold` for an attempt that did not start."""
        await self.let_go(key)
        self.forget(key)

    def forget(self, key: str) -> None:
        self.shares.forget(key)
        self.pools.forget(key)
        self.containers.forget(key)

    async def close(self) -> None:
        """Let go of everything; daemons and containers live on."""
        if self.uploads is not None:
            self.uploads.close()
        if self.pulled is not None:
            self.pulled.close()
        await self.tracing.close()
        await self.resident.close()
        await self.containers.close()
        await self.pools.close()
        await self.shares.close()
