"""The slow work on this node's devices: release checks, resets, settings, trials and evidence.

Each method runs as a task of its own and reports an observation. Only one of reset, scrub, burn-in
and mode change works on a device at a time (`Scrub.turn`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final

import msgspec

from libs.common.devices.device_controls import needs_free
from libs.common.messages import ControlOrder
from libs.common.model import Gpu, GpuId, NodeId
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.state import State, key_of
from services.node_agent.devices import use_watch
from services.node_agent.devices.attempts import slices_of_others, undivided
from services.node_agent.devices.device_commands import Controlling, modes_of
from services.node_agent.devices.device_filters import DeviceFilters
from services.node_agent.devices.instances import Instances
from services.node_agent.devices.present import report_of
from services.node_agent.devices.sampling import Sampling
from services.node_agent.diagnosis.diagnosing import Diagnosing
from services.node_agent.directories.protocol import JobSupervisors, Machine, Memory
from services.node_agent.drivers import Driver
from services.node_agent.fabric.rdma import ports
from services.node_agent.health import job_watch, lost_devices
from services.node_agent.health.operator_command import OperatorCommand
from services.node_agent.health.preflight import Preflight
from services.node_agent.health.resetting import reset
from services.node_agent.health.returning import idle, watch
from services.node_agent.health.scrubbing import Scrub
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.release import check, unknown

# How long a release check may take beyond the time that a job's processes and pools have to go.
CHECK_SLACK_S: Final = 10.0

_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class DeviceWork:
    """The devices of one node, as `inventory` lists them, and what works on them."""

    def __init__(
        self,
        machine: Machine,
        driver: Driver,
        jobs: JobSupervisors,
        memory: Memory,
        means: Means,
        sampling: Callable[[], Sampling],
        state: Callable[[], State],
        tell: Callable[[o.Observation], None],
    ) -> None:
        self.driver = driver
        self.jobs = jobs
        self.memory = memory
        self.means = means
        self.sampling = sampling
        self.state = state
        self.tell = tell
        self.inventory: Sequence[Gpu] = ()
        self.look_s = machine.release_ms / 1_000 + CHECK_SLACK_S
        self.preflight = Preflight(
            driver, sampling=sampling(), machine=machine, state=state, tell=tell
        )
        self.burn_in = self._command(machine, machine.burn_in, machine.burn_in_ms)
        scrub_command = self._command(machine, machine.scrub, machine.scrub_ms)
        self.scrub = Scrub(driver, scrub_command, state, tell, memory)
        self.instances = Instances(
            driver, lambda: self.inventory, lambda key: slices_of_others(state(), key)
        )
        self.controlling = Controlling(driver, self.instances, tell)
        self.filters = DeviceFilters(driver, jobs, state, lambda: self.inventory)
        self.diagnosing = Diagnosing(
            NodeId(machine.node_id),
            jobs=jobs,
            sampling=sampling,
            state=state,
            after_s=machine.diagnose_after_s,
        )

    def _command(self, machine: Machine, command: str, timeout_ms: int) -> OperatorCommand:
        return OperatorCommand(
            command,
            timeout_ms,
            machine.environment,
            gpus=lambda: self.inventory,
            renumbered=self.driver.renumbered,
        )

    async def open(self, boot_id: str) -> None:
        """List the devices of the node, and restore what an earlier agent knew about them."""
        self.driver.baseline |= await idle(self.memory, boot_id)
        await self.scrub.open(boot_id)
        self.inventory = await lost_devices.look(
            self.driver, self.memory, self.state().devices, boot_id
        )
        self.state().controls.modes = modes_of(self.driver, self.inventory)

    async def clear_instances(self) -> None:
        """Remove MIG instances that no attempt owns."""
        shown = lost_devices.shown(self.driver, self.inventory)
        await self.instances.clear([gpu.uuid for gpu in shown], self.tell)

    async def watch_returning(self) -> None:
        """Check quarantined devices for ever, so that they return once they are clean."""
        await watch(
            state=self.state,
            check=self.checked,
            burn_in=self.tried,
            tell=self.tell,
            memory=self.memory,
            driver=self.driver,
        )

    async def watch_jobs(self) -> None:
        """Sample the jobs that may hang, exceed their share or show no progress, for ever."""
        hangs = job_watch.watch(
            state=self.state,
            gpus=lambda: self.inventory,
            jobs=self.jobs,
            sampling=self.sampling(),
            tell=self.tell,
        )
        if self.diagnosing.after_s > 0:
            await asyncio.gather(hangs, self.diagnosing.watch())
        await hangs

    async def watch_use(self) -> None:
        """Sample the devices of running jobs for what they use, for ever."""
        await use_watch.watch(self.state, self.sampling(), self.tell, self.memory)

    async def listen(self, bus: Bus, node_id: NodeId) -> None:
        """Answer gateways that ask about the devices."""
        for verb, handler in (("topology", self.answer_topology), ("readings", self._readings)):
            await bus.subscribe(ask_node(node_id, verb), handler, concurrent=True)
        await self.diagnosing.listen(bus)

    async def _readings(self, subject: str, data: bytes) -> bytes:
        return _encode(report_of(await self.sampling().now()))

    async def answer_topology(self, subject: str, data: bytes) -> bytes | None:
        """Answer how the devices are connected, and which RDMA ports there are."""
        found = await self.driver.topology()
        rdma = await asyncio.to_thread(ports.ports)
        why = await asyncio.to_thread(ports.without_verbs)
        return _encode(msgspec.structs.replace(found, rdma=rdma, no_verbs=why))

    async def check_release(self, action: a.CheckRelease) -> None:
        """Report whether an attempt left its devices clean; sample them first if it failed."""
        if action.failed and action.gpus:
            await self.sampling().look()
        try:
            self.tell(await self.checked(action))
        except Exception as error:  # a bug that one job meets must not end the agent
            logger.exception("the release check of %s failed", key_of(action.ref))
            self.tell(unknown(action, f"not known: the release check failed: {error!a}"))

    async def checked(self, action: a.CheckRelease) -> o.ReleaseChecked:
        """Return the result of a release check."""
        return await check(
            action,
            driver=self.driver,
            jobs=self.jobs,
            instances=self.instances,
            scrub=self.scrub,
            alone=undivided(self.state(), action.gpus),
            look_s=self.look_s,
            means=self.means,
        )

    async def reset(self, action: a.ResetDevice) -> None:
        """Reset a device and report the result."""
        async with self.scrub.turn(action.uuid):
            self.tell(await reset(self.driver, self.memory.keep, action, self.burn_in.on))

    async def tried(self, uuid: GpuId) -> str:
        """Run the burn-in on a device; return why it failed, empty if it passed."""
        async with self.scrub.turn(uuid):
            return await self.burn_in.on(uuid)

    async def control(self, order: ControlOrder) -> None:
        """Change a setting of a device, and list the devices again if it changed their number."""
        async with self.scrub.turn(order.uuid) if needs_free(order.control) else nullcontext():
            self.inventory = await self.controlling.control(order) or self.inventory

    async def save_evidence(self, action: a.SaveEvidence) -> None:
        """Save the evidence of a job that hangs, and report where."""
        self.tell(await job_watch.save(self.jobs, self.sampling(), self.memory.keep, action))
