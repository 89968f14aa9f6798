"""One run: the real services and the real shell on a virtual loop, over a faulty log, bus and
machines.

Checkers watch it. `simulate(plan)` is a pure function of the plan. A service may end only by a
known error (MusterError). Any other end is a violation: its supervisor would hide the bug.
"""

import asyncio
import gc
import logging
import random
from collections.abc import Callable
from typing import Any, Final

from libs.common import facts as f
from libs.common import fold
from libs.common.devices.error_rows import catalogue
from libs.common.errors import Corrupt, MusterError
from libs.common.model import GpuHold
from libs.common.reading import read
from libs.common.state.cluster import Cluster, live_jobs
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log import Entry
from libs.common.transport.pages import MemoryPages
from services.audit.trim.trim import Policy
from services.audit.trim.trimmer import Trimmer
from services.node_agent.core.devices import Policy as DevicePolicy
from services.node_agent.peers.peers import among
from services.node_agent.service import Agent
from services.quota.state import State as QuotaState
from services.scheduler.service import Scheduler
from services.scheduler.state.state import State as SchedulerState
from tests.sim import (
    allocations,
    controls,
    deep,
    devices,
    fabric,
    faults,
    gateways,
    leading,
    operators,
    strikes,
)
from tests.sim.auditor import Archive, Auditor, keep_trimming
from tests.sim.bus import CONTROL, Network
from tests.sim.client import Client
from tests.sim.decisions import DecisionTimes
from tests.sim.faults import Blow, Plan
from tests.sim.greed import with_greed
from tests.sim.lock_users import LockUsers
from tests.sim.log import SimSnapshots, SimStream
from tests.sim.loop import Stuck, VirtualLoop
from tests.sim.loop import run as run_loop
from tests.sim.machine import Machine as SimMachine
from tests.sim.machine import identity_of
from tests.sim.meter import Meter
from tests.sim.peers import peers_of
from tests.sim.residents import means_of, unwanted
from tests.sim.result import Found, Result, result_of
from tests.sim.servers import Servers
from tests.sim.slot import Slot, cause
from tests.sim.supervisors import SimDriver, SimMemory, SimSupervisors
from tests.sim.truth import Running, Truth
from tests.sim.weather import Weather
from tests.sim.workload import Shape, workload

# Virtual seconds after the storm within which every job must have ended.
CALM_MAX_S: Final = 400.0
# Once every job has ended, the cluster comes to rest: within a pause, a new term and some
# heartbeats, a fabric test, or when the last node is back.
QUIET_MAX_S: Final = 30.0
# That node waits for its next start, registers, hears that there is a new roster and names it: at
# most a heartbeat each.
BACK_MAX_S: Final = 14.0
LOOK_EVERY_S: Final = 0.25
HEALTH: Final = DevicePolicy(catalogue=catalogue())


class World:
    """All parts of one run."""

    def __init__(self, loop: VirtualLoop, plan: Plan, checkers: tuple[type, ...]) -> None:
        self.loop = loop
        self.plan = plan
        self.weather = Weather(plan.seed, plan.rates)
        self.weather.now = lambda: loop.now
        self.weather.stormy = plan.storm_s > 0
        self.dice = random.Random(f"world {plan.seed}")
        self.meter = Meter(any(blow.kind == faults.GREEDY for blow in plan.blows))
        self.stream = SimStream(self._stored, self.meter.busy_s)
        self.stalled_until = self.releases_at_s = 0.0
        self.decided = DecisionTimes()
        self.leading_epoch = 0
        self.quota_epoch = 0
        self.network = Network(self.weather)
        self.truth = Truth()
        self.archive = Archive()
        self.snapshots = SimSnapshots(self.stream)
        self.rates = MemoryPages()
        self.reference = Cluster()
        self.placements: dict[tuple[str, int], f.JobPlaced] = {}
        self.acked: list[tuple[int, str, bytes]] = []
        self.acts = with_greed(plan, workload(plan.seed, Shape(plan.nodes), plan.storm_s))
        self.acts_acked: set[int] = set()
        self.disks_lost: dict[str, None] = {}
        self.lying = frozenset(blow.target for blow in plan.blows if blow.kind == faults.LYING)
        self.found: Found | None = None
        self.capacities = fabric.capacities_of(plan.seed, len(plan.nodes))
        self.cause: BaseException | None = None
        self.machines = {
            f"n{index}": self._machine(f"n{index}", gpus) for index, gpus in enumerate(plan.nodes)
        }
        self.checkers = [checker(self) for checker in checkers]
        self.truth.watchers.append(self._began)
        self.slots = self._slots()
        self.servers = Servers(self)
        self.lock_users = LockUsers(self, plan.lock_users)

    # -- the parts

    def _machine(self, node_id: str, gpus: int) -> SimMachine:
        machine = SimMachine(
            self.loop, node_id, gpus, self.truth, weather=self.weather, seed=self.plan.seed
        )
        machine.held_by, machine.watchdog.fence = self._holds, self.plan.fence
        self.power_on(machine)
        return machine

    def _slots(self) -> dict[str, Slot]:
        slots = [
            Slot(self, name, CONTROL, leading.run_scheduler)
            for name in ("scheduler-a", "scheduler-b")
        ]
        slots += [
            *(Slot(self, name, CONTROL, leading.run_quota) for name in leading.QUOTAS),
            Slot(self, "gateway", CONTROL, self._gateway),
        ]
        slots += [Slot(self, "audit", CONTROL, self._audit)]
        if self.plan.trim is not None:
            slots += [Slot(self, "trimmer", CONTROL, self._trimmer)]
        slots += [Slot(self, f"agent-{node_id}", node_id, self._agent) for node_id in self.machines]
        return {slot.name: slot for slot in slots}

    async def _gateway(self, slot: Slot) -> None:
        slot.service = (
            gateways.follower_of(slot) if self.plan.snapshot_every else self._recorder(slot)
        )
        await slot.service.run()

    def _recorder(self, slot: Slot) -> Client:
        return Client(
            log=slot.open_log(),
            clock=slot.clock,
            instance=f"g{slot.starts}",
            acts=self.acts,
            acked=self.acts_acked,
        )

    async def _audit(self, slot: Slot) -> None:
        await Auditor(slot.open_log(), self.archive).run()

    async def _trimmer(self, slot: Slot) -> None:
        assert self.plan.trim is not None
        policy = Policy(self.plan.trim.keep_commits, 0, 100)
        trimmer = Trimmer(
            log=slot.open_log(),
            archive=self.archive,
            store=self.snapshots,
            bus=slot.open_bus(),
            clock=slot.clock,
            policy=policy,
        )
        await keep_trimming(trimmer, self.plan.trim.every_s, self.weather.tell)

    async def _agent(self, slot: Slot) -> None:
        machine = self.machines[slot.host]
        slot.clock = machine.clock
        jobs, memory = SimSupervisors(machine, slot.process), SimMemory(machine, slot.process)
        identity = identity_of(machine)
        log, bus, peers = (
            slot.open_log(),
            slot.open_bus(),
            peers_of(machine, self.network, slot.process),
        )
        driver, outputs = SimDriver(machine, slot.process), MemoryOutputs()
        slot.service = Agent(
            machine=identity,
            log=log,
            bus=bus,
            clock=machine.clock,
            jobs=jobs,
            driver=driver,
            outputs=outputs,
            memory=memory,
            probe=machine.probe,
            peers=peers,
            means=means_of(machine),
            prober=fabric.SimProber(self.network, slot.host, self.capacities),
        )
        slot.service.state.devices.policy = HEALTH
        await among(peers, machine.disk.incarnation, slot.service.run(asyncio.Event()))

    def skew(self) -> float:
        return self.dice.uniform(-self.plan.skew_max_s, self.plan.skew_max_s)

    def host_up(self, host: str) -> bool:
        return host not in self.machines or self.machines[host].up

    def leading(self) -> list[tuple[str, Scheduler]]:
        """Return the scheduler of the current term, if it is alive."""
        epoch = self.reference.epoch
        found = [(name, slot.service) for name, slot in self.slots.items() if slot.process.alive]
        return [
            (name, service)
            for name, service in found
            if isinstance(service, Scheduler) and service.state.epoch == epoch
        ]

    def acknowledged(self) -> list[tuple[str, Cluster]]:
        """Return the folds of the leader that contain only facts read from the log."""
        return [(name, scheduler.acked) for name, scheduler in self.leading()]

    def ahead(self) -> list[tuple[str, SchedulerState | QuotaState]]:
        """Return the states that work ahead of the log."""
        return [
            *((name, scheduler.state) for name, scheduler in self.leading()),
            *((name, quota.state) for name, quota in leading.quotas(self)),
        ]

    # -- what is watched

    def violate(self, checker: str, message: str, cause: BaseException | None = None) -> None:
        """Record the first broken rule, which ends the run."""
        if self.found is None:
            self.found = Found(checker, message, self.loop.now)
            self.cause = cause

    def _stored(self, entry: Entry) -> None:
        """Update the reference fold, fact by fact, as the log stores a commit."""
        cluster = self.reference
        commit = read(cluster.writers, entry.subject, entry.data)
        try:
            fold.check_place(cluster, entry.seq, entry.subject, commit)
        except Corrupt as error:
            self.violate("commits_are_numbered", str(error))
        stamp = fold.enter(cluster, entry.seq, entry.subject, commit)
        for fact in commit.facts:
            for checker in self.checkers:
                checker.before(cluster, fact, stamp, commit)
            change = self.meter.apply(cluster, fact, stamp)
            if isinstance(fact, f.QuotaTermBegan):
                self.quota_epoch = entry.seq
            if isinstance(fact, f.JobPlaced):
                self.placements.setdefault((fact.job_id, fact.attempt), fact)
            for checker in self.checkers:
                checker.after(cluster, fact, stamp, commit, change)

    def _began(self, running: Running) -> None:
        for checker in self.checkers:
            checker.began(running)

    def _holds(self, job_id: str, attempt: int, node_id: str) -> tuple[GpuHold, ...]:
        placed = self.placements.get((job_id, attempt))
        members = placed.members if placed is not None else ()
        return next((member.gpus for member in members if member.node_id == node_id), ())

    # -- the run

    async def run(self) -> None:
        """Run the storm, the calm and the end."""
        self.loop.set_exception_handler(self._unhandled)
        keepers = [self.loop.create_task(slot.keep()) for slot in self.slots.values()]
        for blow in self.plan.blows:
            self.loop.call_at(blow.at_s, self.strike, blow)
        for at_s in allocations.LOOK_S:
            self.loop.call_at(at_s, allocations.extend, self)
        devices.begin(self)
        controls.begin(self)
        fabric.begin(self)
        await self._until(lambda: self.loop.now >= self.plan.storm_s, self.plan.storm_s + 1.0)
        self.clear()
        await self._until(self.all_ended, self.plan.storm_s + CALM_MAX_S)
        await self._until(
            self._quiet, max(self.loop.now + QUIET_MAX_S, self.plan.over_s + BACK_MAX_S)
        )
        for checker in self.checkers:
            if self.found is None:
                checker.finished()
        for slot in self.slots.values():
            slot.process.kill()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.wait(keepers)

    async def _until(self, done: Callable[[], bool], limit_s: float) -> None:
        while self.found is None and self.loop.now < limit_s and not done():
            operators.release_late_holds(self)
            await asyncio.sleep(LOOK_EVERY_S)

    def all_ended(self) -> bool:
        if len(self.acts_acked) < len(self.acts) or not self.lock_users.at_rest:
            return False
        return next(live_jobs(self.reference), None) is None and not self.truth.living()

    def _quiet(self) -> bool:
        """Return whether all is read, nothing is in flight, no memory is granted and every node is
        back.
        """
        settled = operators.all_nodes_settled(self.reference) and not unwanted(self)
        if self._has_grants() or not (settled and fabric.is_at_rest(self)):
            return False
        if len(self.archive.entries) < len(self.stream.entries):
            return False
        folds = [*self.acknowledged(), *((name, state.cluster) for name, state in self.ahead())]
        read = len(folds) >= 3 and all(cluster.seq == self.reference.seq for _, cluster in folds)
        return (
            read
            and not self.controls_left()
            and all(service.writer.idle for _, service in (*self.leading(), *leading.quotas(self)))
        )

    def _has_grants(self) -> bool:
        """Return whether a machine has granted memory; those that lie may keep theirs."""
        honest = [each for name, each in self.machines.items() if name not in self.lying]
        return any(broker.memory for machine in honest for broker in machine.brokers)

    def controls_left(self) -> list[str]:
        """Return the device controls that reachable agents have not applied or answered yet."""
        return controls.unanswered(
            self.reference, {name: machine.capped for name, machine in self.machines.items()}
        )

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = cause(context.get("exception"))
        if error is not None and not isinstance(error, MusterError):
            self.violate("no_service_dies_of_a_bug", f"{context.get('message')}: {error!r}", error)

    # -- what goes wrong

    def clear(self) -> None:
        """End the storm: join, power on and start everything again, except what lasts."""
        self.weather.stormy = False
        away = [blow.target for blow in self.plan.blows if blow.lasts]
        self.network.heal(away)
        deep.clear(self)
        self.stall(0.0)
        for slot in self.slots.values():
            slot.process.silent_until = 0.0
            if slot.name not in away and slot.held_until < operators.FOR_EVER:
                slot.held_until = min(slot.held_until, self.loop.now)
        for machine in self.machines.values():
            self.power_on(machine)

    def stall(self, length_s: float) -> None:
        """Stop all answers of the log for `length_s` from now on; 0 ends a stall."""
        self.stalled_until = self.loop.now + length_s
        for slot in self.slots.values():
            if slot.log is not None:
                slot.log.stalled_until = self.stalled_until

    def strike(self, blow: Blow) -> None:
        """Carry out one planned fault."""
        self.weather.tell(blow.kind, f"{blow.target} {blow.length_s:.2f} s")
        strikes.strike(self, blow)
        operators.see(self, blow)

    def power_on(self, machine: SimMachine) -> None:
        if not machine.up:
            machine.power_on(self.skew())


def simulate(plan: Plan, checkers: tuple[type, ...] | None = None) -> Result:
    """Run one plan and return its result."""
    from tests.sim.checkers import ALL

    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        world, _ = run_loop(_run(plan, ALL if checkers is None else checkers))
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
    return result_of(world)


async def _run(plan: Plan, checkers: tuple[type, ...]) -> World:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world = World(loop, plan, checkers)
    try:
        await world.run()
    except Stuck as error:
        world.violate("time_passes", str(error))
    return world
