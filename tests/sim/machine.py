"""Simulated machines: disk, lease file, supervisors and job processes, all independent of any
agent.

The agent reaches them through `supervisors.py`. They keep the rules of the real supervisors. A
supervisor writes the exit record before it informs the agent. Every supervisor kills its job before
the lease ends, whether an agent is alive or not.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from libs.common.devices import mig
from libs.common.model import AttemptRef, Gpu, GpuHold, GpuId
from services.node_agent.core.observations import Exit
from services.node_agent.core.standby import port_after
from services.node_agent.core.state import key_of
from services.node_agent.directories import protocol as protocol
from services.node_agent.drivers.simulated_mig import Instances
from tests.sim.behaviour import Behaviour
from tests.sim.broker import SimBroker
from tests.sim.clock import SimClock
from tests.sim.disk import Disk
from tests.sim.hangs import LOST, SimWatchdog
from tests.sim.loop import VirtualLoop
from tests.sim.truth import Running, Truth
from tests.sim.weather import Weather

KILL_BEFORE_S: Final = 0.5
DIES_IN_S: Final = 0.02
PROBE_S: Final = 0.002
SLEEP_MAX_S: Final = 1.0
# The agent waits this long for a supervisor that should kill its job.
OVERRULED_S: Final = 5.0
KILL: Final = 9
# Signal 10 makes a simulated job save its work.
SAVE: Final = 10
GPU_MEMORY: Final = 80 << 30
CARD: Final = "H100 80GB"
# CPUs of a machine for each device, and the socket of each pair of devices.
CPUS_MILLI: Final = 1_500
# Longest time until a device is clean.
RELEASE_MS: Final = 3_000
SOCKETS: Final = (0, 1)


class Listener(Protocol):
    """The agent that runs now, if any."""

    def exited(self, ref: AttemptRef, end: Exit) -> None: ...

    def acts(self) -> bool: ...

    def guard_changed(self, missing: str) -> None: ...


class Supervised:
    """A living supervisor with its job's process."""

    def __init__(
        self, machine: "Machine", ref: AttemptRef, argv: Sequence[str], running: Running
    ) -> None:
        self.machine = machine
        self.disk = machine.disk
        self.ref = ref
        self.behaviour = Behaviour.parse(argv)
        self.running = running
        self.broker = machine.brokers[-1]
        self.reason = "exited"
        self.signal = 0
        self.timers: list[asyncio.TimerHandle] = []
        self.lease_timer: asyncio.TimerHandle | None = None
        self.guard_timer: asyncio.TimerHandle | None = None
        self.kill_at_s = float("inf")

    def begin(self) -> None:
        self._later(self.behaviour.duration_ms / 1e3, self._exit)
        if self.machine.enforces_lease and not self.disk.jobs[self.ref].ignore_lease:
            self._watch_lease()
        if not self.disk.jobs[self.ref].ignore_lease:
            self.machine.watchdog.guard(self)

    def stop(self, signal: int, grace_s: float, reason: str = "stopped") -> None:
        """Send the signal, unless it was the last one sent. A later stop can only bring the kill
        forward. A supervisor that hangs obeys later; its agent kills one that should kill.
        """
        if self.machine.hang_s:
            if signal == KILL:
                self._later(OVERRULED_S, lambda: self.machine.end_supervisor(self))
            self._later(self.machine.hang_s, lambda: self.stop(signal, grace_s, reason))
            return
        self.reason = reason if self.reason == "exited" else self.reason
        if signal != self.signal:
            self.signal = signal
            if signal == SAVE and self.behaviour.saves_ms:
                self._later(self.behaviour.saves_ms / 1e3, self._save)
            elif signal != 9 and not self.behaviour.ignores_term:
                self._later(DIES_IN_S, self._exit)
        wait_s = 0.0 if signal == 9 else grace_s
        if self.machine.loop.now + wait_s < self.kill_at_s:
            self.kill_at_s = self.machine.loop.now + wait_s
            self._later(wait_s + DIES_IN_S, self._killed)

    def _save(self) -> None:
        self.disk.jobs[self.ref].checkpointed_ns = self.machine.clock.wall_ns()

    def vanish(self) -> None:
        """End the process without a record, because the machine died."""
        for timer in self.timers:
            timer.cancel()
        for timer in (self.lease_timer, self.guard_timer):
            if timer is not None:
                timer.cancel()
        self.machine.truth.end(self.running)
        self.broker.died(key_of(self.ref))

    def _killed(self) -> None:
        self.signal = 9
        self._exit()

    def _exit(self) -> None:
        if self.machine.hang_s and not self.signal:  # the job runs as long as its supervisor hangs
            self._later(self.machine.hang_s, self._exit)
            return
        self.vanish()
        if self.reason == "exited":
            end = Exit(executed=True, exit_code=self.behaviour.exit_code)
        else:
            end = Exit(executed=True, exit_code=None, signal=self.signal, reason=self.reason)
        ran_ns = self.machine.clock.boot_ns() - self.disk.jobs[self.ref].began_ns
        self.machine.ended(self, msgspec.structs.replace(end, run_ms=-(-ran_ns // 1_000_000)))

    def _watch_lease(self) -> None:
        """Check the lease at each deadline and at least once per second, because it may be
        shortened.

        The lease watchdog ends a job whose supervisor hangs.
        """
        if self.machine.hang_s:
            self.lease_timer = self.machine.later(self.machine.hang_s, self._watch_lease)
            return
        left_s = self.machine.lease_left_s(self.disk)
        if left_s <= self.disk.notice_s:
            self.stop(15, max(0.0, left_s - KILL_BEFORE_S - DIES_IN_S), "lease_expired")
        else:
            self.lease_timer = self.machine.later(
                min(SLEEP_MAX_S, left_s - self.disk.notice_s), self._watch_lease
            )

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.timers.append(self.machine.later(delay_s, act))


class Machine:
    """One node's hardware.

    `boot` counts its boots. The lease file has no meaning to a later boot.
    """

    # Planted bugs switch these off.
    enforces_lease = True
    honours_marker = True

    def __init__(
        self, loop: VirtualLoop, node_id: str, gpus: int, truth: Truth, weather: Weather, seed: int
    ) -> None:
        self.loop = loop
        self.node_id = node_id
        self.truth = truth
        self.weather = weather
        self.random = random.Random(f"machine {node_id} {seed}")
        self.gpus = tuple(_gpu(node_id, index) for index in range(gpus))
        self.disks = 0
        self.disk = self._new_disk()
        self.clock = SimClock(loop)
        self.context = contextvars.Context()
        self.held_by: Callable[[str, int, str], tuple[GpuHold, ...]] = (
            lambda job_id, attempt, node_id: ()
        )
        # Virtual time until which a process has the device open.
        self.kept_until: dict[GpuId, float] = {}
        # Its driver takes seconds for each answer until then (`deep.py`).
        self.slow_until = 0.0
        self.slow_dice = random.Random(f"driver {node_id} {seed}")
        # Power limits (mW) that the driver of the current agent has set.
        self.capped: dict[GpuId, int] = {}
        # Cards out of MIG mode.
        self.uncut: dict[GpuId, None] = {}
        self.instances: dict[GpuId, Instances] = {gpu.uuid: {} for gpu in self.gpus}
        self.agent: Listener | None = None
        self.supervised: dict[AttemptRef, Supervised] = {}
        # Supervisors of a lost state directory; no agent will ever find them.
        self.forsaken: list[Supervised] = []
        # Bytes of resident data, and deaths of engines with a standby.
        self.resident, self.deaths = dict[str, int](), dict[str, int]()
        self.up = False
        self.boot = 0
        # The last one is the present agent's.
        self.brokers: list[SimBroker] = []
        self.begin_broker()
        # Virtual time until which supervisors hang.
        self.hang_until = 0.0
        self.watchdog = SimWatchdog(self)

    @property
    def hang_s(self) -> float:
        """The seconds for which supervisors hang from now on."""
        return max(0.0, self.hang_until - self.loop.now)

    def begin_broker(self) -> None:
        host_bytes = len(self.gpus) << 30
        self.brokers.append(SimBroker(self.node_id, self.gpus, host_bytes, self.later))

    def power_on(self, skew_s: float) -> None:
        self.up = True
        self.boot += 1
        self.hang_until = 0.0
        self.watchdog.begin()
        self.disk.lease_ns = 0
        self.clock = SimClock(
            self.loop,
            skew_s,
            self.loop.now - self.random.uniform(5.0, 50.0),
            self.random.uniform(0.999, 1.001),
        )

    def power_off(self, lose_disk: bool) -> None:
        """Stop everything at once: no process writes a record or informs another."""
        self.up = False
        for supervised in [*self.supervised.values(), *self.forsaken]:
            supervised.vanish()
        for instances in self.instances.values():
            instances.clear()
        self.supervised.clear()
        self.forsaken.clear()
        self.brokers.clear()
        self.begin_broker()
        self.resident.clear()
        if lose_disk:
            self.disk = self._new_disk()

    def reinstall(self) -> None:
        """Start the next agent with an empty state directory.

        The previous agent's supervisors continue under its lease.
        """
        self.forsaken += self.supervised.values()
        self.brokers[-1].lose_agent()
        self.begin_broker()
        self.supervised.clear()
        self.disk = self._new_disk()

    def _new_disk(self) -> Disk:
        self.disks += 1
        return Disk(f"{self.node_id}-disk-{self.disks}")

    def kill_supervisor(self) -> None:
        """Kill one supervisor together with its job.

        Only the agent writes its exit record, now or when it comes back.
        """
        for supervised in self.supervised.values():
            self.end_supervisor(supervised)
            return

    def end_supervisor(self, supervised: Supervised) -> None:
        """Kill a supervisor together with its job."""
        supervised.vanish()
        self.ended(supervised, LOST)

    def running_on(self, uuid: GpuId) -> bool:
        """Return whether a process of this boot has the device."""
        return self.is_left(uuid) or any(
            hold.uuid == uuid for one in self.supervised.values() for hold in one.running.gpus
        )

    def is_left(self, uuid: GpuId) -> bool:
        """Return whether a job that the current agent does not know has the device."""
        return any(hold.uuid == uuid for one in self.forsaken for hold in one.running.gpus)

    def inventory(self) -> tuple[Gpu, ...]:
        """Return the devices as they are now."""
        return tuple(
            replace(gpu, mig_profiles=()) if gpu.uuid in self.uncut else gpu for gpu in self.gpus
        )

    @property
    def boot_id(self) -> str:
        return f"{self.node_id}-boot-{self.boot}"

    def lease_left_s(self, disk: Disk) -> float:
        return (disk.lease_ns - self.clock.boot_ns()) / 1e9 / self.clock.rate

    def later(self, delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Schedule `act` outside any process, so that no agent's end or pause stops it."""
        return self.loop.call_later(max(0.0, delay_s), act, context=self.context)

    def fork(self, ref: AttemptRef, argv: Sequence[str]) -> bool:
        """Let a supervisor claim the attempt and start its process; return False if it started
        nothing.
        """
        files = self.disk.jobs[ref]
        if files.claimed or files.exit is not None:
            return False
        if (
            self.enforces_lease
            and not files.ignore_lease
            and self.lease_left_s(self.disk) <= self.disk.notice_s
        ):
            files.exit = Exit(executed=False, exit_code=None, reason="lease_expired")
            return False
        files.claimed = True
        files.began_ns = self.clock.boot_ns()
        gpus = self.held_by(ref.job_id, ref.attempt, self.node_id)
        running = Running(
            job_id=ref.job_id,
            attempt=ref.attempt,
            node_id=self.node_id,
            boot=self.boot,
            gpus=gpus,
            began_s=self.loop.now,
        )
        supervised = self.supervised[ref] = Supervised(self, ref, argv, running)
        self.truth.begin(running)
        supervised.begin()
        self.brokers[-1].began(key_of(ref))
        return True

    async def probe(
        self, address: str, port: int, path: str, within_s: float = 0, key: str | None = ""
    ) -> str:
        """Probe a server on this machine as `services.node_agent.jobs.probe` does."""
        await asyncio.sleep(PROBE_S)
        for ref, supervised in self.supervised.items():
            own = supervised.behaviour.port
            if own and port == port_after(int(own), self.deaths.get(key_of(ref), 0)):
                age_ms = 1e3 * (self.loop.now - supervised.running.began_s)
                return "" if age_ms >= supervised.behaviour.ready_ms else "status 503"
        return "no connection"

    def ended(self, supervised: Supervised, end: Exit) -> None:
        """Write the exit record, then inform the agent if there is one."""
        supervised.disk.jobs[supervised.ref].exit = end
        if supervised in self.forsaken:
            self.forsaken.remove(supervised)
            return
        del self.supervised[supervised.ref]
        if self.agent is not None:
            self.agent.exited(supervised.ref, end)


def identity_of(machine: Machine) -> protocol.Machine:
    """Return what the agent reports about its machine; machines with neighbouring names share a
    rack.
    """
    return protocol.Machine(
        release_ms=RELEASE_MS,
        node_id=machine.node_id,
        address=machine.node_id,
        boot_id=machine.boot_id,
        cpus_milli=CPUS_MILLI * len(machine.gpus),
        memory_bytes=len(machine.gpus) << 30,
        rack=f"r{int(machine.node_id[1:]) // 2}",
        spine="x",
        sockets=SOCKETS,
        keeps=True,
        fence_ms=machine.watchdog.fence.seconds * 1_000,
    )


def _gpu(node_id: str, index: int) -> Gpu:
    """Return a card that supports MIG; each pair of cards shares a switch and a NUMA node."""
    uuid = GpuId(f"gpu-{node_id}-{index}")
    pair = {"numa": index // 2, "switch": f"s{index // 2}", "links": "all"}
    return Gpu(
        uuid=uuid,
        index=index,
        vendor="simulated",
        model="Simulated H100",
        memory_bytes=GPU_MEMORY,
        compute_capability=(9, 0),
        mig_profiles=tuple(mig.CARDS[CARD]),
        **pair,
    )  # type: ignore[arg-type]
