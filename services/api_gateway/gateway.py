"""The gateway's state and its loop: facts are folded into one Cluster, intents are recorded by one
Writer.

It owns no decision about jobs. An intent is answered only when its own commit is stored *and*
folded back, so that whoever got the answer sees it in the next read. What ends it (Fenced: another
process writes this instance's subject; Corrupt; Unavailable) ends the process: a supervisor starts
it again, and it replays. Held by tests/integration/test_gateway_*.py.
"""

import asyncio
import logging
import os
from base64 import b32encode
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

from libs.common import arrays, fold, reading, subjects
from libs.common import facts as f
from libs.common.errors import Refused, Unavailable
from libs.common.facts import AnyFact, Commit
from libs.common.messages import OutputChunk
from libs.common.model import JobId, NodeId
from libs.common.process.clock import Clock, ClockWatch
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster, Job
from libs.common.transport import archive, snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.kv import MemoryOutputs, OutputStore
from libs.common.transport.log import Entry, Log, settled_bounds
from libs.common.transport.snapshot_store import SnapshotStore
from libs.common.transport.uploads import MemoryUploads, UploadStore
from libs.common.transport.writer import Writer
from services.api_gateway.access import roles, room
from services.api_gateway.access.allowance import Allowance
from services.api_gateway.access.auth import Keys
from services.api_gateway.access.claims import Claims
from services.api_gateway.access.records import Recorder
from services.api_gateway.access.roles import Principal
from services.api_gateway.agents.admission import Admission
from services.api_gateway.agents.revoking import NodeWrites
from services.api_gateway.agents.secret_answers import SecretAnswers
from services.api_gateway.agents.upload_answers import UploadAnswers
from services.api_gateway.channels.followers import Followers
from services.api_gateway.openai.balancer import Balancer
from services.api_gateway.openai.catalogue import Catalogue, Deployed
from services.api_gateway.openai.limited import Limited
from services.api_gateway.openai.metering import Meter
from services.api_gateway.openai.reporter import Reporter
from services.api_gateway.openai.upstream import Upstream
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.secrets.vault import Vault
from services.api_gateway.telemetry import Telemetry
from services.api_gateway.views import snapshots
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.history import History, concerns
from services.api_gateway.views.index import JobIndex
from services.api_gateway.views.snapshots import Snapshots
from services.api_gateway.views.waiting import Waiting
from services.api_gateway.vitals import Pulse

# The loop serves requests between slices of a long batch.
FOLD_SLICE_FACTS: Final = 500
SURVEY_EVERY_S: Final = 2.0
# Bytes that the server stores beside a commit: subject and headers, roughly.
ENTRY_BYTES: Final = 250
TENANT_PART: Final = 50
TENANT_BYTES_MIN: Final = 1 << 20
RETRY_AFTER_S: Final = 60


# Node, job, attempt, stream, offset.
OutputKey = tuple[NodeId, JobId, int, str, int]

logger = logging.getLogger(__name__)


class Gateway:
    """Everything that the routes read and the one way to record.

    `filled` tells which part of the stream's bytes is used.
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
        secrets: OutputStore | None = None,
        uploads: UploadStore | None = None,
    ) -> None:
        self.log = log
        self.bus = bus
        self.clock = clock
        self.settings = settings
        self.outputs = outputs
        self.store = store
        self.filled = filled
        self.keys = Keys(settings.api_keys_file)
        self.telemetry = Telemetry()
        self.models: Catalogue = Deployed(lambda: self.cluster)
        self.meter: Meter = Limited(
            lambda: self.cluster, bus, clock, settings.limits_answer_ms / 1_000
        )
        self.vault = Vault(settings.vault_key_file, secrets or MemoryOutputs())
        self.secret_answers = SecretAnswers(lambda: self.cluster, bus, self.vault)
        self.uploads = uploads or MemoryUploads()
        self.upload_answers = UploadAnswers(lambda: self.cluster, bus, self.uploads)
        self.receiving = 0
        self.claims = Claims()
        self.upstream = Upstream(settings)
        self.balancer = Balancer(settings.model_suspect_ms / 1_000)
        self.reporter = Reporter(lambda: self.cluster, self.balancer, bus, settings.instance)
        self.entries = Entries(log, bus)
        self.waiting = Waiting()
        self.pulse = Pulse(bus, clock)
        self.snapshots = Snapshots(store, 0)
        self.writer = Writer(
            log,
            clock,
            subjects.gateway(settings.instance),
            lambda: self.cluster.seq,
            settings.log_append_ms / 1_000,
        )
        self.node_writes = NodeWrites(self)
        self.admission = Admission(lambda: self.cluster, bus, self.node_writes.budget.over)
        self.clocks = ClockWatch(clock)
        self.access = Recorder(
            clock,
            self.writer.put,
            lambda: self.fill >= room.RECORDS,
            settings.access_flush_ms / 1_000,
        )
        per_minute = settings.tenant_bytes_per_minute or max(
            TENANT_BYTES_MIN, settings.stream_bytes // TENANT_PART
        )
        self.allowance = Allowance(per_minute)
        self.caught_up = False
        self.heard_boot_ns = 0
        self.lag = 0
        self.fill = 0.0
        self.followers = 0
        self.places = Followers(settings.followers_per_tenant, settings.followers_per_job)
        self.output_asks: dict[OutputKey, asyncio.Task[OutputChunk]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin_from(Cluster(), History())

    def _begin_from(self, cluster: Cluster, history: History) -> None:
        self.cluster = cluster
        self.history = history
        self.index = JobIndex(cluster)

    async def run(self) -> None:
        """Replay, then serve for ever; raises what ends this process."""
        try:
            await self.replay()
            await self.secret_answers.listen()
            await self.admission.listen()
            await self.node_writes.listen()
            await self.upload_answers.listen()
            await (
                self.reporter.report()
            )  # the scheduler knows of this gateway before its first request
            self.caught_up = True
            await serve_together(
                writer=self.writer.run(),
                reader=self._read(),
                survey=self._survey(),
                pulse=self._take_pulse(),
                access=self.access.run(),
                reporter=self.reporter.run(),
            )
        finally:
            await self.upstream.close()

    async def replay(self) -> None:
        """Snapshot and tail, and where our own subject stands.

        Raises Corrupt when the log ends before the snapshot.
        """
        cluster, history = await snapshots.load(self.store)
        _, target = await settled_bounds(self.log)
        snapshot_store.check_end(cluster, target)
        self._begin_from(cluster, history)
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
        turn = 0
        for entry in batch:
            turn += self._apply(entry)
            if turn >= FOLD_SLICE_FACTS:
                turn = 0
                await asyncio.sleep(0)

    def _apply(self, entry: Entry) -> int:
        """Fold one entry, wake who waits for it; gives its number of facts."""
        commit = reading.read(self.cluster.writers, entry.subject, entry.data)
        if self.caught_up and not reading.is_ignored(commit):
            self.clocks.look(entry.subject, commit.at_ns)
        if self.caught_up and entry.subject == self.writer.subject:
            self.writer.owns(entry)
        changes = fold.apply_entry(self.cluster, entry.seq, entry.subject, commit)
        self._note_bytes(entry, commit)
        self.node_writes.folded(entry.subject, commit, changes)
        self.entries.note(entry)
        self.history.note(entry.seq, commit, changes)
        for change in changes:
            for job_id in change.jobs:
                self.index.touch(job_id)
            self.waiting.changed(entry.seq, change.jobs, change.nodes)
        for job_id in self.index.forget_gone():
            self.history.seqs.pop(job_id, None)
        self.waiting.folded(entry.seq)
        if any(isinstance(fact, f.ReplicasScaled) for fact in commit.facts):
            self.reporter.wake()
        return len(changes)

    def _note_bytes(self, entry: Entry, commit: Commit) -> None:
        """Charge the commit's bytes to the log and to its tenants' allowances."""
        if self.caught_up and self.settings.stream_bytes:
            self.fill += (len(entry.data) + ENTRY_BYTES) / self.settings.stream_bytes
        if subjects.writer_kind(entry.subject) == subjects.GATEWAY_KIND:
            for fact in commit.facts:
                if tenant := self._tenant_of(fact):
                    self.allowance.recorded(
                        tenant, f.size_of(fact), commit.at_ns, self.clock.wall_ns()
                    )

    def _tenant_of(self, fact: AnyFact | f.Unknown) -> str:
        """Return the tenant that a user's fact is charged to; empty for facts that only operators
        and gateways record.
        """
        job = self.cluster.jobs.get(getattr(fact, "job_id", JobId("")))
        model = (
            self.cluster.models.get(fact.name)
            if isinstance(fact, f.ModelScaled | f.ModelUndeployed)
            else None
        )
        return getattr(fact, "tenant", "") or (
            job.tenant if job is not None else model.tenant if model is not None else ""
        )

    async def _survey(self) -> None:
        """Now and then: the lag, how full the stream is, whether the key file changed."""
        while True:
            self._refresh_keys()
            try:
                _, last = await self.log.bounds()
                self.lag = max(0, last - self.cluster.seq)
                self.fill = await self.filled() if self.filled is not None else 0.0
            except Unavailable:
                pass  # the reader's silence shows in /readyz
            self.telemetry.survey(self.cluster.seq, self.lag, self.fill)
            await asyncio.sleep(SURVEY_EVERY_S)

    async def _take_pulse(self) -> None:
        while True:
            await self.pulse.take()
            await asyncio.sleep(SURVEY_EVERY_S)

    def _refresh_keys(self) -> None:
        """A slip in the file costs no running gateway: the keys that were read last
        stay accepted.
        """
        try:
            self.keys.refresh()
        except Refused as error:
            logger.warning("the API keys stay as they were: %s", error)

    def start(self, call: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_room(self, kind: str, level: float) -> None:
        """Raises Problem 507 when the stream is too full for this kind of fact (see `room.py`)."""
        if self.fill >= level:
            text = f"the log is {self.fill:.0%} full, and {kind} is taken up to {level:.0%}"
            raise Problem(
                507, f"{text}: trim it or enlarge MUSTER_STREAM_BYTES", retry_after_s=RETRY_AFTER_S
            )

    async def record(self, *facts: AnyFact) -> int:
        """Store the facts as one commit and wait until it is folded back; gives the sequence.

        Raises Unavailable, Problem 507 when the log has no room for the first fact, and Problem 429
        when its tenant took its bytes of this minute. What ends something is never refused for
        that.
        """
        level = room.level_of(facts[0])
        self.check_room(f.kind_of(facts[0]), level)
        tenant, size = self._tenant_of(facts[0]), f.size_of(facts[0])
        bounded = (
            tenant and level < room.ENDINGS and not isinstance(facts[0], room.BY_ADMINISTRATORS)
        )
        wait_s = self.allowance.wait_s(tenant, size, self.clock.wall_ns()) if bounded else 0
        if wait_s:
            text = (
                f"tenant {tenant} may add {self.allowance.per_minute} bytes a minute to the log, "
                "and has used them up"
            )
            raise Problem(
                429,
                (
                    f"{text}: try again in {wait_s} s, send less, or raise "
                    "MUSTER_TENANT_BYTES_PER_MINUTE"
                ),
                retry_after_s=wait_s,
            )
        self.allowance.begin(tenant, size)
        try:
            return await self._stored(facts)
        finally:
            self.allowance.end(tenant, size)

    async def _stored(self, facts: Sequence[AnyFact]) -> int:
        wait_s, kind = self.settings.record_ms / 1_000, f.kind_of(facts[0])
        try:
            async with asyncio.timeout(wait_s):
                seq = await self.writer.put(facts)
                await self._folded(seq)
        except TimeoutError as error:
            text = (
                f"the log did not confirm {kind} within {wait_s:.0f} s: are its servers up, and "
                "is there room on their disks?"
            )
            raise Unavailable(
                f"{text} Look whether it was recorded before you repeat it"
            ) from error
        except (Refused, Unavailable) as error:
            raise Unavailable(
                f"{kind} was not recorded here ({error}): look whether it is there before "
                "you repeat it"
            ) from error
        return seq

    async def settle(self, seq: int) -> None:
        """Wait until `seq` is folded.

        Raises Refused for one that the log has not reached, Problem 503 after MUSTER_SETTLE_MS.
        """
        wait_s = self.settings.settle_ms / 1_000
        if seq > self.cluster.seq and seq > (last := (await self.log.bounds())[1]):
            raise Refused(
                f"min_seq {seq} is no sequence of this log, whose last one is {last}: give "
                "the `seq` of an earlier answer"
            )
        try:
            async with asyncio.timeout(wait_s):
                await self._folded(seq)
        except TimeoutError as error:
            raise Problem(
                503,
                (
                    f"min_seq {seq} is not reached after {wait_s:.0f} s, this gateway is at "
                    f"{self.cluster.seq}"
                ),
            ) from error

    async def _folded(self, seq: int) -> None:
        if self.cluster.seq < seq:
            await self.waiting.sequence(seq)

    def job(self, ref: str, principal: Principal) -> Job:
        """By id, name, or unique beginning of an id, of those that the principal sees; an element
        by that of its array and its number.

        Raises Problem 404, or 409 naming the candidates.
        """
        known = self.cluster.jobs.get(JobId(ref))
        candidates = self._candidates(ref, principal)
        if len(candidates) > 1:
            raise Problem(
                409,
                f"{ref!r} begins the ids of several jobs: write more of it",
                candidates=candidates,
            )
        if candidates:
            return self.cluster.jobs[candidates[0]]
        element = self.element(ref, principal)
        if element is not None and element[1] in self.cluster.jobs:
            return self.cluster.jobs[element[1]]
        if element is not None:
            raise Problem(
                404,
                (
                    f"{element[1]} has not begun, or has ended long ago, or there is none: "
                    f"muster describe {element[0].job_id}"
                ),
            )
        kind = Problem if known is None else Denied
        raise kind(
            404,
            (
                f"no job has the id, the name or an id beginning with {ref[:64]!r}: `muster ps "
                "--all` (GET /v1/jobs?all=1) lists them"
            ),
        )

    def element(self, ref: str, principal: Principal) -> tuple[Job, JobId] | None:
        """The array and the id of its element that such a text names, whether it has begun or not;
        None when it names something else.
        """
        name, number = arrays.element_of(ref)
        found = (
            self._candidates(name, principal)
            if name and not self._candidates(ref, principal)
            else []
        )
        array = self.cluster.jobs[found[0]] if len(found) == 1 else None
        return (
            (array, arrays.element_id(array.job_id, number))
            if array is not None and array.elements is not None
            else None
        )

    def _candidates(self, ref: str, principal: Principal) -> list[JobId]:
        """The one of that id or name, else those whose ids begin so."""

        def seen(job: Job) -> bool:
            return roles.sees(principal, job.tenant)

        known = self.cluster.jobs.get(JobId(ref))
        found = known if known is not None and seen(known) else self.index.named(ref, seen)
        return (
            [found.job_id] if found is not None else self.index.beginning(ref, seen) if ref else []
        )

    async def archived_job(self, ref: str, principal: Principal) -> list[int]:
        """The commits of a job that left the live state, by its whole id; none when nobody knows it
        or the principal may not.
        """
        try:
            seqs = await archive.job_seqs(self.bus, ref)
            return seqs if seqs and await self._saw(seqs[0], ref, principal) else []
        except Unavailable as error:
            logger.warning("the archive was asked about job %s: %s", ref[:64], error)
            return []

    async def _saw(self, seq: int, job_id: str, principal: Principal) -> bool:
        """Whether the job whose first commit this is was the principal's to see: that commit names
        its tenant.
        """
        entry = None if roles.sees_all(principal) else await self.entries.get(seq)
        commit = reading.read_alone(entry.subject, entry.data) if entry is not None else None
        facts = (
            [fact for fact in commit.facts if concerns(fact, job_id)] if commit is not None else []
        )
        return roles.sees_all(principal) or any(
            roles.sees(principal, getattr(fact, "tenant", "")) for fact in facts
        )

    async def job_seqs(self, ref: str, principal: Principal) -> tuple[JobId, list[int]]:
        """Id and commits of a job, from the archive where this gateway does not know them.

        Raises Problem as `job` does.
        """
        try:
            job = self.job(ref, principal)
        except Problem as problem:
            seqs = await self.archived_job(ref, principal) if problem.status == 404 else []
            if not seqs:
                raise
            return JobId(ref), seqs
        known = self.history.of(job.job_id)
        if known and known[0] == job.seq:
            return job.job_id, known
        return job.job_id, sorted({*await self.archived_job(job.job_id, principal), *known})

    def new_job_id(self) -> JobId:
        """Short, readable, and never one that is known here."""
        while True:
            job_id = JobId("j" + b32encode(os.urandom(7)).decode().lower()[:10])
            if job_id not in self.cluster.jobs:
                return job_id

    def readiness(self) -> list[dict[str, object]]:
        """The checks of /readyz."""
        silence_s = (self.clock.boot_ns() - self.heard_boot_ns) / 1e9
        return [
            {
                "check": "replayed",
                "ok": self.caught_up,
                "detail": f"folded up to {self.cluster.seq}",
            },
            {
                "check": "log_heard",
                "ok": silence_s < self.settings.ready_silence_ms / 1_000,
                "detail": f"{silence_s:.1f} s ago",
            },
            {
                "check": "lag",
                "ok": self.lag <= self.settings.ready_lag_commits,
                "detail": f"{self.lag} commits",
            },
        ]
