"""Gives attempts their place on shared devices: an MPS daemon, or compute units of their own.

Without a state directory (the simulation) there are no daemons. Tests:
tests/integration/test_mps.py, tests/unit/test_sharing_ways.py.
"""

import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from libs.common.devices.means import lost
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import MPS, Gpu, GpuId
from services.node_agent.core.observations import Adopted, Observation, ShareLost
from services.node_agent.core.state import key_of
from services.node_agent.core.used import Used
from services.node_agent.directories.protocol import Launch
from services.node_agent.drivers import sysfs
from services.node_agent.sharing import ways
from services.node_agent.sharing.daemon import Known
from services.node_agent.sharing.daemons import Daemons, Program

NO_GROUPS: Final[Mapping[str, str]] = {}


class Shares:
    """The shares of one agent's attempts. `tell` receives ShareLost when an MPS daemon dies."""

    def __init__(
        self,
        state_dir: Path | None = None,
        program: Program | None = None,
        home: Mapping[str, str] = NO_GROUPS,
        sys_root: Path = sysfs.SYS,
    ) -> None:
        self.program, self.sys_root = program or Program(), sys_root
        self.tell: Callable[[Observation], None] = lambda seen: None
        self.daemons = (
            Daemons(state_dir, self.program, home, self._lost) if state_dir is not None else None
        )
        self.masks: dict[str, Mapping[GpuId, str]] = {}

    async def adopt(self, adopted: Sequence[Adopted], tell: Callable[[Observation], None]) -> None:
        """Take over the masks and daemons that earlier agents gave to these attempts."""
        self.tell = tell
        self.masks = {key_of(each.ref): each.used.masks for each in adopted if each.used.masks}
        if self.daemons is not None:
            await self.daemons.adopt({key_of(each.ref): each.used.daemon for each in adopted})

    async def hold(self, launch: Launch, order: StartOrder, inventory: Sequence[Gpu]) -> Launch:
        """Return the launch with its place on shared devices. Raises Refused."""
        held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
        way = ways.way_of(order.gpus, held)
        if way == MPS:
            return await self._at_daemon(launch, order, held)
        if way == ways.CU_MASK:
            return self._masked(launch, order, held)
        return replace(launch, used=Used(way))

    async def let_go(self, key: str) -> dict[str, str]:
        """Give the place back and return the entries of the receipt. Harmless when repeated."""
        self.masks.pop(key, None)
        result = await self.daemons.let_go(key) if self.daemons is not None else ""
        return {MPS: result} if result else {}

    def forget(self, key: str) -> None:
        if self.daemons is not None:
            self.daemons.forget(key)

    async def left(self, uuids: Collection[GpuId]) -> dict[GpuId, str]:
        """Return what unused daemons leave on these devices."""
        return await self.daemons.left(uuids) if self.daemons is not None else {}

    def isolation(self, inventory: Sequence[Gpu]) -> dict[str, str]:
        """Return the isolation for NodeRegistered; empty if no device can be shared."""
        used = {ways.WAYS.get(gpu.vendor) for gpu in inventory}
        if self.daemons is None or not used & {MPS, ways.CU_MASK}:
            return {}
        unmasked = [
            gpu.uuid
            for gpu in inventory
            if ways.WAYS.get(gpu.vendor) == ways.CU_MASK and not self._units(gpu.pci_bus)
        ]
        if MPS in used and self.program.lacking:
            return {MPS: lost(self.program.lacking)}
        return {
            MPS: lost(
                f"the kernel does not report the compute units of {', '.join(unmasked)}"
                if unmasked
                else ""
            )
        }

    async def close(self) -> None:
        if self.daemons is not None:
            await self.daemons.close()

    def _lost(self, key: str, detail: str) -> None:
        self.tell(ShareLost(key, detail))

    async def _at_daemon(self, launch: Launch, order: StartOrder, held: Sequence[Gpu]) -> Launch:
        if self.daemons is None:
            raise Refused("isolation mps: this agent starts no MPS daemons")
        user = launch.account.name if launch.account is not None else str(os.geteuid())
        ids = launch.account.ids if launch.account is not None else []
        uuids = tuple(sorted(gpu.uuid for gpu in held))
        name = ways.daemon_name(order.tenant, user, uuids)
        await self.daemons.hold(
            key_of(launch.ref), name, Known(uuids=uuids, tenant=order.tenant, ids=ids)
        )
        variables = ways.mps_variables(
            self.daemons.folder(name), order.gpus, held, order.spec.gpu_memory_bytes
        )
        return replace(launch, used=Used(MPS, name), env={**launch.env, **variables})

    def _masked(self, launch: Launch, order: StartOrder, held: Sequence[Gpu]) -> Launch:
        masks: dict[GpuId, str] = {}
        for hold, gpu in zip(order.gpus, held, strict=True):
            units = self._units(gpu.pci_bus)
            if not units:
                raise Refused(
                    "isolation mps: the kernel does not report the number of compute units of GPU "
                    f"{gpu.uuid}, so a share of them cannot be masked"
                )
            masks[gpu.uuid] = ways.allotted(
                units,
                hold.share,
                [other[gpu.uuid] for other in self.masks.values() if gpu.uuid in other],
            )
        self.masks[key_of(launch.ref)] = masks
        return replace(
            launch,
            used=Used(ways.CU_MASK, masks=masks),
            env={**launch.env, **ways.mask_variables(masks, held)},
        )

    @functools.cache  # noqa: B019  (one per agent)
    def _units(self, pci_bus: str) -> int:
        return sysfs.compute_units(pci_bus, self.sys_root)
