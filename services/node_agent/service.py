"""The agent itself: it tells the pure core what happened, and carries out what the core asks for.

It never reads the log; the job directories are its outbox, and its own subject's last commit its
fence. Everything that it touches comes in as an argument, so the simulation runs this very class.
Tests: tests/integration/test_agent.py.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from typing import Final, assert_never

import msgspec

from libs.common import subjects
from libs.common.devices.device_controls import needs_free
from libs.common.errors import Fenced, Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages import REMOVED, ControlOrder, Heartbeat, Lease, Orders
from libs.common.model import Gpu, GpuId, NodeId, attempt_key
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
from services.node_agent.core import controls, devices
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import apply
from services.node_agent.core.decide import decide, next_due_ns
from services.node_agent.desired import fetch
from services.node_agent.devices.device_commands import Controlling, modes_of
from services.node_agent.devices.instances import Instances
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers import Driver
from services.node_agent.health import job_watch, lost_devices
from services.node_agent.health.operator_command import OperatorCommand
from services.node_agent.health.preflight import Preflight
from services.node_agent.health.resetting import reset
from services.node_agent.health.returning import idle, watch
from services.node_agent.health.scrubbing import Scrub
from services.node_agent.incarnation import next_incarnation
from services.node_agent.jobs import checkpoints
from services.node_agent.jobs.answers import Answers
from services.node_agent.jobs.beginning import Ground, begin
from services.node_agent.jobs.closing import Closing
from services.node_agent.jobs.files import FileAnswers
from services.node_agent.jobs.holders import slices_of_others, undivided
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.protocol import JobSupervisors, Machine, Memory, Prober
from services.node_agent.jobs.release import check
from services.node_agent.peers.peers import Peers
from services.node_agent.registration import check_stands, fenced_words, registration

# An answer is waited for during so much of a heartbeat's interval.
ANSWER_PART: Final = 0.8
# Until the first lease the agent reports so much more often, so many times.
EAGER_PART: Final = 0.1
EAGER_BEATS: Final = 20
# The driver's own deadline comes first.
CHECK_SLACK_S: Final = 2.0
DRAIN_S: Final = 5.0
DRAIN_LOOK_S: Final = 0.02

_orders = msgspec.msgpack.Decoder(Orders)
_lease = msgspec.msgpack.Decoder(Lease)
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Agent:
    """One node.

    `run` is its whole life: it returns after `stop`, and raises Fenced when another agent has its
    name.
    """

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
    ) -> None:
        self.machine = machine
        self.bus = bus
        self.clock = clock
        self.jobs = jobs
        self.driver = driver
        self.closing = Closing(NodeId(machine.node_id), jobs, outputs)
        self.memory = memory
        self.probe = probe
        self.peers = peers
        self.sampling = sampling or Sampling(driver, 0)
        self.means = means or Means()
        self.preflight = Preflight(driver, self.sampling, machine, lambda: self.state, self.tell)
        scrub = OperatorCommand(
            machine.scrub, machine.scrub_ms, machine.environment, lambda: self.inventory
        )
        self.scrub = Scrub(driver, scrub, lambda: self.state, self.tell)
        self.burn_in = OperatorCommand(
            machine.burn_in, machine.burn_in_ms, machine.environment, lambda: self.inventory
        )
        self.node_id = NodeId(machine.node_id)
        self.writer = Writer(
            log, clock, subjects.node(machine.node_id), seen=lambda: self.state.desired_seq
        )
        self.state = s.begin(self.node_id, 0, ())
        self.state.release_ns = machine.release_ms * 1_000_000
        self.check_s = machine.driver_answer_ms / 1_000 + CHECK_SLACK_S
        self.answers = Answers(
            machine.node_id,
            bus,
            clock,
            jobs,
            lambda ref: s.key_of(ref) in self.state.attempts,
            channels,
            self._served,
        )
        self.files = FileAnswers(machine.node_id, bus, jobs.root_of)
        self.inventory: Sequence[Gpu] = ()
        self.instances = Instances(
            driver, lambda: self.inventory, lambda key: slices_of_others(self.state, key)
        )
        self.ground = Ground(
            self.node_id,
            machine,
            driver,
            self.instances,
            self.means,
            jobs,
            bus,
            self.tell,
            self.preflight,
            self.scrub,
        )
        self.controlling = Controlling(driver, self.instances, self.tell)
        self.heartbeat_ms = machine.heartbeat_ms
        self.eager_beats = EAGER_BEATS
        self.granted = (0, 0)
        self.log_incarnation = 0
        self.inbox: deque[o.Observation] = deque()
        self.wake = asyncio.Event()
        self.pulse = NO_PULSE
        self.alarm: asyncio.TimerHandle | None = None
        self.asking = False
        self.registered = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Adopt what lives here, register, obey; after `stop` jobs live on under their supervisors,
        and no fact is lost.

        Raises Refused (another agent's state directory, or a removed node), Fenced (another
        writer), Unavailable (no log), or Stopped.
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
            self.answers.closed = True
            if self.alarm is not None:
                self.alarm.cancel()
            self.files.close()
            if self.answers.channels is not None:
                await self.answers.channels.close()
            await self.means.close()
            await self.jobs.close()

    async def _kill_all(self) -> None:
        """End all jobs of a fenced agent: the cluster holds every attempt here for lost."""
        for ref in s.accounted(self.state):
            await self.jobs.kill(ref)

    def tell(self, seen: o.Observation) -> None:
        """Something happened; the core hears of it in a moment."""
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
        serve(self._heartbeats(), "heartbeats")
        serve(self.closing.run(), "closing")
        serve(checkpoints.watch(lambda: self.state, self.jobs, self.tell), "checkpoints")
        serve(
            watch(
                lambda: self.state, self._checked, self._tried, self.tell, self.memory, self.driver
            ),
            "returning",
        )
        serve(self.sampling.run(), "sampling")
        serve(
            job_watch.watch(
                lambda: self.state, lambda: self.inventory, self.jobs, self.sampling, self.tell
            ),
            "hangs",
        )
        await stop.wait()
        await self._drain()

    async def _open(self, adopted: Sequence[o.Adopted]) -> None:
        self.driver.baseline |= await idle(self.memory, self.machine.boot_id)
        self.inventory = await lost_devices.look(
            self.driver, self.memory, self.state.devices, self.machine.boot_id
        )
        self.state.controls.modes = modes_of(self.driver, self.inventory)
        await self.bus.subscribe(subjects.orders(self.node_id), self._on_orders)
        await self.answers.listen()
        await self.files.listen()
        await self.bus.subscribe(
            subjects.ask_node(self.node_id, "topology"), self._on_topology, concurrent=True
        )
        await self.means.adopt(adopted, self.tell)
        await self._register(await self._first_incarnation(), adopted)
        self._spawn(
            self.instances.clear(
                [gpu.uuid for gpu in lost_devices.shown(self.driver, self.inventory)], self.tell
            )
        )

    async def _drain(self) -> None:
        """What is being launched or recorded is brought to its end, as far as that is quick; the
        directories hold the rest.
        """
        self.answers.closed = True
        deadline_ns = self.clock.boot_ns() + int(DRAIN_S * 1e9)
        while (
            self.tasks.work or self.inbox or not self.writer.idle
        ) and self.clock.boot_ns() < deadline_ns:
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _first_incarnation(self) -> int:
        """Above what this state directory knows, and above what the log knows of this node."""
        await self.writer.attach()
        return next_incarnation(await self.memory.load(), self.writer.attached_to)

    async def _register(self, incarnation: int, adopted: Sequence[o.Adopted]) -> None:
        """Queue NodeRegistered before any other fact of this incarnation, with what is wrong with
        its devices in the same commit.
        """
        await self.memory.store(incarnation)
        await lost_devices.keep(self.memory, self.driver, self.machine.boot_id)
        self.writer.epoch = incarnation
        self.state = s.begin(self.node_id, incarnation, adopted, self.state)
        self.state.devices.count = len(self.inventory)
        controls.begin(self.state.controls, self.inventory)
        self.eager_beats = EAGER_BEATS
        self.registered.clear()
        directory, more = await self.memory.directory(), self.means.isolation(self.inventory)
        fact = registration(
            self.machine,
            incarnation,
            self.inventory,
            s.accounted(self.state),
            self.driver,
            directory,
            self.peers,
            more,
        )
        if self.peers is not None:
            self.peers.registered(incarnation)
        wrong = await lost_devices.registration_facts(
            self.driver, self.inventory, self.state, self.memory, self.clock.boot_ns()
        )
        self.registration = self.writer.put([fact, *wrong])
        self.registration.add_done_callback(self._was_registered)
        self.wake.set()
        logger.info(
            "node %s, incarnation %d, %d devices, %d attempts",
            self.node_id,
            incarnation,
            len(self.inventory),
            len(adopted),
        )

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
        """Until nothing is due now; then the alarm is set for what is due later."""
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
        """Nothing here waits for the world but what a new incarnation begins with and what the next
        agent must know of the devices.
        """
        match action:
            case a.ExtendLease(deadline_ns):
                self.jobs.extend_lease(deadline_ns)
            case a.ReplaceLease(deadline_ns):
                self.jobs.replace_lease(deadline_ns)
            case a.StartJob(order):
                key = attempt_key(order.job_id, order.attempt)
                self._spawn(
                    begin(self.ground, order, self.inventory, lambda: s.is_wanted(self.state, key))
                )
            case a.StopJob(ref, signal, grace_ms):
                self._spawn(self.jobs.stop(ref, signal, grace_ms))
            case a.KillJob(ref):
                self._spawn(self.jobs.kill(ref))
            case a.CheckRelease():
                self._spawn(self._check_release(action))
            case a.ProbeReplica():
                self._spawn(self._probe(action))
            case a.ForgetJob():
                self.means.forget(s.key_of(action.ref))
                self._spawn(self.closing.close(action))
            case a.Record():
                self._record(action)
            case a.ResetDevice():
                self._spawn(self._reset(action))
            case a.ControlDevice(order):
                self._spawn(self._control(order))
            case a.SaveEvidence():
                self._spawn(self._save_evidence(action))
            case a.KeepDevices(data):
                await self.memory.keep(devices.FILE, data)
            case a.AskDesired():
                self._spawn(self._ask_desired())
            case a.RegisterAgain(reason):
                logger.warning("%s: %s, it begins again", self.node_id, reason)
                await self._register(max(self.state.incarnation, self.log_incarnation) + 1, ())
            case _:
                assert_never(action)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self.tasks.spawn(work)

    async def _check_release(self, action: a.CheckRelease) -> None:
        if action.failed and action.gpus:
            await self.sampling.look()
        self.tell(await self._checked(action))

    async def _checked(self, action: a.CheckRelease) -> o.ReleaseChecked:
        alone = undivided(self.state, action.gpus)
        return await check(
            action,
            self.driver,
            self.jobs,
            self.instances,
            self.scrub,
            alone,
            self.check_s,
            self.means,
        )

    async def _reset(self, action: a.ResetDevice) -> None:
        async with self.scrub.turn(action.uuid):
            self.tell(await reset(self.driver, self.memory.keep, action, self.burn_in.on))

    async def _tried(self, uuid: GpuId) -> str:
        async with self.scrub.turn(uuid):
            return await self.burn_in.on(uuid)

    async def _control(self, order: ControlOrder) -> None:
        async with self.scrub.turn(order.uuid) if needs_free(order.control) else nullcontext():
            self.inventory = await self.controlling.control(order) or self.inventory

    async def _save_evidence(self, action: a.SaveEvidence) -> None:
        self.tell(await job_watch.save(self.jobs, self.sampling, self.memory.keep, action))

    def _served(self, key: str) -> None:
        self.tell(o.ReplicaAnswered(key))

    async def _probe(self, action: a.ProbeReplica) -> None:
        self.tell(
            o.Probed(
                s.key_of(action.ref),
                await self.probe(self.machine.address, action.port, action.path, action.answer_s),
            )
        )

    def _record(self, action: a.Record) -> None:
        def stored(future: asyncio.Future[int]) -> None:
            if was_stored(future):
                self.tell(o.FactsStored(future.result(), action.marks))

        self.writer.put(action.facts).add_done_callback(stored)

    async def _on_orders(self, subject: str, data: bytes) -> bytes | None:
        if not self.answers.closed:
            try:
                self.tell(o.OrdersReceived(_orders.decode(data)))
            except UNDECODABLE as error:
                logger.warning("orders that cannot be read are dropped: %s", error)
        return None

    async def _on_topology(self, subject: str, data: bytes) -> bytes | None:
        return _encode(await self.driver.topology())

    async def _heartbeats(self) -> None:
        await self.registered.wait()
        while True:
            sent_ns = self.clock.boot_ns()
            self.pulse.beat(HEARTBEATS)
            self.wake.set()  # the core shows that it turns too
            if not self.answers.closed:
                await self._beat(sent_ns)
            part = EAGER_PART if self.eager_beats > 0 else 1.0
            due_ns = sent_ns + int(self.heartbeat_ms * 1_000_000 * part)
            await asyncio.sleep(max(0, due_ns - self.clock.boot_ns()) / 1e9)

    async def _beat(self, sent_ns: int) -> None:
        incarnation = self.state.incarnation
        size, seq = (self.peers.size, self.peers.roster_seq) if self.peers is not None else (0, 0)
        held = (size, *self.granted, self.state.lease_written_epoch, seq)
        beat = Heartbeat(self.node_id, incarnation, sent_ns, s.local_digest(self.state), *held)
        try:
            answer = await self.bus.request(
                subjects.heartbeat(self.node_id),
                _encode(beat),
                timeout_s=self.heartbeat_ms / 1000 * ANSWER_PART,
            )
            lease = _lease.decode(answer)
        except (Unavailable, *UNDECODABLE) as error:
            logger.debug("no lease: %s", error)
            self.eager_beats -= 1
            return
        if lease.verdict == REMOVED:
            raise Refused(
                f"node {self.node_id} was removed from the cluster: to use this machine "
                "again, add it under another name"
            )
        self.log_incarnation = max(self.log_incarnation, lease.incarnation)
        check_stands(lease, self.registration)
        if lease.distrusted:
            self._spawn(self.writer.check_alone())
        self.heartbeat_ms = lease.heartbeat_ms or self.heartbeat_ms
        self.eager_beats = 0 if lease.lease_ms else self.eager_beats - 1
        self.tell(o.LeaseReceived(lease, incarnation, sent_ns))
        if lease.lease_ms and sent_ns > self.granted[0]:
            self.granted = (sent_ns, self.clock.boot_ns() - sent_ns)
        if self.peers is not None and self.peers.hears(lease, sent_ns):
            self._spawn(self.peers.fetch(self.bus))

    async def _ask_desired(self) -> None:
        """One at a time; unanswered, it is asked for again after a later lease."""
        if self.asking:
            return
        self.asking = True
        try:
            self.tell(
                o.DesiredReceived(await fetch(self.bus, self.node_id, self.state.incarnation))
            )
        except Unavailable as error:
            logger.warning("no desired state: %s", error)
        finally:
            self.asking = False
