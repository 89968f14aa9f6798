"""The gateway's state and its loop: one Cluster folds facts, one Writer records requests.

It makes no decision about jobs. A request is answered only when its own commit is stored *and*
folded back, so that the client sees the change in its next read. Fenced (another process writes
this instance's subject) and Corrupt end the process: the service manager starts it again, and it
replays. While the log stores nothing, it retries. Tests: tests/integration/test_gateway_*.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.agreement.follower import Agreement
from libs.common.errors import NotRecorded, Refused, Unavailable
from libs.common.facts import AnyFact, Commit
from libs.common.messages import OutputChunk
from libs.common.model import JobId, NodeId
from libs.common.process.clock import Clock, ClockWatch
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.kv import MemoryOutputs, OutputStore, PlaceStore
from libs.common.transport.log import Entry, Log, settled_bounds
from libs.common.transport.once import MemoryOnce, OnceStore
from libs.common.transport.snapshot_store import SnapshotStore
from libs.common.transport.uploads import MemoryUploads, UploadStore
from libs.common.transport.writer import Writer
from services.api_gateway.access import log_bounds, room
from services.api_gateway.access.allowance import Allowance
from services.api_gateway.access.auth import Keys
from services.api_gateway.access.claims import Claims
from services.api_gateway.access.fair_turns import FairTurns
from services.api_gateway.access.records import Recorder
from services.api_gateway.access.shares import Shares
from services.api_gateway.access.slots import Slots
from services.api_gateway.access.time_shares import TimeShares
from services.api_gateway.agents.admission import Admission
from services.api_gateway.agents.agent_answers import AgentAnswers
from services.api_gateway.agents.revoking import NodeWrites
from services.api_gateway.channels.followers import Followers
from services.api_gateway.http.request_trace import appended
from services.api_gateway.moments.moment import Moment
from services.api_gateway.moments.moments import Moments
from services.api_gateway.notify.notifier import Notifier
from services.api_gateway.openai.catalogue import Catalogue, Deployed
from services.api_gateway.openai.limited import Limited
from services.api_gateway.openai.metering import Meter
from services.api_gateway.openai.queues import Queues
from services.api_gateway.openai.reporter import Reporter
from services.api_gateway.openai.turn_exchange import TurnExchange
from services.api_gateway.openai.upstream import Upstream
from services.api_gateway.openai.usage import Usages
from services.api_gateway.problems import Problem
from services.api_gateway.secrets.vault import Vault
from services.api_gateway.sign_on.sign_on import SignOn
from services.api_gateway.telemetry import Telemetry
from services.api_gateway.views import snapshots
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.fact_stream import FactRows
from services.api_gateway.views.history import History
from services.api_gateway.views.index import JobIndex
from services.api_gateway.views.job_lookup import JobLookup
from services.api_gateway.views.rows import Rows
from services.api_gateway.views.snapshots import Snapshots
from services.api_gateway.views.waiting import LogEnd, Waiting
from services.api_gateway.vitals import Pulse
from services.api_gateway.ws.sockets import Sockets

# Facts folded before the loop serves other requests again.
FOLD_SLICE_FACTS: Final = 50
SURVEY_EVERY_S: Final = 2.0
# Approximate bytes of subject and headers that the log's server stores with each commit.
ENTRY_BYTES: Final = 250
# Without MUSTER_TENANT_BYTES_PER_MINUTE a tenant may add 1/TENANT_PART of the stream in a minute.
TENANT_PART: Final = 50
TENANT_BYTES_MIN: Final = 1 << 20
NOT_RECORDED: Final = "It was not recorded: try again"
UNKNOWN: Final = "It is unknown whether it was recorded: check before you repeat it"
# Node, job, attempt, stream, offset.
OutputKey = tuple[NodeId, JobId, int, str, int]

logger = logging.getLogger(__name__)


class Gateway:
    """The state that the routes read, and the only way to record facts.

    `filled` measures which part of the stream's bytes is used (0 to 1).
    """

    def __init__(
        self,
        log: Log,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        outputs: OutputStore,
        store: SnapshotStore,
        filled: Callable[[], Awaitable[float]] | None = None,
        secrets: PlaceStore | None = None,
        uploads: UploadStore | None = None,
        once: OnceStore | None = None,
    ) -> None:
        self.log = log
        self.bus = bus
        self.clock = clock
        self.settings = settings
        self.outputs, self.store, self.filled = outputs, store, filled
        self.caught_up, self.fill = False, 0.0
        self.once: OnceStore = once or MemoryOnce()
        self.followers = self.lag = self.heard_boot_ns = 0
        self.agreement = Agreement(settings.state_hash_every)
        self.output_asks: dict[OutputKey, asyncio.Task[OutputChunk]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.keys = Keys(settings.api_keys_file)
        self.telemetry, self.claims = Telemetry(self), Claims()
        self.entries, self.slots, self.shares = Entries(log, bus), Slots(), Shares(settings)
        self.fair_turns, self.time_shares = FairTurns(), TimeShares()
        self.waiting = Waiting(self.fair_turns)
        self.rows = Rows(self)
        self.sockets = Sockets(self.telemetry.sockets, settings.gateway_unread_ms)
        self.fact_rows, self.log_end = FactRows(), LogEnd(log)
        self.pulse = Pulse(bus, clock)
        self.snapshots, self.clocks = Snapshots(store, 0), ClockWatch(clock)
        self.places = Followers(settings.followers_per_tenant, settings.followers_per_job)
        past_bytes, wait_s = settings.gateway_past_bytes, settings.ask_past_ms / 1_000
        self.moments = Moments(self.entries, store, clock, bytes_max=past_bytes, wait_s=wait_s)
        self._set_state(Cluster(), History())
        self._connect_recording()
        self._connect_agents(secrets or MemoryOutputs(), uploads or MemoryUploads())
        self._connect_models()
        self.notifier = Notifier(self)

    def _connect_recording(self) -> None:
        """Create what records facts, and the bounds on it."""
        settings = self.settings
        self.writer = Writer(
            log=self.log,
            clock=self.clock,
            subject=subjects.gateway(settings.instance),
            seen=lambda: self.cluster.seq,
            budget_s=settings.log_append_ms / 1_000,
            gives_up=False,
        )
        self.access = Recorder(
            self.clock,
            self.writer.put,
            lambda: self.fill >= room.RECORDS,
            settings.access_flush_ms / 1_000,
        )
        per_tenant = max(TENANT_BYTES_MIN, settings.stream_bytes // TENANT_PART)
        self.allowance = Allowance(settings.tenant_bytes_per_minute or per_tenant)

    def _connect_agents(self, secrets: PlaceStore, uploads: UploadStore) -> None:
        """Create what answers the agents' questions."""
        self.vault = Vault(self.settings.vault_key_file, secrets)
        self.keys.session_key = self.vault.session_key
        self.sign_on = SignOn(self.settings, self.clock)
        self.keys.of_group = self.sign_on.groups.principal
        self.uploads = uploads
        self.answers = AgentAnswers(self)
        self.node_writes = NodeWrites(self)
        self.admission = Admission(lambda: self.cluster, self.bus, self.node_writes.budget.over)

    def _connect_models(self) -> None:
        """Create what serves requests to models."""
        settings = self.settings
        self.models: Catalogue = Deployed(lambda: self.cluster, self.clock.wall_ns)
        self.meter: Meter = Limited(
            lambda: self.cluster, self.bus, self.clock, settings.limits_answer_ms / 1_000
        )
        self.upstream = Upstream(settings, self.vault.replica_key)
        self.usage = Usages(self)
        queues = self.queues = Queues(self)
        self.turns = TurnExchange(queues, self.bus, settings.instance)
        self.reporter = Reporter(lambda: self.cluster, queues, self.bus, settings.instance)

    def _set_state(self, cluster: Cluster, history: History) -> None:
        self.cluster = cluster
        self.history = history
        self.index = JobIndex(cluster)
        self.lookup = JobLookup(
            cluster, index=self.index, history=history, entries=self.entries, bus=self.bus
        )
        self.present = self.moments.places.present = Moment(
            cluster,
            index=self.index,
            lookup=self.lookup,
            now_ns=self.clock.wall_ns,
            pulse=self.pulse,
            queue_rules=lambda model: self.queues.rules_of(model),
        )

    async def run(self) -> None:
        """Replay the log, then serve until an error ends this process."""
        try:
            await self.replay()
            await self.answers.listen()
            await self.admission.listen()
            await self.node_writes.listen()
            await self.turns.listen()
            # The scheduler must know of this gateway before its first request.
            await self.reporter.report()
            self.caught_up = True
            await serve_together(
                writer=self.writer.run(),
                reader=self._read(),
                survey=self._survey(),
                pulse=self.pulse.run(SURVEY_EVERY_S),
                access=self.access.run(),
                reporter=self.reporter.run(),
                turns=self.turns.run(),
                usage=self.usage.run(),
                sockets=self.sockets.run(),
                fair_turns=self.fair_turns.run(),
                time_shares=self.time_shares.run(),
                notifier=self.notifier.run(),
            )
        finally:
            await self.upstream.close()
            await self.sign_on.provider.close()

    async def replay(self) -> None:
        """Load the snapshot, fold the rest of the log, and attach the writer to its subject.

        Raises Corrupt if the log ends before the snapshot.
        """
        cluster, history = await snapshots.load(self.store)
        _, target = await settled_bounds(self.log)
        snapshot_store.check_end(cluster, target)
        self._set_state(cluster, history)
        self.waiting.begin(cluster.seq)
        self.snapshots.stored_seq = cluster.seq
        async for batch in self.log.read(cluster.seq):
            await self._fold(batch)
            if self.cluster.seq >= target:
                target = await self.writer.attach()
                if self.cluster.seq >= target:
                    return

    async def _read(self) -> None:
        async for batch in self.log.read(self.cluster.seq):
            await self._fold(batch)
            if self.snapshots.due(self.cluster.seq):
                self.start(self.snapshots.save(snapshots.encode(self.cluster, self.history)))

    async def _fold(self, batch: Sequence[Entry]) -> None:
        self.heard_boot_ns = self.clock.boot_ns()
        folded = 0
        for entry in batch:
            folded += self._apply(entry)
            if folded >= FOLD_SLICE_FACTS:
                folded = 0
                await asyncio.sleep(0)

    def _apply(self, entry: Entry) -> int:
        """Fold one entry and wake the requests that wait for it. Return its number of facts."""
        commit = reading.read(self.cluster.writers, entry.subject, entry.data)
        if self.caught_up and not reading.is_ignored(commit):
            self.clocks.look(entry.subject, commit.at_ns)
            self.telemetry.jobs.note(self.cluster, commit)
        if self.caught_up and entry.subject == self.writer.subject:
            self.writer.owns(entry)
        changes = self.agreement.apply_entry(self.cluster, entry.seq, entry.subject, commit)
        self._note_bytes(entry, commit)
        self.node_writes.folded(entry.subject, commit, changes)
        self.entries.note(entry)
        self.history.note(entry.seq, commit, changes)
        for change in changes:
            before = {job_id: self.index.touch(job_id) for job_id in change.jobs}
            self.waiting.changed(entry.seq, before, self.cluster.jobs, change)
        for job_id in self.index.forget_gone():
            self.history.seqs.pop(job_id, None)
        self.waiting.folded(entry.seq)
        if any(isinstance(fact, f.ReplicasScaled) for fact in commit.facts):
            self.reporter.wake()
        self.usage.folded(commit.facts)
        return len(changes)

    def _note_bytes(self, entry: Entry, commit: Commit) -> None:
        """Charge the commit's bytes to the log and to its tenants' allowances."""
        if self.caught_up and self.settings.stream_bytes:
            self.fill += (len(entry.data) + ENTRY_BYTES) / self.settings.stream_bytes
        if subjects.writer_kind(entry.subject) == subjects.GATEWAY_KIND:
            for fact in commit.facts:
                if tenant := room.tenant_of(self.cluster, fact):
                    size, now_ns = f.size_of(fact), self.clock.wall_ns()
                    self.allowance.recorded(tenant, size, commit.at_ns, now_ns)

    async def _survey(self) -> None:
        """Refresh the keys, the lag and the stream's fill level, every SURVEY_EVERY_S."""
        while True:
            self._refresh_keys()
            try:
                _, last = await self.log.bounds()
                self.lag = max(0, last - self.cluster.seq)
                self.fill = await self.filled() if self.filled is not None else 0.0
            except Unavailable:
                pass  # /readyz shows that the reader hears nothing
            self.telemetry.survey(self.cluster, self.lag, self.fill, len(asyncio.all_tasks()))
            self.queues.refresh()
            await asyncio.sleep(SURVEY_EVERY_S)

    def _refresh_keys(self) -> None:
        """Read the files of keys and groups again. A malformed one changes nothing."""
        for refresh in (self.keys.refresh, self.sign_on.groups.refresh, self.vault.refresh):
            try:
                refresh()
            except Refused as error:
                logger.warning("the previous keys and groups stay accepted: %s", error)

    def start(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_room(self, kind: str, level: float) -> None:
        """Raise Problem 507 if the stream is too full for this kind of fact (see `room.py`)."""
        if self.fill >= level:
            raise log_bounds.full(kind, self.fill, level)

    def check_recordable(self, fact: AnyFact, size: int) -> str:
        """Return the tenant that is charged for `size` bytes of facts like this one.

        Raises Problem 507 if the log has no room for them, and Problem 429 if the tenant has used
        up its bytes of this minute. The last does not apply to facts that end something.
        """
        level = room.level_of(fact)
        self.check_room(f.kind_of(fact), level)
        tenant = room.tenant_of(self.cluster, fact)
        by_tenant = tenant and not isinstance(fact, room.BY_ADMINISTRATORS)
        bounded = by_tenant and level < room.ENDINGS
        wait_s = self.allowance.wait_s(tenant, size, self.clock.wall_ns()) if bounded else 0
        if wait_s:
            raise log_bounds.used_up(tenant, self.allowance.per_minute, wait_s)
        return tenant

    async def record(self, *facts: AnyFact) -> int:
        """Store the facts as one commit, wait until it is folded back, and return its sequence.

        Raises Unavailable, and Problem as `check_recordable` does for the first fact.
        """
        size = sum(map(f.size_of, facts))
        tenant = self.check_recordable(facts[0], size)
        self.allowance.begin(tenant, size)
        self.time_shares.owe_change(tenant, size)
        try:
            return await self._stored(facts, tenant)
        finally:
            self.allowance.end(tenant, size)

    async def _stored(self, facts: Sequence[AnyFact], tenant: str) -> int:
        wait_s, kind = self.settings.record_ms / 1_000, f.kind_of(facts[0])
        try:
            stored = self.writer.put(facts, tenant)
            async with asyncio.timeout(wait_s):
                seq = await appended(kind, stored)
                await self._folded(seq)
        except TimeoutError as error:
            known = self.writer.withdraw(stored)
            text = (
                f"the log did not confirm {kind} within {wait_s:.0f} s: check that its servers "
                f"run and have disk space. {NOT_RECORDED if known else UNKNOWN}"
            )
            raise Unavailable(text) from error
        except (Refused, NotRecorded) as error:
            raise NotRecorded(f"{kind} was not recorded: {error}") from error
        except Unavailable as error:
            raise Unavailable(f"{kind}: {error}. {UNKNOWN}") from error
        return seq

    async def settle(self, seq: int) -> None:
        """Wait until `seq` is folded.

        Raises Refused if the log has not reached `seq`, and Problem 503 after MUSTER_SETTLE_MS.
        """
        wait_s = self.settings.settle_ms / 1_000
        if seq > self.cluster.seq and seq > (last := await self.log_end.last(seq)):
            raise Refused(
                f"min_seq: {seq} is beyond the last commit of this log, {last}: give the `seq` "
                "of an earlier answer"
            )
        try:
            async with asyncio.timeout(wait_s):
                await self._folded(seq)
        except TimeoutError as error:
            text = (
                f"this gateway did not reach min_seq {seq} within {wait_s:.0f} s (it is at "
                f"{self.cluster.seq}): try again, or ask another gateway"
            )
            raise Problem(503, text) from error

    async def _folded(self, seq: int) -> None:
        if self.cluster.seq < seq:
            await self.waiting.sequence(seq)
