"""Stand-ins for services that are not written yet: a small agent and a quota that admits everything. Removed as the real ones land."""

import asyncio

import msgspec

from libs.common import facts as f
from libs.common import subjects
from libs.common.bus import Bus
from libs.common.errors import MusterError, Unavailable
from libs.common.log import Log
from libs.common.messages import Desired, Heartbeat, Lease, Orders, StartOrder, StopOrder, digest
from libs.common.model import AttemptRef, JobId, NodeId
from libs.common.writer import Writer
from services.node_agent.supervision.supervisors import AlreadyStarted, LaunchRequest
from tests.sim.loop import Process
from tests.sim.nodes import Key, Machine, SimLease, SimSupervisors


class StandInAgent:
    def __init__(self, machine: Machine, process: Process, log: Log, bus: Bus) -> None:
        self.machine, self.bus = machine, bus
        self.node_id = NodeId(machine.node_id)
        self.supervisors = SimSupervisors(machine, process, self.on_event)
        self.lease = SimLease(machine, process)
        self.writer = Writer(log, machine.clock, subjects.node(machine.node_id), lambda: 0)
        self.files = machine.disk.files
        self.held: dict[AttemptRef, bool] = {}
        self.stopping: dict[AttemptRef, None] = {}
        self.events: asyncio.Queue[tuple[Key, str, dict]] = asyncio.Queue()
        self.epoch = self.seq = 0
        self.work = asyncio.Lock()

    def on_event(self, key: Key, event: str, detail: dict) -> None:
        self.events.put_nowait((key, event, detail))

    async def run(self) -> None:
        await self.supervisors.start()
        for found in self.supervisors.known():
            self.held[AttemptRef(JobId(found.job_id), found.attempt)] = True
        await self.writer.attach()
        await self._register()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.writer.run())
            tasks.create_task(self._tell())
            await self.bus.subscribe(subjects.orders(self.node_id), self._on_orders)
            await self._beat()

    async def _register(self) -> None:
        last = self.files.get("incarnation", 0)
        now = self.machine.clock.wall_ns() // 1_000_000
        self.incarnation = self.files["incarnation"] = max(last + 1, now)
        self.writer.epoch = self.incarnation
        fact = f.NodeRegistered(node_id=self.node_id, incarnation=self.incarnation, address=self.node_id,
            gpus=self.machine.gpus, attempts=tuple(sorted(self.held)), boot_id=self.machine.boot_id)  # fmt: skip
        if self.writer.idle:
            await self.writer.commit([fact])
        else:
            await self.writer.put([fact])

    async def _beat(self) -> None:
        while True:
            sent = self.machine.clock.boot_ns()
            beat = Heartbeat(self.node_id, self.incarnation, sent, "")
            try:
                raw = await self.bus.request(subjects.heartbeat(self.node_id), msgspec.msgpack.encode(beat), 0.9)
                await self._leased(msgspec.msgpack.decode(raw, type=Lease))
            except Unavailable:
                pass
            await asyncio.sleep(max(0.0, 1.0 - (self.machine.clock.boot_ns() - sent) / 1e9))

    async def _leased(self, lease: Lease) -> None:
        if lease.epoch < self.epoch:
            return
        self.epoch = lease.epoch
        if lease.verdict == "lost" and not self.machine.supervised:
            await self._register()
        if lease.lease_ms:
            self.lease.extend(lease.sent_boot_ns + lease.lease_ms * 1_000_000)
        if lease.verdict == "ok" and lease.digest != digest(self.held, self.stopping):
            raw = await self.bus.request(subjects.desired(self.node_id), b"", 0.9)
            wish = msgspec.msgpack.decode(raw, type=Desired)
            if wish.incarnation == self.incarnation:
                await self._obey(wish.epoch, (*wish.stops, *wish.starts), wish.seq)

    async def _on_orders(self, subject: str, data: bytes) -> None:
        orders = msgspec.msgpack.decode(data, type=Orders)
        await self._obey(orders.epoch, orders.orders, 0)

    async def _obey(self, epoch: int, orders: tuple, seq: int) -> None:
        async with self.work:
            if epoch < self.epoch:
                return
            self.epoch = epoch
            for order in orders:
                if isinstance(order, StopOrder):
                    await self._stop(order)
                elif order.incarnation <= self.incarnation:
                    await self._start(order)

    async def _start(self, order: StartOrder) -> None:
        ref = AttemptRef(order.job_id, order.attempt)
        if f"gone {ref}" in self.files or (self.held.get(ref)):
            return
        self.held[ref] = True
        request = LaunchRequest(order.job_id, order.attempt, list(order.spec.command), {}, "/", self.lease.path, order.rank)
        try:
            await self.supervisors.launch(request)
        except AlreadyStarted:
            pass
        except MusterError:
            raise

    async def _stop(self, order: StopOrder) -> None:
        ref = AttemptRef(order.job_id, order.attempt)
        if f"gone {ref}" in self.files or ref in self.stopping:
            return
        if ref not in self.held:
            self.files[f"gone {ref}"] = True
            await self.writer.put([f.JobRefused(job_id=ref.job_id, attempt=ref.attempt, node_id=self.node_id, reason="stopped")])
            return
        self.stopping[ref] = None
        await self.supervisors.stop((order.job_id, order.attempt), order.signal, order.grace_ms / 1e3)

    async def _tell(self) -> None:
        while True:
            key, event, detail = await self.events.get()
            ref = AttemptRef(JobId(key[0]), key[1])
            names = {"job_id": ref.job_id, "attempt": ref.attempt, "node_id": self.node_id}
            if event == "started":
                await self.writer.put([f.JobStarted(**names)])
                continue
            finished = f.JobFinished(**names, exit_code=detail["exit_code"], signal=detail["signal"] or 0, reason=detail["reason"])
            await self.writer.put([finished, f.JobReleased(**names)])
            self.files[f"gone {ref}"] = True
            self.held.pop(ref, None)
            self.stopping.pop(ref, None)
            self.supervisors.forget(key)
