"""The weight servers of one agent, one per driver, and what they hold on which device.

A server starts with the first entry of its driver, and outlives the agent. The next agent finds it,
and reports what it holds, so that entries go that are not wanted any more. Tests:
tests/integration/test_device_weights.py.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.model import Gpu, GpuId
from services.node_agent.memory.device_memory import DRIVERS, Device
from services.node_agent.memory.device_numbers import DeviceNumbers
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.listing import Resident
from services.node_agent.memory.gms.resident_weights import NOTED, ResidentWeights
from services.node_agent.memory.grants import Refusal

OPEN_S: Final = 20.0

logger = logging.getLogger(__name__)


class Held(NamedTuple):
    """An entry, the device on which it is, and its server."""

    server: ResidentWeights
    uuid: GpuId
    entry: Resident


class WeightServers:
    """The servers. `changed` is called with each change of an entry, `found` with the entries that
    an earlier agent left.
    """

    def __init__(
        self,
        folder: Path,
        changed: Callable[[s.Change], None],
        found: Callable[[Sequence[Resident]], None],
    ) -> None:
        self.folder, self.changed, self.found = folder, changed, found
        self._devices: dict[GpuId, Device] = {}
        self._inventory: Sequence[Gpu] = ()
        # Devices get numbers, which are written down, only on nodes that keep weights.
        self._unnumbered: Sequence[Gpu] = ()
        self._numbers = DeviceNumbers(folder)
        self.servers: dict[str, ResidentWeights] = {}
        self._living: Collection[str] = ()
        self._opening: dict[str, asyncio.Task[None]] = {}

    def adopt(self, living: Collection[str], inventory: Sequence[Gpu]) -> None:
        """Find the servers of an earlier agent; `living` are the attempts that still run."""
        self._living = living
        self.use(inventory)
        for driver in DRIVERS:
            if (self.folder / driver / NOTED).exists():
                self._open(driver)

    def use(self, inventory: Sequence[Gpu]) -> None:
        """Add devices to those that entries may use."""
        if inventory is self._inventory:
            return
        self._inventory = self._unnumbered = inventory
        for driver, server in self.servers.items():
            server.use(self._of_driver(driver))

    def device(self, uuid: GpuId) -> Device:
        """Return a device of the node, by the number that its weight server knows."""
        return self._numbered()[uuid]

    def _numbered(self) -> dict[GpuId, Device]:
        found, self._unnumbered = self._unnumbered, ()
        self._devices |= {GpuId(each.uuid): each for each in self._numbers.devices_of(found)}
        return self._devices

    def _of_driver(self, driver: str) -> list[Device]:
        return [device for device in self._numbered().values() if device.driver == driver]

    def _open(self, driver: str) -> None:
        server = ResidentWeights(self.folder / driver, driver, self._of_driver(driver))
        server.changed = self.changed
        self.servers[driver] = server
        self._opening[driver] = asyncio.create_task(self._opened(server))

    async def _opened(self, server: ResidentWeights) -> None:
        try:
            await server.open(self._living)
        except (Refusal, TimeoutError) as error:
            logger.warning("the weight server %s: %s", server.folder, error or "no answer")
        self.found(server.entries())

    async def of(self, driver: str) -> ResidentWeights:
        """Return the server of a driver, which may have to start. Raises Refused."""
        if driver not in self._opening:
            self._open(driver)
        if not await self.answer(driver):
            raise Refused(
                f"the weight server of driver {driver} does not answer within {OPEN_S:.0f} s: the "
                "agent's log says why"
            )
        return self.servers[driver]

    async def answer(self, *drivers: str) -> bool:
        """Wait until these servers answer, or all; return whether they did in time.

        Until then the agent does not know what an earlier agent left.
        """
        waiting = [self._opening[driver] for driver in drivers or self._opening]
        if all(each.done() for each in waiting):
            return True
        _, silent = await asyncio.wait(waiting, timeout=OPEN_S)
        return not silent

    def may_know(self, key: str) -> bool:
        """Return whether an earlier agent may have admitted this attempt."""
        return key in self._living

    def held(self) -> Iterator[Held]:
        """Yield all entries. A device that the node does not have any more has no id."""
        for server in self.servers.values():
            for each in server.entries():
                device = server.devices.get(each.device)
                yield Held(server, GpuId(device.uuid if device is not None else ""), each)

    def bytes_on(self, uuid: GpuId) -> int:
        """Return the bytes that entries own on a device."""
        return sum(each.entry.bytes for each in self.held() if each.uuid == uuid)

    def bytes_by_model(self) -> dict[tuple[str, str], int]:
        """Return the bytes that entries own, by device and model."""
        found: dict[tuple[str, str], int] = {}
        for each in self.held():
            place = each.uuid, each.entry.model
            found[place] = found.get(place, 0) + each.entry.bytes
        return found

    def processes(self) -> set[int]:
        """Return the servers' processes: no job left them."""
        return {server.pid for server in self.servers.values() if server.pid}

    async def close(self) -> None:
        """Let go of the servers; each lives on while it has entries."""
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for server in self.servers.values():
            await server.close()
