"""The agent's side of a simulated machine: its supervisors, its one remembered number and its
devices.

`SimSupervisors` is the simulation's twin of
`services.node_agent.directories.job_directories.JobDirectories`. Rule kept here as there: a marker
on disk before anything runs, so that a (job, attempt) is launched at most once, whatever dies in
between.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from libs.common.devices.topology import Topology
from libs.common.errors import Refused
from libs.common.model import AttemptRef, Gpu, GpuId
from services.node_agent.core.actions import NOTICE_NS
from services.node_agent.core.observations import (
    Adopted,
    Exit,
    GuardChanged,
    Observation,
    ProcessExited,
    ProcessStarted,
)
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import AlreadyStarted, Launch, OnEvent, Piece, Taken
from services.node_agent.directories.retention import Keep, Pruned
from services.node_agent.drivers import Capabilities, DeviceNodes, simulated_mig
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.absent import Absent
from services.node_agent.drivers.readings import (
    Command,
    Done,
    Event,
    Lacking,
    Modes,
    Reset,
    Sample,
    SetPowerCap,
)
from tests.sim.disk import JobFiles
from tests.sim.loop import Process
from tests.sim.machine import CARD, Machine

LAUNCH_S: Final = 0.003
LAUNCH_SLOW_S: Final = 4.0
EVENT_S: Final = 0.001
DISK_S: Final = 0.002
RESET_S: Final = 1.5
# The longest answer of a slow driver: the agent's own bound is MUSTER_DRIVER_ANSWER_MS.
SLOW_S: Final = 7.0


class SimSupervisors:
    """See `services.node_agent.directories.protocol.JobSupervisors`: one agent process's way to its
    machine.
    """

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine = machine
        self.process = process
        self.on_event: OnEvent = lambda seen: None
        self.told: dict[tuple[AttemptRef, str], None] = {}
        self.watchdog = machine.watchdog

    async def start(self, on_event: OnEvent) -> Sequence[Adopted]:
        """Adopt what is on disk; a marker without a living supervisor has ended."""
        await self._touch(DISK_S)
        self.on_event = on_event
        self.machine.agent = self
        self.watchdog.agent_began()
        self.process.at_death.append(self._let_go)
        return [
            self._adopt(files) for files in self.machine.disk.jobs.values() if not files.forgotten
        ]

    async def close(self) -> None:
        self._let_go()

    async def unpack(
        self, ref: AttemptRef, sha256: str, pieces: AsyncIterator[bytes], wanted: Callable[[], bool]
    ) -> str:
        async for _ in pieces:
            await self._touch(DISK_S)
        return f"/jobs/{key_of(ref)}"

    async def discard(self, ref: AttemptRef) -> None:
        await self._touch(DISK_S)

    async def launch(self, launch: Launch) -> None:
        await self._touch(DISK_S)
        ref, weather = launch.ref, self.machine.weather
        if ref in self.machine.disk.jobs and self.machine.honours_marker:
            raise AlreadyStarted(f"{key_of(ref)} was started before")
        if not launch.ignore_lease and self.watchdog.missing():
            raise Refused(f"{key_of(ref)} cannot be started: no lease watchdog")
        if weather.hit("launch_refused", self.machine.node_id):
            raise Refused(f"{key_of(ref)} cannot be started: no room on disk")
        limits = launch.time_limit_s, launch.grace_s
        known = launch.rank, launch.gpus, launch.seq, *limits, launch.probe, launch.ignore_lease
        self.machine.disk.jobs[ref] = JobFiles(ref, *known, slices=launch.slices)
        slow = weather.hit("launch_slow", self.machine.node_id)
        await self._touch(self.machine.random.uniform(0.0, LAUNCH_SLOW_S) if slow else LAUNCH_S)
        if self.machine.fork(ref, launch.argv):
            self._tell(
                ref, "started", ProcessStarted(key_of(ref), 1, self.machine.disk.jobs[ref].began_ns)
            )
        else:
            self.exited(ref, self._lost(self.machine.disk.jobs[ref]))

    async def stop(self, ref: AttemptRef, signal: int, grace_ms: int) -> None:
        await self._touch(EVENT_S)
        if ref in self.machine.supervised:
            self.machine.supervised[ref].stop(signal, grace_ms / 1e3)

    async def kill(self, ref: AttemptRef) -> None:
        await self.stop(ref, 9, 0)

    async def deny(self, ref: AttemptRef, denied: Sequence[Sequence[int]]) -> None:
        """Simulated devices have no nodes that a job could open."""

    def checkpointed_ns(self, ref: AttemptRef) -> int:
        self.process.check()
        return self.machine.disk.jobs[ref].checkpointed_ns if ref in self.machine.disk.jobs else 0

    def output_bytes(self, ref: AttemptRef) -> int:
        self.process.check()
        return 0

    def directory_of(self, ref: AttemptRef) -> str:
        return ""

    def processes(self, ref: AttemptRef) -> list[int]:
        self.process.check()
        return []

    async def leftovers(self, ref: AttemptRef) -> Sequence[str]:
        await self._touch(DISK_S)
        return ["1 simulated"] if ref in self.machine.supervised else []

    async def write_stdin(self, ref: AttemptRef, offset: int, data: bytes, eof: bool) -> Taken:
        self.process.check()
        return Taken(offset + len(data), eof)

    async def read_output(
        self, ref: AttemptRef, stream: str, offset: int, max_bytes: int
    ) -> Piece | None:
        self.process.check()
        return None

    def root_of(self, ref: AttemptRef) -> tuple[str, bool, Sequence[int]] | None:
        self.process.check()
        return None

    async def forget(self, ref: AttemptRef, copied: bool) -> None:
        await self._touch(DISK_S)
        self.machine.disk.jobs[ref].forgotten = True

    async def uncopied(self) -> Sequence[tuple[AttemptRef, int]]:
        """Nothing here writes output."""
        self.process.check()
        return []

    async def copied(self, ref: AttemptRef) -> None:
        self.process.check()

    async def prune(self, keep: Keep | None = None, dry_run: bool = False) -> Pruned:
        """Only markers are on this disk, and they stay."""
        self.process.check()
        return Pruned()

    def extend_lease(self, deadline_ns: int, notice_ns: int = NOTICE_NS) -> None:
        self.process.check()
        self.machine.disk.notice_s = notice_ns / 1e9
        self.machine.disk.lease_ns = max(self.machine.disk.lease_ns, deadline_ns)

    def replace_lease(self, deadline_ns: int, notice_ns: int = NOTICE_NS) -> None:
        self.process.check()
        self.machine.disk.notice_s = notice_ns / 1e9
        self.machine.disk.lease_ns = deadline_ns

    def acts(self) -> bool:
        return self.process.alive and self.process.paused_until <= self.machine.loop.now

    def guard_changed(self, missing: str) -> None:
        seen = GuardChanged(missing, self.watchdog.armed_ms())
        self.process.deliver(self.on_event, seen)

    def exited(self, ref: AttemptRef, end: Exit) -> None:
        """Report each exit once per attempt and agent process, after its start."""
        if end.executed:
            self._tell(
                ref, "started", ProcessStarted(key_of(ref), 1, self.machine.disk.jobs[ref].began_ns)
            )
        self._tell(ref, "exited", ProcessExited(key_of(ref), end))

    def _tell(self, ref: AttemptRef, event: str, seen: Observation) -> None:
        if (ref, event) not in self.told:
            self.told[ref, event] = None
            self.process.deliver(self.on_event, seen, delay_s=EVENT_S)

    def _adopt(self, files: JobFiles) -> Adopted:
        if files.ref in self.machine.supervised:
            self._tell(files.ref, "started", ProcessStarted(key_of(files.ref), 1, files.began_ns))
        else:
            self.exited(files.ref, self._lost(files))
        limits = files.time_limit_s, files.grace_s
        return Adopted(
            files.ref,
            files.rank,
            files.gpus,
            *limits,
            files.probe,
            files.ignore_lease,
            files.slices,
        )

    def _lost(self, files: JobFiles) -> Exit:
        """Return the exit record; write one if no supervisor runs the attempt or ever will."""
        if files.exit is None:
            files.exit = Exit(executed=files.claimed, exit_code=None, reason="supervisor_lost")
        return files.exit

    async def _touch(self, seconds: float) -> None:
        self.process.check()
        await asyncio.sleep(seconds)
        self.process.check()

    def _let_go(self) -> None:
        if self.machine.agent is self:
            self.machine.agent = None
            self.machine.brokers[-1].agent_left()


class SimMemory:
    """See `services.node_agent.directories.protocol.Memory`: one number and one name on the
    simulated disk.
    """

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine = machine
        self.process = process

    async def directory(self) -> str:
        self.process.check()
        return self.machine.disk.name

    async def load(self) -> int:
        self.process.check()
        return self.machine.disk.incarnation

    async def store(self, incarnation: int) -> None:
        await asyncio.sleep(DISK_S)
        self.process.check()
        self.machine.disk.incarnation = incarnation

    async def kept(self, name: str) -> bytes:
        self.process.check()
        return self.machine.disk.files.get(name, b"")

    async def keep(self, name: str, data: bytes) -> None:
        await asyncio.sleep(DISK_S)
        self.process.check()
        self.machine.disk.files[name] = data


class SimDriver:
    """See `services.node_agent.drivers.Driver`; a device is unclean only while a process has it
    open.

    Power limits are gone after a reset and after the agent's end, as with a driver that is
    unloaded.
    """

    simulated = True
    nodes: DeviceNodes = {}  # noqa: RUF012
    capabilities: Capabilities = {}  # noqa: RUF012
    absent: Mapping[GpuId, Absent] = {}

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine, self.process = machine, process
        machine.capped = self.capped = {}
        self.baseline: dict[str, int] = {}

    async def inventory(self) -> Sequence[Gpu]:
        """Return the devices without a delay, so that runs that set no mode stay as they were."""
        self.process.check()
        return self.machine.inventory()

    async def read_nodes(self) -> None:
        """Simulated devices have no nodes."""

    async def renumbered(self, vendor: str, wait_s: float = 0.0) -> str:
        return ""

    async def _answer(self, usual_s: float) -> None:
        """Take the time of one answer."""
        now, machine = asyncio.get_running_loop().time(), self.machine
        is_slow = machine.slow_until > now
        await asyncio.sleep(machine.slow_dice.uniform(usual_s, SLOW_S) if is_slow else usual_s)

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        await self._answer(DISK_S)
        now = asyncio.get_running_loop().time()
        return {
            uuid: "a process has it open"
            for uuid in uuids
            if now < self.machine.kept_until.get(uuid, 0.0)
        }

    @property
    def versions(self) -> Mapping[str, str]:
        return {}

    def version_of(self, uuid: GpuId) -> str:
        return ""

    def modes(self, uuid: GpuId) -> Modes:
        return Modes(uuid not in self.machine.uncut)

    async def sample(self) -> Mapping[GpuId, Sample]:
        await self._answer(DISK_S)
        return {
            gpu.uuid: Sample(pci_bus=gpu.pci_bus, at_ns=0, simulated=True)
            for gpu in self.machine.gpus
        }

    async def events(self) -> Sequence[Event]:
        return ()

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        """Carry out a command. MIG instances belong to the machine: they survive the agent, but no
        power cut. Raises Refused for a device of another node, as the real drivers do.
        """
        self.process.check()
        if uuid not in self.machine.instances:
            raise Refused(f"this node has no GPU {uuid}: muster gpus lists them")
        if isinstance(command, r.ListMigInstances):
            return simulated_mig.carry_out(self.machine.instances[uuid], CARD, uuid, command)
        if isinstance(command, r.CreateMigInstance | r.DestroyMigInstance):
            await self._answer(DISK_S)
            self.process.check()
            return simulated_mig.carry_out(self.machine.instances[uuid], CARD, uuid, command)
        await self._answer(RESET_S)
        if isinstance(command, r.SetMigMode):
            self._set_mode(uuid, command.on)
        if isinstance(command, SetPowerCap):
            self.capped[uuid] = command.milliwatts
        if isinstance(command, Reset):
            self.capped.pop(uuid, None)
        return Done()

    def _set_mode(self, uuid: GpuId, on: bool) -> None:
        """Set MIG mode. Raises Refused, as a real driver does, if an unknown job uses the card.

        The agent knows its own jobs.
        """
        self.process.check()
        if self.machine.is_left(uuid):
            raise Refused(f"GPU {uuid} is in use by another process")
        assert not self.machine.instances[uuid] and not self.machine.running_on(uuid), (
            "a mode is set of a free card"
        )
        if on:
            self.machine.uncut.pop(uuid, None)
        else:
            self.machine.uncut[uuid] = None

    async def topology(self) -> Topology:
        return Topology((), (), simulated=True)

    async def close(self) -> None:
        """Nothing is open."""
