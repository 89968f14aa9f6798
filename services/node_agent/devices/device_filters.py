"""Keeps the device filters of running attempts in step with the device nodes of this node.

A filter denies the nodes of all devices that its attempt does not hold, by their numbers. The nodes
change while attempts run: a card is divided differently, a GPU appears, or one gets another number.
Then an attempt could open a device that its filter does not name, or could not open its own. So the
nodes are read again every FOLLOW_S. A start never reads them, because the read calls a driver that
may hang. It uses the nodes that were read last. Tests: tests/integration/test_device_nodes.py,
tests/drivers/test_device_nodes.py.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from libs.common.devices.partition import card_of
from libs.common.errors import Refused, Unavailable
from libs.common.model import Gpu, GpuId
from services.node_agent.core.state import LAUNCHED, LAUNCHING, Attempt, State, key_of
from services.node_agent.devices import capabilities
from services.node_agent.directories.marker_notes import instances_from
from services.node_agent.directories.protocol import JobSupervisors, Launch
from services.node_agent.drivers import Driver
from services.node_agent.jobs.limits import denied_of
from services.node_agent.machine.device_filter import digest_of

FOLLOW_S: Final = 5.0
# The digest after a failure: the supervisor may still set the filter.
UNSURE: Final = "unsure"

logger = logging.getLogger(__name__)


class Filter(NamedTuple):
    """The filter of an attempt: the numbers of the attempt's MIG instances by device, and the
    digest of what it denies, as this agent last set it. The digest is empty if an earlier agent
    set it: the kernel cannot be asked which filter it has.
    """

    instances: Mapping[GpuId, int]
    denied: str = ""


class DeviceFilters:
    """The device filters of one agent's attempts."""

    def __init__(
        self,
        driver: Driver,
        jobs: JobSupervisors,
        state: Callable[[], State],
        gpus: Callable[[], Sequence[Gpu]],
    ) -> None:
        """Create the filters; `gpus` returns the inventory."""
        self.driver, self.jobs, self.state, self.gpus = driver, jobs, state, gpus
        # None: an older agent started the attempt and did not note its MIG instances.
        self._set: dict[str, Filter | None] = {}
        # The attempts whose filter could not be changed: the reason, and when to try again.
        self._failed: dict[str, tuple[str, float]] = {}
        # The GPUs without nodes for which filters of an earlier agent wait, as last logged.
        self._awaited: list[GpuId] = []
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Follow the device nodes for ever. Simulated devices have none."""
        if self.driver.simulated:
            await asyncio.Event().wait()  # the end of this task would end the agent
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self.driver.read_nodes()
            except (OSError, RuntimeError) as error:  # no descriptor or no thread is free
                logger.error("the device nodes of this node cannot be read: %s", error)
            for key, why in (await self.follow()).items():
                logger.error("the device filter of %s stays as it was: %s", key, why)

    async def ready(self, launch: Launch) -> Launch:
        """Return the launch with the filter that the device nodes need now.

        Its preparation may have taken long. If the job has devices, the filters of running attempts
        are changed first. Raises Refused if a running attempt could open its devices.
        """
        for other, why in (await self.follow()).items() if launch.gpus else ():
            raise Refused(
                f"{key_of(launch.ref)} cannot be started with a GPU of this node: {other} may open "
                f"it, because its device filter could not be changed ({why}). End {other}, or use "
                "another node"
            )
        if not self.driver.nodes:  # as on a node with simulated devices
            return launch
        denied = self._denied(launch.gpus, launch.instances)
        self._set[key_of(launch.ref)] = Filter(launch.instances, digest_of(denied))
        return replace(launch, limits={**launch.limits, "denied": denied})

    async def follow(self) -> dict[str, str]:
        """Change the filters that differ from the nodes; return why for those that failed.

        All supervisors are asked at the same time. After a failure, the next request to that
        supervisor comes FOLLOW_S later.
        """
        async with self._turn:
            attempts = {
                key: attempt
                for key, attempt in self.state().attempts.items()
                if attempt.exit is None
                and (attempt.phase == LAUNCHED or (attempt.phase == LAUNCHING and key in self._set))
            }
            self._set = {key: last for key, last in self._set.items() if key in attempts}
            self._failed = {key: last for key, last in self._failed.items() if key in attempts}
            if self.driver.nodes:
                await asyncio.gather(*(self._follow(*each) for each in attempts.items()))
            return {key: why for key, (why, _) in self._failed.items()}

    async def _follow(self, key: str, attempt: Attempt) -> None:
        """Change the filter of one attempt if it differs."""
        now_s = asyncio.get_running_loop().time()
        if key not in self._set:
            try:
                self._set[key] = await asyncio.to_thread(self._first, attempt)
            except (OSError, RuntimeError) as error:  # no descriptor or no thread is free
                self._failed[key] = (f"its marker cannot be read: {error}", now_s)
                return
            self._failed.pop(key, None)
        last = self._set[key]
        _, again_s = self._failed.get(key, ("", 0.0))
        if last is None or now_s < again_s or (not last.denied and self._must_wait()):
            return
        denied = self._denied(attempt.gpus, last.instances)
        digest = digest_of(denied)
        if digest != last.denied:
            try:
                await self.jobs.deny(attempt.ref, denied)
            except Unavailable as error:
                again_s = asyncio.get_running_loop().time() + FOLLOW_S
                self._failed[key] = (str(error), again_s)
                self._set[key] = last._replace(denied=UNSURE)
                return
            except Refused as error:
                logger.warning("the device filter of %s stays as it was: %s", key, error)
        self._set[key] = last._replace(denied=digest)
        self._failed.pop(key, None)

    def _must_wait(self) -> bool:
        """Return whether the nodes of a GPU are not known, as while it is reset.

        The filter of an earlier agent may deny them, so it must not be replaced yet. Lost GPUs, and
        GPUs of the bus that are not in the inventory, may never have nodes. The same applies to the
        further parts of a divided card, whose addresses are not on the bus.
        """
        lost = {uuid for uuid, absent in self.driver.absent.items() if absent.lost}
        awaited = [
            gpu.uuid
            for gpu in self.gpus()
            if gpu.uuid == card_of(gpu.uuid)
            and gpu.uuid not in lost
            and gpu.uuid in self.driver.nodes
            and not self.driver.nodes[gpu.uuid]
        ]
        if awaited and awaited != self._awaited:
            logger.error(
                "jobs that an earlier agent started keep their device filters, because the device "
                "nodes of %s cannot be read: run muster doctor on this node",
                ", ".join(awaited),
            )
        self._awaited = awaited
        return bool(awaited)

    def _denied(self, gpus: Sequence[GpuId], instances: Mapping[GpuId, int]) -> list[list[int]]:
        """Return the device nodes that an attempt with these devices may not open."""
        closed = capabilities.others(self.driver.capabilities, instances)
        return denied_of(gpus, self.driver.nodes, closed)

    def _first(self, attempt: Attempt) -> Filter | None:
        """Return the filter of an attempt that an earlier agent started. Blocks."""
        instances = instances_from(self.jobs.directory_of(attempt.ref))
        if instances is None and not attempt.slices:
            instances = {}
        return None if instances is None else Filter(instances)
