"""The scheduler as a process: stand by, begin a term, decide, speak.

`Scheduler` runs the shared shell over two folds of the log: `state` works ahead and decides,
`acked` is what the log has acknowledged, and everything that leaves this process (orders, leases,
digests, answers) comes from it. Runs unchanged in tests/sim.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common import fold, subjects
from libs.common.errors import Fenced, Unavailable
from libs.common.facts import (
    AnyFact,
    ClusterConfigured,
    Commit,
    JobPlaced,
    JobPreempted,
    JobStopOrdered,
    LeaseExtended,
    NodeRegistered,
    NodeRemovalRequested,
    NodeRemoved,
    NodeReturned,
    ReplicasScaled,
    TermBegan,
)
from libs.common.messages import (
    REMOVED,
    AnyOrder,
    DesiredAsk,
    Heartbeat,
    Lease,
    Roster,
    Vitals,
    by_bytes,
)
from libs.common.messages.senders import Senders, sender
from libs.common.model import NodeId, Timing
from libs.common.process.cancellation import before
from libs.common.process.clock import Clock
from libs.common.process.pulse import Pulse
from libs.common.process.service import DECIDER, READER, Shell
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster, is_removed
from libs.common.state.inventory import Stocks
from libs.common.transport import snapshot, snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Log
from libs.common.transport.per_sender import Rate
from libs.common.transport.snapshot_store import SnapshotStore
from libs.common.transport.writer import Writer
from services.scheduler.decide.decide import NOTHING_OBSERVED, Observations, decide
from services.scheduler.decide.oversize import smaller
from services.scheduler.explain.explain import explain, no_answer
from services.scheduler.leases.leases import Leadership, Leases
from services.scheduler.leases.renewals import Renewals
from services.scheduler.leases.roster import roster
from services.scheduler.leases.take_over import TakeOver
from services.scheduler.models.drains import Drains
from services.scheduler.orders import orders
from services.scheduler.orders.desired_pages import DesiredPages
from services.scheduler.plugins.plugged import Plugged
from services.scheduler.questions.aside import Aside, forked
from services.scheduler.questions.past import DEADLINE_PART, Past, Question
from services.scheduler.questions.what_if import WhatIfAsk, not_found, what_if
from services.scheduler.questions.why_model import WhyAsk, explain_model
from services.scheduler.state.state import State

SILENCE_CHECK_NS: Final = 100_000_000
MS: Final = 1_000_000
# How many heartbeats a planned stop waits for the nodes to fetch their long lease, and how long for
# the log to take it.
FAREWELL_BEATS: Final = 1.5
COMMIT_FAREWELL_S: Final = 3.0
# So many of the last decisions that placed a job are timed.
TIMED_MAX: Final = 1_024

logger = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_heartbeat = msgspec.msgpack.Decoder(Heartbeat)
_desired_ask = msgspec.msgpack.Decoder(DesiredAsk)


class Scheduler:
    """One scheduler process, and the voice of its shell. Its instance name is only for people."""

    def __init__(
        self,
        log: Log,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        leadership: Leadership,
        store: SnapshotStore,
        plugins: Plugged | None = None,
    ) -> None:
        self.log = log
        self.plugins = plugins or Plugged()
        self.bus = bus
        self.clock = clock
        self.settings = settings
        self.leadership = leadership
        self.store = store
        self.state = State(Cluster(), settings.placement, settings.grow_after_s)
        self.acked = Cluster()
        self.roster: Roster | None = None  # as of `acked`, made when it is asked for
        self.stocks = Stocks()
        self.leases = Leases()
        self.desired_pages = DesiredPages()
        self.aside = Aside(settings.ask_past_ms / 1_000 * DEADLINE_PART)
        self.past = Past(deadline_s=settings.ask_past_ms / 1_000 * DEADLINE_PART)
        self.renewals = Renewals()
        self.drains = Drains()
        self.senders = Senders()
        self.writer = Writer(
            log, clock, subjects.SCHEDULER, lambda: self.state.seq, settings.log_append_ms / 1_000
        )
        pulse = Pulse(settings.alive_file, READER, DECIDER)
        self.shell = Shell(
            log,
            self.writer,
            self.state,
            self.decide,
            self,
            lambda facts: smaller(self.state, facts),
            pulse,
        )
        self.observed = NOTHING_OBSERVED
        self.silence_checked = 0
        self.decision_ns: deque[int] = deque(maxlen=TIMED_MAX)
        self.renewed_boot_ns = 0
        self.claimed = False
        self.stopping = False
        self.extended = False
        self.outgoing: asyncio.Queue[tuple[NodeId, list[AnyOrder]]] = asyncio.Queue()

    # -- what it decides
    # ----------------------------------------------------------------------------------------

    def decide(self, now_ns: int) -> Sequence[AnyFact]:
        if self.stopping:
            return ()
        now = self.clock.boot_ns()
        if self.claimed and now - self.silence_checked >= SILENCE_CHECK_NS:
            self.silence_checked = now
            self.renewals.check(self.state.cluster, now)
            silent = self.renewals.losable(
                self.state.cluster, self.leases.silent(self.state.cluster, now), now
            )
            quiet, removable = (
                self.leases.quiet(self.state.cluster, now),
                self.renewals.removable(self.state.cluster),
            )
            drained = self.drains.drained(self.acked, self.state.restless.draining, now, now_ns)
            self.observed = Observations(
                tuple(silent), tuple(quiet), tuple(removable), tuple(self.plugins.faults), drained
            )
            if self.state.cluster.epoch == self.state.epoch and self.leases.extension_is_over(
                self.state.cluster, now
            ):
                return (LeaseExtended(duration_ms=0),)
        facts = decide(self.state, now, self.observed, now_ns)
        if len(self.plugins.faults) > len(
            self.observed.faults
        ):  # what was decided by a plug-in that went bad meanwhile does not count
            self.observed = replace(self.observed, faults=tuple(self.plugins.faults))
            facts = decide(self.state, now, self.observed, now_ns)
        if facts and isinstance(facts[0], JobPlaced):
            self.decision_ns.append(self.clock.boot_ns() - now)
        return facts

    # -- the shell's voice
    # --------------------------------------------------------------------------------------

    def folded(self, entry: Entry, commit: Commit) -> None:
        self.stocks.follow(
            self.acked, fold.apply_entry(self.acked, entry.seq, entry.subject, commit)
        )
        if any(
            isinstance(
                fact, NodeRegistered | ClusterConfigured | NodeRemovalRequested | NodeRemoved
            )
            for fact in commit.facts
        ):
            self.roster = None
        for fact in commit.facts:
            if isinstance(fact, ReplicasScaled):
                self.drains.retire(fact.retire, entry.seq)
            if isinstance(fact, NodeReturned):
                self.leases.returned(self.acked, fact.node_id, self.clock.boot_ns())
        if self.claimed:
            for node_id, control in orders.control_orders(self.acked, commit.facts, entry.seq):
                self.outgoing.put_nowait((node_id, [control]))

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        """Send each node its part of what the log has just taken."""
        for fact in facts:
            if isinstance(fact, JobPlaced | JobStopOrdered | JobPreempted):
                self._order(seq, fact)

    def _order(self, seq: int, fact: JobPlaced | JobStopOrdered | JobPreempted) -> None:
        job = self.state.cluster.jobs.get(fact.job_id)
        if job is None or job.attempt != fact.attempt:
            return
        if isinstance(fact, JobPlaced):
            for node_id, order in orders.start_orders(self.state.cluster, job, fact, seq):
                self.outgoing.put_nowait((node_id, [order]))
        else:
            for node_id, stop in orders.stop_orders(fact, list(job.members), seq):
                self.outgoing.put_nowait((node_id, [stop]))

    # -- the process
    # --------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, replayed: Callable[[], None] = lambda: None) -> None:
        """Stand by until needed, replay, begin a term, serve until `stop`; a planned stop leaves a
        long lease behind.

        `replayed` is called before it serves.

        Raises Stopped when it comes before the term has begun.
        """
        await before(stop, self._open())
        replayed()
        await serve_together(
            deciding=self.shell.serve(),
            orders=self._send_orders(),
            leadership=self._renew(),
            answers=self._answer_until(stop),
        )

    async def _answer_until(self, stop: asyncio.Event) -> None:
        await self._listen()
        await stop.wait()
        await self._farewell()

    async def _open(self) -> None:
        """Begin a term only when no other scheduler has one: another may have begun while this one
        replayed.
        """
        take_over = TakeOver(
            self.log, self.bus, self.clock, self.settings.term_ms, self.shell.pulse
        )
        await take_over.stand_by()
        await self._replay()
        while await take_over.has_a_rival(self.acked) or not await self._begins_term():
            await take_over.stand_by(patient=True)
            await self._replay()

    async def _begins_term(self) -> bool:
        """Return whether the log stored this scheduler's term.

        If two begin together it refuses one, which stands by.
        """
        try:
            await self._begin_term()
        except Fenced as error:
            logger.info("another scheduler began a term first: this one stands by (%s)", error)
            return False
        return True

    async def _replay(self) -> None:
        """Restore both folds, from the newest snapshot and the tail."""
        self.acked, self.stocks = await snapshot_store.begin(self.log, self.store), Stocks()
        self.state = self.shell.state = State(
            snapshot.copy(self.acked), self.settings.placement, self.settings.grow_after_s
        )
        await self.shell.replay()

    async def _begin_term(self) -> None:
        """TermBegan, appended under the fence; its sequence is the epoch of all that this process
        writes and says.

        Of two that begin together the log refuses one, before it has touched the leadership key.
        """
        orders, scores = self.plugins.orders, self.plugins.scores
        first: list[AnyFact] = [
            TermBegan(instance=self.settings.instance, orders=orders, scores=scores)
        ]
        for line in self.plugins.missing(self.acked):
            logger.warning(line)
        if not self.acked.configured:
            settings = self.settings
            timing = Timing(
                settings.heartbeat_ms, settings.lease_ms, settings.margin_ms, settings.term_ms
            )
            first.append(ClusterConfigured(cluster_id=settings.cluster_id, timing=timing))
        seq = await self.writer.commit(first)
        self.writer.attached_seq = (
            seq  # folded as anyone's, when it comes back: its sequence is its meaning
        )
        self.writer.epoch = seq
        self.state.begin(seq, self.clock.boot_ns())
        self.renewed_boot_ns = self.writer.acked_boot_ns
        self.leases.begin(self.acked, self.clock.boot_ns())
        self.drains.begin(self.acked.seq, self.clock.boot_ns())
        self.renewals.begin(self.clock.boot_ns())
        logger.info("term %d began after commit %d", seq, self.state.seq)

    async def _listen(self) -> None:
        await self.bus.subscribe(f"{subjects.HEARTBEAT}.*", Rate(self._on_heartbeat))
        await self.bus.subscribe(f"{subjects.DESIRED}.*", Rate(self._on_desired))
        await self.bus.subscribe(f"{subjects.ROSTER}.*", Rate(self._on_roster))
        await self.bus.subscribe(f"{subjects.OUTSTANDING}.*", self._on_outstanding)
        await self.bus.subscribe(subjects.ask_scheduler("alive"), self._on_alive)
        await self.bus.subscribe(subjects.ask_scheduler("position"), self._on_position)
        await self.bus.subscribe(subjects.ask_scheduler("why"), self._on_why, concurrent=True)
        await self.bus.subscribe(
            subjects.ask_scheduler("whatif"), self._on_what_if, concurrent=True
        )
        await self.bus.subscribe(subjects.ask_scheduler("vitals"), self._on_vitals)
        await self.bus.subscribe(subjects.ask_scheduler("inventory"), self._on_inventory)

    async def _send_orders(self) -> None:
        """Each node's orders of one moment in as few messages as they fit into."""
        while True:
            node_id, batch = await self.outgoing.get()
            by_node: dict[NodeId, list[AnyOrder]] = {node_id: batch}
            while not self.outgoing.empty():
                node_id, more = self.outgoing.get_nowait()
                by_node.setdefault(node_id, []).extend(more)
            for node_id, waiting in by_node.items():
                for part in by_bytes(waiting):
                    await self.bus.publish(
                        subjects.orders(node_id), _encode(orders.message(self.state.epoch, part))
                    )

    async def _renew(self) -> None:
        """Keep the right to grant leases: an acknowledged write at least every third of a term.

        The first one takes the key; from then on no older leader grants any, and the silence of
        nodes counts.
        """
        while True:
            sent = self.clock.boot_ns()
            try:
                await self.leadership.renew(self.state.epoch)
                self.renewed_boot_ns = max(self.renewed_boot_ns, sent)
                if not self.claimed:
                    self.claimed = True
                    self.leases.begin(self.acked, self.clock.boot_ns())
            except Unavailable as error:
                logger.warning("the term was not renewed: %s", error)
            await asyncio.sleep(self.acked.timing.term_ms / 3_000)

    def may_grant(self, now: int) -> bool:
        """Within one term of the sending of the last acknowledged leadership write."""
        latest = max(self.renewed_boot_ns, self.writer.acked_boot_ns)
        return (
            self.acked.epoch == self.state.epoch and now - latest < self.acked.timing.term_ms * MS
        )

    async def _on_heartbeat(self, subject: str, data: bytes) -> bytes | None:
        beat = self.senders.read(_heartbeat, subject, data)
        if beat is None:
            return None
        now = self.clock.boot_ns()
        node = self.acked.nodes.get(beat.node_id)
        if is_removed(self.acked, beat.node_id):
            return self._lease(beat, REMOVED, 0)
        if node is None or beat.incarnation > node.incarnation:
            return self._lease(beat, "unknown", 0)
        ahead = self.state.cluster.nodes[beat.node_id]
        if beat.incarnation < node.incarnation or beat.incarnation <= max(node.lost, ahead.lost):
            return self._lease(beat, "lost", 0)
        self.leases.hear(self.acked, beat.node_id, now, beat.lease_epoch == self.state.epoch)
        self.renewals.hear(self.acked, beat, now)
        # Who counts by a roster that still believes a node that leaves is no party to a lease until
        # it has the later one.
        counts_alike = beat.roster_seq >= self.acked.leaving_seq or not node.peer_address
        usable = node.usable and ahead.usable and counts_alike and self.may_grant(now)
        return self._lease(beat, "ok", self._grant(beat, now) if usable else 0)

    def _grant(self, beat: Heartbeat, now: int) -> int:
        granted = self.leases.grant(self.acked, beat.node_id, now)
        self.renewals.grant(beat, now)
        if any(
            node_id == beat.node_id for node_id, _ in self.observed.silent
        ):  # it is up to 100 ms old
            self.observed = replace(
                self.observed,
                silent=tuple(each for each in self.observed.silent if each[0] != beat.node_id),
            )
        return self.settings.stop_lease_ms if self.extended else granted

    def _lease(self, beat: Heartbeat, verdict: str, lease_ms: int) -> bytes:
        node = self.acked.nodes.get(beat.node_id)
        digest = orders.node_digest(self.acked, beat.node_id) if node is not None else ""
        known = (
            (node.incarnation, bool(node.distrusted), node.registered_seq)
            if node is not None
            else ()
        )
        common = (
            self.acked.timing.heartbeat_ms,
            digest,
            self.acked.seq,
            self._present_roster().digest,
            *known,
        )
        return _encode(Lease(self.state.epoch, verdict, beat.sent_boot_ns, lease_ms, *common))

    def _present_roster(self) -> Roster:
        if self.roster is None:
            self.roster = roster(self.acked)
        return self.roster

    async def _on_roster(self, subject: str, data: bytes) -> bytes | None:
        return _encode(self._present_roster()) if self.acked.epoch == self.state.epoch else None

    async def _on_outstanding(self, subject: str, data: bytes) -> None:
        self.drains.read(subject, data, self.clock.boot_ns())

    async def _on_desired(self, subject: str, data: bytes) -> bytes | None:
        node_id = sender(subject)
        if node_id not in self.acked.nodes or self.acked.epoch != self.state.epoch:
            return None
        ask = self.senders.read(_desired_ask, subject, data)
        return (
            self.desired_pages.answer(self.acked, node_id, self.state.epoch, ask)
            if ask is not None
            else None
        )

    async def _on_alive(self, subject: str, data: bytes) -> bytes | None:
        return str(self.state.epoch).encode() if self.may_grant(self.clock.boot_ns()) else None

    async def _on_position(self, subject: str, data: bytes) -> bytes:
        return b"%d" % self.acked.seq

    async def _on_vitals(self, subject: str, data: bytes) -> bytes | None:
        now = self.clock.boot_ns()
        if not self.may_grant(now):
            return None
        heard = {node_id: (now - heard) // MS for node_id, heard in self.leases.heard.items()}
        timed = sorted(self.decision_ns)
        p50, p99 = (timed[len(timed) * part // 100] / 1_000 if timed else 0.0 for part in (50, 99))
        return _encode(
            Vitals(self.state.epoch, heard, len(timed), p50, p99, self.senders.dropped.total())
        )

    async def _on_inventory(self, subject: str, data: bytes) -> bytes | None:
        return (
            self.stocks.answer(self.acked, data.decode())
            if self.may_grant(self.clock.boot_ns())
            else None
        )

    async def _on_what_if(self, subject: str, data: bytes) -> bytes:
        began = self.clock.boot_ns()
        ask = msgspec.msgpack.decode(data, type=WhatIfAsk)

        def found() -> bytes:
            self.state.asker = ask.asker  # in a child
            return msgspec.json.encode(
                what_if(self.state, ask, forked)
                | {"decision_latency_us": (self.clock.boot_ns() - began) / 1_000}
            )

        def none(text: str) -> bytes:
            return msgspec.json.encode(
                not_found(text, self.state.seq)
                | {"decision_latency_us": (self.clock.boot_ns() - began) / 1_000}
            )

        return await self.aside.answer(found, none)

    async def _on_why(self, subject: str, data: bytes) -> bytes | None:
        ask = msgspec.msgpack.decode(data, type=WhyAsk)
        if ask.at:
            return await self.past.answer(Question(ask.at, ask.job_id, ask.asker))
        return await self.aside.answer(
            lambda: self._why(ask), lambda text: self._why_not(ask, text)
        )

    def _why(self, ask: WhyAsk) -> bytes:
        """In a child: it changes the state."""
        self.state.asker = ask.asker
        found = (
            explain_model(self.state, ask.model, forked)
            if ask.model
            else explain(self.state, ask.job_id, forked)
        )
        return msgspec.json.encode(found)

    def _why_not(self, ask: WhyAsk, text: str) -> bytes:
        return msgspec.json.encode(
            no_answer(ask.job_id, "unknown", text, self.state.seq)
            | ({"model": ask.model} if ask.model else {})
        )

    async def _farewell(self) -> None:
        """A planned stop: the log says that every node may go on alone, then each hears it with its
        next heartbeat.
        """
        self.stopping = True
        try:
            async with asyncio.timeout(COMMIT_FAREWELL_S):
                await self.writer.put([LeaseExtended(duration_ms=self.settings.stop_lease_ms)])
        except TimeoutError:
            logger.warning(
                "the log did not take the long lease: the nodes' jobs end with the one that "
                "they have"
            )
            return
        self.extended = True
        if self.acked.nodes:
            await asyncio.sleep(FAREWELL_BEATS * self.acked.timing.heartbeat_ms / 1_000)
