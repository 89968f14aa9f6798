"""Keeps the device filters of running attempts in step with the device nodes of this node.

A filter denies the nodes of all devices that its attempt does not hold, by their numbers. The nodes
change while attempts run: a card is divided otherwise, a GPU appears, or one gets another number.
Then an attempt could open a device that its filter does not name, or not open its own. So the nodes
are read again before each start, and every FOLLOW_S. Tests: tests/integration/test_device_nodes.py,
tests/drivers/test_device_nodes.py.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from libs.common.errors import Refused, Unavailable
from libs.common.model import GpuId
from services.node_agent.core.state import LAUNCHED, Attempt, State, key_of
from services.node_agent.devices import capabilities
from services.node_agent.directories.marker_notes import filter_from
from services.node_agent.directories.protocol import JobSupervisors, Launch
from services.node_agent.drivers import Driver
from services.node_agent.jobs.limits import denied_of
from services.node_agent.machine.device_filter import digest_of

FOLLOW_S: Final = 5.0

logger = logging.getLogger(__name__)


class Filter(NamedTuple):
    """The filter of an attempt as it was last set: the digest of what it denies, and the numbers of
    the attempt's MIG instances by device.
    """

    denied: str
    instances: Mapping[GpuId, int]


class DeviceFilters:
    """The device filters of one agent's attempts."""

    def __init__(self, driver: Driver, jobs: JobSupervisors, state: Callable[[], State]) -> None:
        self.driver, self.jobs, self.state = driver, jobs, state
        # None: an older agent started the attempt and did not note its MIG instances.
        self._set: dict[str, Filter | None] = {}
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Follow the device nodes for ever. Simulated devices have none."""
        while not self.driver.simulated:
            await asyncio.sleep(FOLLOW_S)
            for key, why in (await self.follow()).items():
                logger.error("the device filter of %s stays as it was: %s", key, why)

    async def ready(self, launch: Launch) -> Launch:
        """Follow the device nodes, and return the launch with the filter that they need now.

        Its preparation may have taken long. Raises Refused if a running attempt could open its
        devices.
        """
        failed = await self.follow()
        for other, why in failed.items() if launch.gpus else ():
            raise Refused(
                f"{key_of(launch.ref)} cannot be started with a GPU of this node: {other} may open "
                f"it, because its device filter could not be changed ({why}). End {other}, or use "
                "another node"
            )
        denied = self._denied(launch.gpus, launch.instances)
        return replace(launch, limits={**launch.limits, "denied": denied})

    async def follow(self) -> dict[str, str]:
        """Read the nodes and change the filters that differ; return why for those that failed."""
        async with self._turn:
            await self.driver.read_nodes()
            running = {
                key: attempt
                for key, attempt in self.state().attempts.items()
                if attempt.phase == LAUNCHED and attempt.exit is None
            }
            self._set = {key: last for key, last in self._set.items() if key in running}
            if not self.driver.nodes:
                return {}
            found = {key: await self._follow(key, attempt) for key, attempt in running.items()}
            return {key: why for key, why in found.items() if why}

    async def _follow(self, key: str, attempt: Attempt) -> str:
        """Change the filter of one attempt if it differs; return why that failed."""
        if key not in self._set:
            self._set[key] = await asyncio.to_thread(self._first, attempt)
        last = self._set[key]
        if last is None:
            return ""
        denied = self._denied(attempt.gpus, last.instances)
        digest = digest_of(denied)
        if digest == last.denied:
            return ""
        try:
            await self.jobs.deny(attempt.ref, denied)
        except Unavailable as error:
            return str(error)
        except Refused as error:
            logger.warning("the device filter of %s stays as it was: %s", key, error)
        self._set[key] = last._replace(denied=digest)
        return ""

    def _denied(self, gpus: Sequence[GpuId], instances: Mapping[GpuId, int]) -> list[list[int]]:
        """Return the device nodes that an attempt with these devices may not open."""
        closed = capabilities.others(self.driver.capabilities, instances)
        return denied_of(gpus, self.driver.nodes, closed)

    def _first(self, attempt: Attempt) -> Filter | None:
        """Return the filter of the attempt's start, from its marker. Blocks."""
        noted = filter_from(self.jobs.directory_of(attempt.ref))
        if noted is not None:
            return Filter(noted.denied, noted.instances)
        return None if attempt.slices else Filter("", {})
