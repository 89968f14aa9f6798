"""The agent of one node: it reports what happened to the pure core and carries out its actions.

It never reads the log. The job directories are its outbox, and the last commit of its own subject
fences it. Everything it touches is an argument, so the simulation runs this very class. Tests:
tests/integration/test_agent.py.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Final, assert_never

import msgspec

from libs.common import subjects
from libs.common.errors import Fenced
from libs.common.facts import UNDECODABLE
from libs.common.messages import Orders
from libs.common.model import AttemptRef, NodeId, attempt_key
from libs.common.process.cancellation import before
from libs.common.process.clock import Clock
from libs.common.process.pulse import CORE, HEARTBEATS, NO_PULSE
from libs.common.process.serving_tasks import ServingTasks
from libs.common.transport.bus import Bus
from libs.common.transport.kv import OutputStore
from libs.common.transport.log import Log
from libs.common.transport.writer import Writer, was_stored
from services.node_agent.channels.channels import Channels
from services.node_agent.core import actions as a
from services.node_agent.core import controls
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import apply
from services.node_agent.core.decide import decide, next_due_ns
from services.node_agent.desired import DesiredState
from services.node_agent.device_work import DeviceWork
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories.keeping_files import keep_devices
from services.node_agent.directories.protocol import JobSupervisors, Machine, Memory, Prober
from services.node_agent.drivers import Driver
from services.node_agent.fabric.probes.prober import FabricProber, NoProber, report
from services.node_agent.health import lost_devices
from services.node_agent.heartbeats import Heartbeats
from services.node_agent.incarnation import next_incarnation
from services.node_agent.jobs import checkpoints
from services.node_agent.jobs.answers import Answers
from services.node_agent.jobs.beginning import Ground, begin
from services.node_agent.jobs.closing import Closing
from services.node_agent.jobs.files import FileAnswers
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.probe import ReplicaProbes
from services.node_agent.links.links import Links
from services.node_agent.machine.trusted_authority import TrustedAuthority, listen
from services.node_agent.peers.peers import Peers
from services.node_agent.recording import record
from services.node_agent.registration import fenced_words, registration_facts

DRAIN_S: Final = 5.0
DRAIN_LOOK_S: Final = 0.02

_orders = msgspec.msgpack.Decoder(Orders)

logger = logging.getLogger(__name__)


class Agent:
    """The agent of one node.

    `run` is its whole life: it returns after `stop`, and raises Fenced if another agent writes
    under this node's name. `links` takes links of other agents, `authority` new certificate
    authorities; None: this node takes none.
    """

    links: Links | None = None
    authority: TrustedAuthority | None = None

    def __init__(
        self,
        machine: Machine,
        log: Log,
        bus: Bus,
        clock: Clock,
        jobs: JobSupervisors,
        driver: Driver,
        outputs: OutputStore,
        memory: Memory,
        probe: Prober,
        peers: Peers | None = None,
        channels: Channels | None = None,
        sampling: Sampling | None = None,
        means: Means | None = None,
        prober: FabricProber | None = None,
    ) -> None:
        self.node_id = NodeId(machine.node_id)
        self.machine = machine
        self.bus = bus
        self.clock = clock
        self.jobs = jobs
        self.driver = driver
        self.memory = memory
        self.probes = ReplicaProbes(probe, machine, bus)
        self.peers = peers
        self.prober = prober or NoProber()
        self.sampling = sampling or Sampling(driver, 0)
        self.means = means or Means()
        self.state = s.begin(self.node_id, 0, ())
        self.state.release_ns = machine.release_ms * 1_000_000
        self.inbox, self.wake = deque[o.Observation](), asyncio.Event()
        self.pulse = NO_PULSE
        self.alarm: asyncio.TimerHandle | None = None
        self.desired = DesiredState(bus, self.node_id)
        self.registered = asyncio.Event()
        self.closing = Closing(self.node_id, jobs, outputs, self.means.resident)
        self.files = FileAnswers(machine.node_id, bus, jobs.root_of)
        self.answers = Answers(
            node_id=machine.node_id,
            bus=bus,
            clock=clock,
            jobs=jobs,
            expected=self._is_known,
            channels=channels,
            served=lambda key: self.tell(o.ReplicaAnswered(key)),
        )
        own = subjects.node(machine.node_id)
        self.writer = Writer(log, clock, own, seen=lambda: self.state.desired_seq)
        self.heartbeats = self._new_heartbeats()
        self.devices = DeviceWork(
            machine,
            driver=driver,
            jobs=jobs,
            memory=memory,
            means=self.means,
            sampling=lambda: self.sampling,
            state=lambda: self.state,
            tell=self.tell,
        )

    def _new_heartbeats(self) -> Heartbeats:
        return Heartbeats(
            self.node_id,
            interval_ms=self.machine.heartbeat_ms,
            bus=self.bus,
            clock=self.clock,
            writer=self.writer,
            peers=self.peers,
            state=lambda: self.state,
            tell=self.tell,
            spawn=self._spawn,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Adopt the jobs on disk, register, and obey orders until `stop`.

        Then jobs live on under their supervisors, and no fact is lost. Raises Refused (another
        agent uses the state directory, or the node was removed), Fenced (another writer),
        Unavailable (no log), or Stopped.
        """
        adopted = await self.jobs.start(self.tell)
        try:
            await self._serve(adopted, stop)
        except Fenced as error:
            await self._kill_all()
            raise Fenced(
                fenced_words(self.machine, self.writer.subject, self.peers, error)
            ) from error
        finally:
            self._close_answers()
            if self.alarm is not None:
                self.alarm.cancel()
            self.files.close()
            if self.links is not None:
                await self.links.close()
            if self.answers.channels is not None:
                await self.answers.channels.close()
            await self.means.close()
            await self.prober.close()
            await self.jobs.close()

    async def _kill_all(self) -> None:
        """Kill all jobs of a fenced agent: the cluster counts every attempt here as lost."""
        for ref in s.accounted(self.state):
            await self.jobs.kill(ref)

    def tell(self, seen: o.Observation) -> None:
        """Report an observation; the core applies it in a moment."""
        self.inbox.append(seen)
        self.wake.set()

    async def _serve(self, adopted: Sequence[o.Adopted], stop: asyncio.Event) -> None:
        self.tasks = ServingTasks()
        self.tasks.serve(self._work_until(stop, adopted), "agent")
        await self.tasks.ended()

    async def _work_until(self, stop: asyncio.Event, adopted: Sequence[o.Adopted]) -> None:
        await before(stop, self._open(adopted))
        serve = self.tasks.serve
        serve(self.writer.run(), "writer")
        serve(self._pump(), "core")
        serve(self._send_heartbeats(), "heartbeats")
        serve(self.closing.run(), "closing")
        serve(checkpoints.watch(lambda: self.state, self.jobs, self.tell), "checkpoints")
        serve(self.devices.watch_returning(), "returning")
        serve(self.devices.filters.watch(), "device filters")
        serve(self.sampling.run(), "sampling")
        serve(self.means.resident.watch(lambda: self.state), "standbys")
        serve(self.devices.watch_jobs(), "hangs")
        serve(self.devices.watch_use(), "use of devices")
        serve(self.jobs.watchdog.run(), "lease watchdog")
        await stop.wait()
        await self._drain()

    async def _open(self, adopted: Sequence[o.Adopted]) -> None:
        await self.devices.open(self.machine.boot_id)
        await self.bus.subscribe(subjects.orders(self.node_id), self._on_orders)
        await self.answers.listen()
        await self.files.listen()
        if self.links is not None:
            await self.links.listen(self.bus)
        await listen(self.authority, self.bus, self.node_id)
        await self.devices.listen(self.bus, self.node_id)
        await self.means.listen(self.bus, self.node_id)
        await self.means.adopt(adopted, self.tell, self.devices.inventory)
        living = [s.key_of(found.ref) for found in adopted]
        await self.means.resident.start(
            self.tell, lambda: self.state.keeps, living, self.devices.inventory
        )
        await self._register(await self._first_incarnation(), adopted)
        self._spawn(self.devices.clear_instances())

    async def _drain(self) -> None:
        """Finish what is under way, for at most `DRAIN_S`; the directories hold the rest."""
        self._close_answers()
        deadline_ns = self.clock.boot_ns() + int(DRAIN_S * 1e9)
        while (
            self.tasks.work or self.inbox or not self.writer.idle
        ) and self.clock.boot_ns() < deadline_ns:
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _first_incarnation(self) -> int:
        """Return a number above those that the state directory and the log know of this node."""
        await self.writer.attach()
        return next_incarnation(await self.memory.load(), self.writer.attached_to)

    async def _register(self, incarnation: int, adopted: Sequence[o.Adopted]) -> None:
        """Begin an incarnation: queue NodeRegistered and the troubles of the devices before any
        other fact.
        """
        await self.memory.store(incarnation)
        await lost_devices.keep(self.memory, self.driver, self.machine.boot_id)
        self.writer.epoch = incarnation
        self.state = s.begin(self.node_id, incarnation, adopted, self.state)
        self.state.devices.count = len(self.devices.inventory)
        controls.begin(self.state.controls, self.devices.inventory)
        self.registered.clear()
        facts = await registration_facts(
            self.machine,
            self.state,
            self.devices,
            self.memory,
            means=self.means,
            peers=self.peers,
            now_ns=self.clock.boot_ns(),
            prober=self.prober,
            watchdog=self.jobs.watchdog,
        )
        if self.peers is not None:
            self.peers.registered(incarnation)
        registered = self.writer.put(facts)
        registered.add_done_callback(self._was_registered)
        self.heartbeats.registered_as(registered)
        self.wake.set()

    def _was_registered(self, future: asyncio.Future[int]) -> None:
        if was_stored(future):
            self.registered.set()

    async def _pump(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            self.pulse.beat(CORE)
            for _ in range(len(self.inbox)):
                apply(self.state, self.inbox.popleft(), self.clock.boot_ns())
            await self._act()

    async def _act(self) -> None:
        """Carry out actions until none is due, then set the alarm for the next one."""
        due_ns: int | None = 0
        while due_ns is not None and due_ns <= (now_ns := self.clock.boot_ns()):
            for action in decide(self.state, now_ns):
                await self._carry_out(action)
            due_ns = next_due_ns(self.state)
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        if due_ns is not None:
            self.alarm = asyncio.get_running_loop().call_later(
                (due_ns - now_ns) / 1e9, self.wake.set
            )

    async def _carry_out(self, action: a.Action) -> None:
        """Carry out one action.

        Slow work is a task of its own. Only registrations and the file of troubles are waited for.
        """
        match action:
            case a.ExtendLease(deadline_ns, notice_ns):
                self.jobs.extend_lease(deadline_ns, notice_ns)
            case a.ReplaceLease(deadline_ns, notice_ns):
                self.jobs.replace_lease(deadline_ns, notice_ns)
            case a.StartJob(order):
                key = attempt_key(order.job_id, order.attempt)
                self._spawn(begin(self._ground(), order, lambda: s.is_wanted(self.state, key)))
            case a.StopJob(ref, signal, grace_ms):
                self._spawn(self.jobs.stop(ref, signal, grace_ms))
            case a.KillJob(ref):
                self._spawn(self.jobs.kill(ref))
            case a.CheckRelease():
                self._spawn(self.devices.check_release(action))
            case a.ProbeReplica():
                self._spawn(self.probes.probe(action, self.tell))
            case a.ForgetJob():
                self.probes.forget(action.ref)
                self.means.forget(s.key_of(action.ref))
                self._spawn(self.closing.close(action))
            case a.KeepData():
                self._spawn(self.means.resident.carry_out(action))
            case a.Record():
                self._record(action)
            case a.ResetDevice():
                self._spawn(self.devices.reset(action))
            case a.ControlDevice(order):
                self._spawn(self.devices.control(order))
            case a.SaveEvidence():
                self._spawn(self.devices.save_evidence(action))
            case a.KeepDevices(data):
                await keep_devices(self.memory, data, lambda: self.state, self.wake)
            case a.AskDesired():
                self._spawn(self._ask_desired())
            case a.ProbeFabric(order):
                self._spawn(report(self.prober, self.node_id, order, self.writer))
            case a.RegisterAgain(reason):
                logger.warning("node %s registers again: %s", self.node_id, reason)
                await self._register(
                    max(self.state.incarnation, self.heartbeats.log_incarnation) + 1, ()
                )
            case _:
                assert_never(action)

    def _ground(self) -> Ground:
        return Ground(
            node_id=self.node_id,
            machine=self.machine,
            driver=self.driver,
            devices=self.devices,
            means=self.means,
            jobs=self.jobs,
            bus=self.bus,
            tell=self.tell,
        )

    def _close_answers(self) -> None:
        self.answers.closed = self.heartbeats.closed = True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self.tasks.spawn(work)

    def _record(self, action: a.Record) -> None:
        self.means.spans.recorded(action.facts, self.clock.wall_ns())
        record(self.writer, action, self.tell)

    async def _on_orders(self, subject: str, data: bytes) -> bytes | None:
        if not self.answers.closed:
            try:
                self.tell(o.OrdersReceived(_orders.decode(data)))
            except UNDECODABLE as error:
                logger.warning("dropped orders that cannot be decoded: %s", error)
        return None

    def _is_known(self, ref: AttemptRef) -> bool:
        return s.key_of(ref) in self.state.attempts

    async def _send_heartbeats(self) -> None:
        await self.registered.wait()
        await self.heartbeats.run(self._show_life)

    def _show_life(self) -> None:
        self.pulse.beat(HEARTBEATS)
        self.wake.set()  # so that the core shows that it works too

    async def _ask_desired(self) -> None:
        desired = await self.desired.ask(self.state.incarnation)
        if desired is not None:
            self.tell(o.DesiredReceived(desired))
