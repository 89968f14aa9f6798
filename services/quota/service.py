"""Quota as a process: the shared shell over its state.

Besides committing facts, it gives gateways parts of the present minute's budgets (`rates.py`) and
answers how far it has folded.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from libs.common import subjects
from libs.common.errors import Fenced, Unavailable
from libs.common.facts import AnyFact, Commit, QuotaTermBegan
from libs.common.leadership.candidate import Candidate, hand_over
from libs.common.leadership.leading import GiveSigns, Leading
from libs.common.leadership.telling import tell
from libs.common.messages import rate_messages
from libs.common.process.cancellation import before
from libs.common.process.clock import Clock
from libs.common.process.pulse import Pulse
from libs.common.process.service import DECIDER, READER, Shell
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.spans import job_spans, recording
from libs.common.state.accounts import limits_of
from libs.common.state.cluster import Cluster, epoch_at
from libs.common.transport import snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Log
from libs.common.transport.pages import PageStore
from libs.common.transport.snapshot_store import SnapshotStore
from libs.common.transport.writer import Writer
from services.quota.decide import decide
from services.quota.kept_rates import KeptRates
from services.quota.ledger_time import LedgerTime
from services.quota.rates import WINDOW_NS, Rates
from services.quota.state import State

# Time for the log to store what was decided before a planned stop.
EMPTIED_S: Final = 3.0

logger = logging.getLogger(__name__)


class Quota:
    """One quota process."""

    def __init__(
        self,
        log: Log,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        signs: GiveSigns,
        store: SnapshotStore,
        pages: PageStore,
    ) -> None:
        self.log = log
        self.bus = bus
        self.clock = clock
        self.settings = settings
        self.signs = signs
        self.store = store
        self.stopping = False
        self.leading = Leading(subjects.QUOTA_KIND, clock, settings.term_ms)
        self.state = State(Cluster())
        self.writer = Writer(
            log,
            clock,
            subject=subjects.QUOTA,
            seen=lambda: self.state.seq,
            budget_s=settings.log_append_ms / 1_000,
        )
        self.time = LedgerTime(clock.wall_ns(), clock.boot_ns())
        self.rates = Rates(self.time.last_ns)
        self.kept = KeptRates(pages, self.rates, 0)
        self.pages = pages
        pulse = Pulse(settings.alive_file, READER, DECIDER)
        self.shell = Shell(
            log,
            writer=self.writer,
            state=self.state,
            propose=self._propose,
            voice=self,
            pulse=pulse,
        )
        self.candidate = Candidate(
            subjects.QUOTA_KIND,
            bus,
            clock,
            settings.term_ms,
            pulse,
        )

    def _propose(self, now_ns: int) -> Sequence[AnyFact]:
        self.leading.beat()
        return () if self.stopping else decide(self.state, now_ns)

    def folded(self, entry: Entry, commit: Commit) -> None:
        """Note the term of another quota."""
        if entry.subject == subjects.QUOTA and any(
            isinstance(fact, QuotaTermBegan) for fact in commit.facts
        ):
            self.candidate.read(self._epoch_of(entry.seq), commit.at_ns, self.shell.live)

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        """Record the spans of what the log has just acknowledged."""
        recorder = recording.active
        if recorder is not None:
            now_ns = self.clock.wall_ns()
            recorder.record_all(job_spans.admitted(self.state.cluster.jobs, facts, now_ns))

    def _now_ns(self) -> int:
        """Return the present time of the ledger."""
        minute_ns = self.rates.window * WINDOW_NS
        return self.time.at(self.clock.wall_ns(), self.clock.boot_ns(), minute_ns)

    async def _on_position(self, subject: str, data: bytes) -> bytes:
        return b"%d" % self.state.seq

    async def _on_reserve(self, subject: str, data: bytes) -> bytes | None:
        ask = rate_messages.decode_ask(data)
        limits = limits_of(self.state.cluster, ask.tenant, ask.account)
        answer = self.rates.reserve(limits, ask, self._now_ns())
        try:
            await self.kept.cover((ask.tenant, ask.account))
            answer = self.rates.confirmed(ask, answer)
        except Fenced as error:
            logger.warning("%s", error)  # the reader ends this process when it has the later term
            return None
        except Unavailable as error:
            # The account's slice stays unused in this minute.
            logger.warning("a slice was not given: %s", error)
            answer = replace(answer, given=False, requests=0, tokens=0, starting=True)
        return rate_messages.encode(answer)

    async def _on_return(self, subject: str, data: bytes) -> None:
        self.rates.take_back(rate_messages.decode_return(data), self._now_ns())

    def _epoch_of(self, seq: int) -> int:
        return epoch_at(self.state.cluster, seq)

    async def _replay(self) -> None:
        self.state = self.shell.state = State(await snapshot_store.begin(self.log, self.store))
        await self.shell.replay()
        # No answer from before a restore counts.
        self.candidate.epoch = max(self.candidate.epoch, self._epoch_of(0))

    async def run(self, stop: asyncio.Event, replayed: Callable[[], None] = lambda: None) -> None:
        """Restore from the snapshot and the log, follow the log until it is this process's turn,
        then serve until `stop`.

        A planned stop hands over to a follower, if there is one. Raises Stopped if `stop` is set
        before this process serves.
        """
        await before(stop, self._replay())
        replayed()
        try:
            await serve_together(
                reader=self.shell.follow(),
                leader=self._lead(stop),
                telling=tell(self.bus, subjects.QUOTA_KIND, self.settings.instance, self._sign),
            )
        except Fenced:
            if not self.stopping:
                raise
            logger.info("another quota has taken over")

    def _sign(self) -> tuple[bool, int, int]:
        return self.candidate.leads, self.candidate.epoch, self.state.seq

    async def _lead(self, stop: asyncio.Event) -> None:
        await before(stop, self._take_over())
        await serve_together(
            deciding=self.shell.serve(),
            leadership=self.signs(self.leading),
            answers=self._answer_until(stop),
            rates=self.kept.keep_trying(),
        )

    async def _take_over(self) -> None:
        """Begin a term when no other quota leads."""
        began = QuotaTermBegan(instance=self.settings.instance)
        await self.candidate.lead(
            lambda: self.shell.begin(lambda: [began], self.candidate.confirm, self._epoch_of)
        )
        self.leading.begin(self.writer.epoch, renewed=self.writer.acked_boot_ns)
        self.time = LedgerTime(self.clock.wall_ns(), self.clock.boot_ns())
        self.rates = Rates(self.time.last_ns)
        self.kept = KeptRates(self.pages, self.rates, self.writer.epoch)
        logger.info("term %d began after commit %d", self.writer.epoch, self.state.seq)

    async def _answer_until(self, stop: asyncio.Event) -> None:
        await self.leading.listen(self.bus)
        await self.bus.subscribe(subjects.ask_quota("position"), self._on_position)
        await self.kept.try_to_restore()
        await self.bus.subscribe(subjects.ask_quota("reserve"), self._on_reserve, concurrent=True)
        await self.bus.subscribe(subjects.ask_quota("return"), self._on_return)
        await stop.wait()
        self.stopping = True
        try:
            async with asyncio.timeout(EMPTIED_S):
                await self.writer.emptied()
        except TimeoutError:
            return
        await hand_over(subjects.QUOTA_KIND, self.bus, self.leading.epoch)
