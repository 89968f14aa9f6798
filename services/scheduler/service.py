"""The scheduler as a process: follow the log, begin a term, decide, send orders and leases.

`Scheduler` keeps two folds of the log. `acked` holds what the log has acknowledged. `state`, the
working state, also holds the scheduler's own decisions that are not acknowledged yet, so that it
can decide ahead. Leases, desired states, digests and the inventory are read from `acked`. An order
is sent only for an acknowledged fact (`orders/outbox.py`). `why` and `whatif` read the working
state, which is safe because nothing acts on their answers (`questions/desk.py`). The same code runs
in tests/sim.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common import subjects
from libs.common.agreement.asking import answering
from libs.common.agreement.follower import Agreement
from libs.common.change import applied
from libs.common.errors import Fenced
from libs.common.facts import (
    AnyFact,
    Commit,
    JobPlaced,
    LeaseExtended,
    NodeDeclaredDead,
    NodeReturned,
    ReplicasScaled,
)
from libs.common.leadership.candidate import Candidate, hand_over
from libs.common.leadership.leading import GiveSigns, Leading
from libs.common.leadership.telling import tell
from libs.common.messages import DesiredAsk, Heartbeat, Vitals
from libs.common.messages.senders import Senders, sender
from libs.common.process.cancellation import before
from libs.common.process.clock import Clock
from libs.common.process.pulse import Pulse
from libs.common.process.service import DECIDER, READER, Shell
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster, epoch_at
from libs.common.state.inventory import Stocks
from libs.common.transport import snapshot, snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Log
from libs.common.transport.per_sender import Rate
from libs.common.transport.snapshot_store import SnapshotStore
from libs.common.transport.writer import Writer
from services.scheduler.decide.decide import NOTHING_OBSERVED, Observations, decide
from services.scheduler.decide.oversize import smaller
from services.scheduler.leases import settling
from services.scheduler.leases.former import Former
from services.scheduler.leases.lease_answers import OK, lease_answer, verdict_on
from services.scheduler.leases.leases import Leases
from services.scheduler.leases.opening import opening_facts
from services.scheduler.leases.renewals import Renewals
from services.scheduler.leases.roster import PresentRoster, may_hold_lease
from services.scheduler.models.demand import Demand
from services.scheduler.models.drains import Drains
from services.scheduler.orders import decision_spans
from services.scheduler.orders.desired_pages import DesiredPages
from services.scheduler.orders.outbox import Outbox
from services.scheduler.plugins.plugged import Plugged
from services.scheduler.questions.desk import QuestionDesk
from services.scheduler.state.fabric_rules import fabric_rules
from services.scheduler.state.state import State

SILENCE_CHECK_NS: Final = 100_000_000
MS: Final = 1_000_000
# On a planned stop: heartbeats to wait for the nodes to fetch their long lease, and time for the
# log to store its fact, or what was decided before.
FAREWELL_BEATS: Final = 1.5
COMMIT_FAREWELL_S: Final = 3.0
# Number of placement decisions whose duration is kept.
TIMED_MAX: Final = 1_024

logger = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_heartbeat = msgspec.msgpack.Decoder(Heartbeat)
_desired_ask = msgspec.msgpack.Decoder(DesiredAsk)


class Scheduler:
    """One scheduler process. The instance name in its settings is for people only."""

    def __init__(
        self,
        log: Log,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        signs: GiveSigns,
        store: SnapshotStore,
        plugins: Plugged | None = None,
    ) -> None:
        self.log = log
        self.plugins = plugins or Plugged()
        self.bus = bus
        self.clock = clock
        self.settings = settings
        self.signs = signs
        self.store = store
        self.state = self._new_state(Cluster())
        self.acked = Cluster()
        self.roster = PresentRoster()
        self.stocks = Stocks()
        self.leases, self.former = Leases(), Former()
        self.desired_pages = DesiredPages()
        self.questions = QuestionDesk(lambda: self.state, clock, settings.ask_past_ms)
        self.renewals, self.drains, self.demand = Renewals(), Drains(), Demand()
        self.agreement = Agreement(settings.state_hash_every)
        self.senders = Senders()
        append_s = settings.log_append_ms / 1_000
        self.writer = Writer(
            log, clock, subjects.SCHEDULER, lambda: self.state.seq, budget_s=append_s
        )
        pulse = Pulse(settings.alive_file, READER, DECIDER)
        self.shell = Shell(
            log,
            writer=self.writer,
            state=self.state,
            propose=self.decide,
            voice=self,
            smaller=lambda facts: smaller(self.state, facts),
            pulse=pulse,
        )
        self.observed = NOTHING_OBSERVED
        self.silence_checked = 0
        self.decision_ns: deque[int] = deque(maxlen=TIMED_MAX)
        self.leading = Leading(subjects.SCHEDULER_KIND, clock, settings.term_ms)
        self.candidate = Candidate(
            subjects.SCHEDULER_KIND, bus, clock, settings.term_ms, pulse=pulse
        )
        self.claimed = self.stopping = self.extended = False
        self.outbox = Outbox(bus, self.state.fabric_rules)

    def _new_state(self, cluster: Cluster) -> State:
        given = self.settings
        state = State(cluster, given.placement, given.grow_after_s, fabric_rules(given))
        state.hold_s = given.hold_s
        return state

    def decide(self, now_ns: int) -> Sequence[AnyFact]:
        """Return the facts of the next decision, at `now_ns` by the wall clock."""
        self.leading.beat()
        if self.stopping:
            return ()
        now = self.clock.boot_ns()
        if not self.claimed and self.leading.renewals:
            # The first renewal takes the key. From then on no older leader grants leases, and the
            # silence of nodes counts.
            self.claimed = True
            self.leases.begin(self.acked, now)
        if self.claimed and now - self.silence_checked >= SILENCE_CHECK_NS:
            self.silence_checked = now
            cluster = self.state.cluster
            self.renewals.check(cluster, now)
            silent = self.leases.silent(cluster, self.acked, now)
            self.observed = Observations(
                silent=tuple(self.renewals.losable(cluster, silent, now)),
                dead=tuple(self.leases.declared_dead(cluster, now)),
                quiet=tuple(self.leases.quiet(cluster, now)),
                removable=tuple(self.renewals.removable(cluster)),
                faults=tuple(self.plugins.faults),
                drained=self.drains.drained(self.acked, self.state.restless.draining, now, now_ns),
                wanted=self.demand.wanted(self.acked, now),
                settled=settling.is_over(self.acked, self.leases, self.renewals, now),
                hashed=self.agreement.due(self.acked.state_hash),
            )
            over = self.former.facts(self.leases, self.renewals, cluster, now)
            if over and cluster.epoch == self.state.epoch:
                return over
        facts = decide(self.state, now, self.observed, now_ns)
        if len(self.plugins.faults) > len(self.observed.faults):
            # A plug-in failed during this decision: decide again without it.
            self.observed = replace(self.observed, faults=tuple(self.plugins.faults))
            facts = decide(self.state, now, self.observed, now_ns)
        if facts and isinstance(facts[0], JobPlaced):
            self.decision_ns.append(self.clock.boot_ns() - now)
        return facts

    def folded(self, entry: Entry, commit: Commit) -> None:
        """Fold a commit of any writer into `acked`."""
        before = self.acked.epoch
        with decision_spans.recorded(self.acked, commit, self.claimed):
            changes = self.agreement.apply_entry(self.acked, entry.seq, entry.subject, commit)
        if self.acked.epoch != before:
            # A term or, by a restore, a life began.
            self.candidate.read(self.acked.epoch, commit.at_ns, self.shell.live)
        self.stocks.follow(self.acked, changes)
        facts = applied(commit.facts, changes)
        self.roster.note(facts)
        for fact in facts:
            if isinstance(fact, ReplicasScaled):
                self.drains.retire(fact.retire, entry.seq)
            if isinstance(fact, NodeReturned):
                self.leases.returned(self.acked, fact.node_id, self.clock.boot_ns())
            if isinstance(fact, NodeDeclaredDead):
                self.leases.declare_dead(self.acked, fact.node_id, self.clock.boot_ns())
        if self.claimed:
            self.outbox.controls(self.acked, entry.seq, facts)
            self.outbox.keeps(self.acked, entry.seq, commit.facts, changes)

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        """Order what the log has just acknowledged."""
        self.outbox.acknowledged(self.state.cluster, seq, facts)

    async def run(self, stop: asyncio.Event, replayed: Callable[[], None] = lambda: None) -> None:
        """Replay, follow the log until it is this process's turn, begin a term and serve until
        `stop`.

        A planned stop hands over to a follower, or leaves a long lease behind. `replayed` is called
        after the replay. Raises Stopped if `stop` is set before the term has begun.
        """
        await before(stop, self._replay())
        replayed()
        try:
            await serve_together(
                reader=self.shell.follow(),
                leader=self._lead(stop),
                telling=tell(self.bus, subjects.SCHEDULER_KIND, self.settings.instance, self._sign),
            )
        except Fenced:
            if not self.stopping:
                raise
            logger.info("another scheduler has taken over")

    def _sign(self) -> tuple[bool, int, int]:
        return self.candidate.leads, self.acked.epoch, self.acked.seq

    async def _lead(self, stop: asyncio.Event) -> None:
        await before(stop, self._take_over())
        await serve_together(
            deciding=self.shell.serve(),
            orders=self.outbox.send(lambda: self.state.epoch),
            leadership=self.signs(self.leading),
            answers=self._answer_until(stop),
        )

    async def _answer_until(self, stop: asyncio.Event) -> None:
        await self._listen()
        await stop.wait()
        await self._farewell()

    async def _replay(self) -> None:
        """Restore both folds from the newest snapshot and the log after it."""
        self.acked, self.stocks = await snapshot_store.begin(self.log, self.store), Stocks()
        self.state = self.shell.state = self._new_state(snapshot.copy(self.acked))
        self.candidate.epoch = self.acked.epoch
        await self.shell.replay()

    async def _take_over(self) -> None:
        """Begin a term when no other scheduler leads."""
        for line in self.plugins.missing(self.acked):
            logger.warning(line)
        await self.candidate.lead(
            lambda: self.shell.begin(
                lambda: opening_facts(self.settings, self.plugins, self.acked),
                self.candidate.confirm,
                lambda seq: epoch_at(self.acked, seq),
            )
        )
        self._begin_term(self.writer.epoch)

    def _begin_term(self, epoch: int) -> None:
        """Count everything that this process waits for from now on."""
        now = self.clock.boot_ns()
        self.state.begin(epoch, now)
        self.leading.begin(epoch, renewed=self.writer.acked_boot_ns)
        self.leases.begin(self.acked, now)
        self.drains.begin(self.acked.seq, now)
        self.renewals.begin(now)
        self.former.begin()
        logger.info("term %d began after commit %d", epoch, self.state.seq)

    async def _listen(self) -> None:
        await self.leading.listen(self.bus)
        await self.bus.subscribe(f"{subjects.HEARTBEAT}.*", Rate(self._on_heartbeat))
        await self.bus.subscribe(f"{subjects.DESIRED}.*", Rate(self._on_desired))
        await self.bus.subscribe(f"{subjects.ROSTER}.*", Rate(self._on_roster))
        await self.bus.subscribe(f"{subjects.OUTSTANDING}.*", self._on_outstanding)
        await self.bus.subscribe(subjects.ask_scheduler("position"), self._on_position)
        await self.questions.listen(self.bus)
        await self.bus.subscribe(subjects.ask_scheduler("vitals"), self._on_vitals)
        await self.bus.subscribe(subjects.ask_scheduler("inventory"), self._on_inventory)
        await self.bus.subscribe(subjects.ask_scheduler("hashes"), answering(self.agreement))

    def may_grant(self, now: int) -> bool:
        """Return whether the last acknowledged leadership write was sent less than one term ago."""
        latest = max(self.leading.renewed, self.writer.acked_boot_ns)
        return (
            self.acked.epoch == self.state.epoch and now - latest < self.acked.timing.term_ms * MS
        )

    async def _on_heartbeat(self, subject: str, data: bytes) -> bytes | None:
        beat = self.senders.read(_heartbeat, subject, data)
        if beat is None:
            return None
        now = self.clock.boot_ns()
        node = self.acked.nodes.get(beat.node_id)
        ahead = self.state.cluster.nodes.get(beat.node_id)
        verdict = verdict_on(self.acked, beat, ahead)
        if node is None or ahead is None or verdict != OK:
            self.leases.note_beat(self.acked, beat.node_id, now)
            return self._lease(beat, verdict, 0)
        taken = beat.lease_epoch == self.state.epoch
        said = (beat.lease_sent_ns, beat.echo_ns)
        self.leases.hear(self.acked, beat.node_id, now, taken, *said)
        self.renewals.hear(self.acked, beat, now)
        # The observation is up to 100 ms old.
        self.observed = self.observed.without(beat.node_id)
        counts_alike = may_hold_lease(self.acked, node, beat)
        # A deaf node gets no lease, so that it is lost. While none can be lost, that would last.
        is_deaf = self.leases.is_deaf(self.acked, beat.node_id, now)
        hears = counts_alike and (self.renewals.few_renewed or not is_deaf)
        usable = node.usable and ahead.usable and hears and self.may_grant(now)
        return self._lease(beat, OK, self._grant(beat, now) if usable else 0)

    def _grant(self, beat: Heartbeat, now: int) -> int:
        granted = self.leases.grant(self.acked, beat.node_id, now, beat.sent_boot_ns)
        self.renewals.grant(beat, now)
        return self.settings.stop_lease_ms if self.extended else granted

    def _lease(self, beat: Heartbeat, verdict: str, lease_ms: int) -> bytes:
        digest = self.roster.of(self.acked).digest
        return _encode(
            lease_answer(
                self.acked, self.state.epoch, beat, verdict, lease_ms=lease_ms, roster_digest=digest
            )
        )

    async def _on_roster(self, subject: str, data: bytes) -> bytes | None:
        return _encode(self.roster.of(self.acked)) if self.acked.epoch == self.state.epoch else None

    async def _on_outstanding(self, subject: str, data: bytes) -> None:
        now_ns = self.clock.boot_ns()
        self.demand.hear(sender(subject), self.drains.read(subject, data, now_ns), now_ns)

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
            Vitals(
                epoch=self.state.epoch,
                heard_ms_ago=heard,
                decisions=len(timed),
                decision_p50_us=p50,
                decision_p99_us=p99,
                dropped=self.senders.dropped.total(),
                unheard=tuple(self.leases.unheard(self.acked, now)),
            )
        )

    async def _on_inventory(self, subject: str, data: bytes) -> bytes | None:
        grants = self.may_grant(self.clock.boot_ns())
        return self.stocks.answer(self.acked, data.decode()) if grants else None

    async def _farewell(self) -> None:
        """Stop as planned: let a follower take over. If there is none, record that every node may
        go on alone, and tell each with its next heartbeat.
        """
        self.stopping = True
        try:
            async with asyncio.timeout(COMMIT_FAREWELL_S):
                await self.writer.emptied()
            await hand_over(subjects.SCHEDULER_KIND, self.bus, self.leading.epoch)
            async with asyncio.timeout(COMMIT_FAREWELL_S):
                await self.writer.put([LeaseExtended(duration_ms=self.settings.stop_lease_ms)])
        except TimeoutError:
            logger.warning(
                "the log did not store the long lease within %.0f s: jobs end with the leases that "
                "their nodes hold now",
                COMMIT_FAREWELL_S,
            )
            return
        self.extended = True
        if self.acked.nodes:
            await asyncio.sleep(FAREWELL_BEATS * self.acked.timing.heartbeat_ms / 1_000)
