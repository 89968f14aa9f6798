"""Simulated machines: disk, lease file, supervisors and the processes of jobs, which live and die without any agent.

`SimSupervisors` is the twin of `services.node_agent.supervision.supervisors.Supervisors`, `SimLease` of its lease file. Rules kept here as
there: a marker before anything runs, an exit record before anyone is told, and every supervisor has killed its job before the lease passes.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.model import Gpu, GpuHold, GpuId
from services.node_agent.supervision.supervisors import AlreadyStarted, Known, LaunchRequest, OnEvent
from tests.sim.clock import SimClock
from tests.sim.loop import Process, VirtualLoop
from tests.sim.truth import Running, Truth
from tests.sim.weather import Weather

TERM_BEFORE_S: Final = 2.0
KILL_BEFORE_S: Final = 0.5
DIES_IN_S: Final = 0.02
LAUNCH_S: Final = 0.003
LAUNCH_SLOW_S: Final = 4.0
EVENT_S: Final = 0.001
GPU_MEMORY: Final = 80 << 30

Key = tuple[str, int]


class Behaviour(msgspec.Struct, frozen=True):
    """What a simulated command does; it travels as the job's command."""

    duration_ms: int
    exit_code: int = 0
    ignores_term: bool = False

    def command(self) -> tuple[str, ...]:
        return ("simulated", str(self.duration_ms), str(self.exit_code), "stubborn" if self.ignores_term else "polite")

    @classmethod
    def parse(cls, argv: list[str]) -> "Behaviour":
        return cls(int(argv[1]), int(argv[2]), argv[3] == "stubborn")


class JobFiles(msgspec.Struct):
    """A job's directory: what survives the agent, and the machine unless its disk is lost."""

    rank: int
    forgotten: bool = False
    claimed_boot: int = 0
    exit: dict[str, Any] | None = None


class Disk:
    """`jobs` are the supervisors' directories; `files` is whatever the agent itself keeps."""

    def __init__(self) -> None:
        self.jobs: dict[Key, JobFiles] = {}
        self.files: dict[str, Any] = {}


class Supervised:
    """A living supervisor with its job's process."""

    def __init__(self, machine: "Machine", request: LaunchRequest, running: Running) -> None:
        self.machine = machine
        self.key: Key = (request.job_id, request.attempt)
        self.behaviour = Behaviour.parse(request.argv)
        self.running = running
        self.reason = "exited"
        self.signal = 0
        self.timers: list[asyncio.TimerHandle] = []
        self.lease_timer: asyncio.TimerHandle | None = None
        self.kill_at_s = float("inf")

    def begin(self) -> None:
        self._later(self.behaviour.duration_ms / 1e3, self._exit)
        if self.machine.enforces_lease:
            self._watch_lease()

    def stop(self, signal: int, grace_s: float, reason: str = "stopped") -> None:
        """The first stop sends the signal; a later one can only bring the kill forward."""
        if self.reason == "exited":
            self.reason, self.signal = reason, signal
            if signal != 9 and not self.behaviour.ignores_term:
                self._later(DIES_IN_S, self._exit)
        wait_s = 0.0 if signal == 9 else grace_s
        if self.machine.loop.now + wait_s < self.kill_at_s:
            self.kill_at_s = self.machine.loop.now + wait_s
            self._later(wait_s + DIES_IN_S, self._killed)

    def vanish(self) -> None:
        """The machine died under it."""
        for timer in self.timers:
            timer.cancel()
        if self.lease_timer is not None:
            self.lease_timer.cancel()
        self.machine.truth.end(self.running)

    def _killed(self) -> None:
        self.signal = 9
        self._exit()

    def _exit(self) -> None:
        self.vanish()
        stopped = self.reason != "exited"
        record = exit_record(self.key, self.machine.disk.jobs[self.key].rank, self.reason, executed=True)
        record["exit_code"], record["signal"] = (None, self.signal) if stopped else (self.behaviour.exit_code, None)
        self.machine.ended(self, record)

    def _watch_lease(self) -> None:
        """Look again at each deadline; there is nobody else to do it."""
        left_s = self.machine.lease_left_s()
        if left_s <= TERM_BEFORE_S:
            self.stop(15, max(0.0, left_s - KILL_BEFORE_S - DIES_IN_S), "lease_expired")
        else:
            self.lease_timer = self.machine.later(left_s - TERM_BEFORE_S, self._watch_lease)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.timers.append(self.machine.later(delay_s, act))


class Machine:
    """One node's hardware. `boot` counts its starts; the lease file means nothing to a later boot."""

    def __init__(self, loop: VirtualLoop, node_id: str, gpus: int, truth: Truth, weather: Weather, seed: int) -> None:
        self.loop = loop
        self.node_id = node_id
        self.truth = truth
        self.weather = weather
        self.random = random.Random(f"machine {node_id} {seed}")
        self.gpus = tuple(_gpu(node_id, index) for index in range(gpus))
        self.disk = Disk()
        self.clock = SimClock(loop)
        self.enforces_lease = True
        self.honours_marker = True
        self.context = contextvars.Context()
        self.held_by: Callable[[str, int, str], tuple[GpuHold, ...]] = lambda job_id, attempt, node_id: ()
        self.agent: SimSupervisors | None = None
        self.supervised: dict[Key, Supervised] = {}
        self.up = False
        self.boot = 0
        self.lease_ns = 0

    def power_on(self, skew_s: float) -> None:
        self.up = True
        self.boot += 1
        self.lease_ns = 0
        self.clock = SimClock(self.loop, skew_s, self.loop.now - self.random.uniform(5.0, 50.0), self.random.uniform(0.999, 1.001))

    def power_off(self, lose_disk: bool) -> None:
        """All at once: nothing more is written, nobody is told."""
        self.up = False
        for supervised in list(self.supervised.values()):
            supervised.vanish()
        self.supervised.clear()
        if lose_disk:
            self.disk = Disk()

    @property
    def boot_id(self) -> str:
        return f"{self.node_id}-boot-{self.boot}"

    def lease_left_s(self) -> float:
        return (self.lease_ns - self.clock.boot_ns()) / 1e9 / self.clock.rate

    def later(self, delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """In nobody's process: an agent's death or pause does not stop it."""
        return self.loop.call_later(max(0.0, delay_s), act, context=self.context)

    def fork(self, request: LaunchRequest) -> bool:
        """A supervisor claims the attempt and starts its process; False when the claim was given up."""
        key = (request.job_id, request.attempt)
        files = self.disk.jobs[key]
        if files.claimed_boot or files.exit is not None:
            return False
        files.claimed_boot = self.boot
        gpus = self.held_by(request.job_id, request.attempt, self.node_id)
        running = Running(request.job_id, request.attempt, self.node_id, self.boot, gpus, self.loop.now)
        supervised = self.supervised[key] = Supervised(self, request, running)
        self.truth.begin(running)
        supervised.begin()
        return True

    def ended(self, supervised: Supervised, record: dict[str, Any]) -> None:
        """The exit record first, then whoever listens."""
        del self.supervised[supervised.key]
        self.disk.jobs[supervised.key].exit = record
        if self.agent is not None:
            self.agent.tell(supervised.key, "exited", record)


class SimLease:
    """See `services.node_agent.supervision.lease.Lease`."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine = machine
        self.process = process
        self.boot = machine.boot
        self.path = "/simulated/lease"

    def extend(self, deadline_ns: int) -> None:
        self.process.check()
        self.machine.lease_ns = max(self.machine.lease_ns, deadline_ns)

    def deadline_ns(self) -> int:
        return self.machine.lease_ns

    def close(self) -> None:
        pass


class SimSupervisors:
    """See `services.node_agent.supervision.supervisors.Supervisors`: one agent process's side."""

    def __init__(self, machine: Machine, process: Process, on_event: OnEvent) -> None:
        self.machine = machine
        self.process = process
        self._on_event = on_event
        self._known: list[Known] = []
        self._told: dict[tuple[Key, str], None] = {}
        self.state_dir = "/simulated"

    async def start(self) -> None:
        """Adopts what is on disk; a marker without a living supervisor has ended."""
        self.process.check()
        self.machine.agent = self
        self.process.at_death.append(self._let_go)
        for key, files in self.machine.disk.jobs.items():
            if not files.forgotten:
                self._known.append(self._adopt(key, files))

    async def close(self) -> None:
        self._let_go()

    async def launch(self, request: LaunchRequest) -> None:
        self.process.check()
        key = (request.job_id, request.attempt)
        if key in self.machine.disk.jobs and self.machine.honours_marker:
            raise AlreadyStarted(f"{key[0]} attempt {key[1]} was started before")
        self.machine.disk.jobs[key] = JobFiles(request.rank)
        slow = self.machine.weather.hit("launch_slow", self.machine.node_id)
        await asyncio.sleep(self.machine.random.uniform(0.0, LAUNCH_SLOW_S) if slow else LAUNCH_S)
        self.process.check()
        if self.machine.fork(request):
            self.tell(key, "started", self._identity(key))

    def known(self) -> list[Known]:
        return list(self._known)

    async def stop(self, key: Key, signal_number: int = 15, grace_s: float = 10.0) -> None:
        self._files(key)
        await asyncio.sleep(EVENT_S)
        self.process.check()
        if key in self.machine.supervised:
            self.machine.supervised[key].stop(signal_number, grace_s)

    async def send_signal(self, key: Key, signal_number: int) -> None:
        self._files(key)

    async def status(self, key: Key) -> dict[str, Any] | None:
        self._files(key)
        return {"executed": True} if key in self.machine.supervised else None

    async def kill(self, key: Key) -> None:
        await self.stop(key, 9, 0.0)

    async def write_stdin(self, key: Key, offset: int, data: bytes, eof: bool = False) -> int:
        self._files(key)
        return offset + len(data)

    def forget(self, key: Key) -> None:
        files = self._files(key)
        if files.exit is None:
            raise Refused(f"{key[0]} attempt {key[1]} has not ended: stop it first")
        files.forgotten = True
        self._known = [found for found in self._known if (found.job_id, found.attempt) != key]

    def job_dir(self, key: Key) -> str:
        return f"{self.state_dir}/jobs/{key[0]}.{key[1]}"

    def tell(self, key: Key, event: str, detail: dict[str, Any]) -> None:
        """Once per key, event and agent process, in order."""
        if event == "exited" and detail["executed"]:
            self.tell(key, "started", self._identity(key))
        if (key, event) not in self._told:
            self._told[key, event] = None
            self.process.deliver(self._on_event, key, event, detail, delay_s=EVENT_S)

    def _adopt(self, key: Key, files: JobFiles) -> Known:
        living = key in self.machine.supervised
        if not living and files.exit is None:
            reason = "supervisor_lost" if files.claimed_boot else "not_started"
            files.exit = exit_record(key, files.rank, reason, executed=bool(files.claimed_boot))
        if files.exit is not None:
            self.tell(key, "exited", files.exit)
        else:
            self.tell(key, "started", self._identity(key))
        return Known(*key, living, files.exit)  # type: ignore[arg-type]

    def _files(self, key: Key) -> JobFiles:
        self.process.check()
        files = self.machine.disk.jobs.get(key)
        if files is None or files.forgotten:
            raise Refused(f"no job {key[0]} attempt {key[1]} on this node")
        return files

    def _identity(self, key: Key) -> dict[str, Any]:
        return {"job_id": key[0], "attempt": key[1], "pid": 1, "job_pid": 2, "boot_id": self.machine.boot_id}

    def _let_go(self) -> None:
        if self.machine.agent is self:
            self.machine.agent = None


def exit_record(key: Key, rank: int, reason: str, executed: bool) -> dict[str, Any]:
    """See `services.node_agent.supervision.records.ExitRecord`."""
    record: dict[str, Any] = {"job_id": key[0], "attempt": key[1], "rank": rank, "executed": executed, "exit_code": None, "signal": None}
    record |= {"reason": reason, "detail": "", "started_ns": 0, "ended_ns": 0, "duration_ns": 0}
    return record | {"stdout_bytes": 0, "stderr_bytes": 0, "dropped_bytes": 0, "leftovers": [], "clean": True}


def _gpu(node_id: str, index: int) -> Gpu:
    return Gpu(GpuId(f"gpu-{node_id}-{index}"), index, "simulated", "Simulated H100", GPU_MEMORY)
