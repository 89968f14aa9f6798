"""The audit service: archives every commit of the log in order, in batches, with its link of the
chain.

It follows the log from the archive's own head, so a restart neither loses nor repeats a commit. The
database runs in a thread: a slow disk delays the archive only. Answers, events, heads and the
trimmer run beside it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from libs.common import reading, subjects
from libs.common.errors import Corrupt, Trimmed, Unavailable
from libs.common.process.cancellation import heed
from libs.common.process.pulse import NO_PULSE, Pulse
from libs.common.process.serving_tasks import serve_together, until
from libs.common.spans import job_spans, recording
from libs.common.spans.recording import Recorder
from libs.common.transport import snapshot_store
from libs.common.transport.log import Entry, Log
from libs.common.transport.snapshot_store import BASE_OBJECT, SnapshotStore
from services.audit.chain.chain import is_link_of
from services.audit.store.store import Store

BATCH_MAX: Final = 1_000
RETRY_S: Final = 1.0
BEAT_S: Final = 1.0
# The part of this service that its pulse watches.
FOLLOWER: Final = "follower"
# The archive may lag the log by this much, so that it needs fewer transactions (one sync each).
GATHER_S: Final = 0.2
# The field `trace` in the bytes of a plain commit, if it is not empty: its name, and the length of
# a `traceparent`.
TRACED: Final = b"\xa5trace\xd9\x37"

logger = logging.getLogger(__name__)


class Audit:
    """One audit process over one archive. `archived` is the last archived sequence."""

    def __init__(
        self,
        log: Log,
        store: Store,
        snapshots: SnapshotStore,
        begin: int = 1,
        pulse: Pulse = NO_PULSE,
    ) -> None:
        self.log = log
        self.store = store
        self.snapshots = snapshots
        self.begin = begin
        self.pulse = pulse
        self.archived = 0
        self._checked = asyncio.Event()
        self._grown = asyncio.Event()
        # Readers of the archive may hold all threads of the loop's own pool.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")

    async def open(self) -> None:
        """Migrate the archive and learn where it ends.

        Call it before anything else uses the archive.
        """
        opening = asyncio.ensure_future(asyncio.to_thread(self._open))
        try:
            while not opening.done():
                self.pulse.beat(FOLLOWER)  # a restart would begin the migration again
                await asyncio.wait((opening,), timeout=BEAT_S)
        finally:
            opening.cancel()
        self.archived = opening.result()

    def _open(self) -> int:
        self.store.migrate()
        head = self.store.head()
        return head.seq if head is not None else self.begin - 1

    async def run(
        self,
        stop: asyncio.Event,
        beside: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
    ) -> None:
        """Follow the log until `stop`, with all of `beside` running at the same time.

        They begin once the archive is known to be one of this log; a log without a leader delays
        that. Raises Corrupt if the archive is not one of this log.
        """
        lives = {f"beside-{number}": self._later(each) for number, each in enumerate(beside)}
        await serve_together(follow=self._follow(), stop=until(stop), **lives)

    async def _later(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `work` after the check of the history."""
        await self._checked.wait()
        await work()

    async def log_end(self) -> int:
        """Return the last sequence of the log. Raises Unavailable."""
        return (await self.log.bounds())[1]

    async def _check(self) -> None:
        """Check the history. While the log does not answer, log it and try again."""
        while True:
            self.pulse.beat(FOLLOWER)  # a restart would not help against a silent log
            try:
                await self._check_history()
            except Unavailable as error:
                heed()
                logger.warning("the archive waits at %d: %s", self.archived, error)
                await asyncio.sleep(RETRY_S)
            else:
                self._checked.set()
                return

    async def _check_history(self) -> None:
        """Raise Corrupt if the log holds another commit in the place of the archive's last one.

        The archive then belongs to another cluster, or the log was set back and has grown again. A
        log that ends before is found by its reader. A trimmed commit cannot be compared.
        """
        head = await asyncio.to_thread(self.store.head)
        if head is None:
            return
        await self.log.bounds()
        entry = await self.log.get(head.seq)
        if entry is not None and not is_link_of(head, entry):
            raise Corrupt(
                f"commit {head.seq} of the log is another one than the archive's last commit: the "
                "archive belongs to another cluster, or the log was restored to an earlier point, "
                "or the archive's last record was changed: run `muster audit verify` first. Then "
                "set MUSTER_AUDIT_URL (or MUSTER_STATE) to the archive of this cluster, or to an "
                "empty one; see docs/howto/restore.md"
            )

    async def beyond(self, seq: int) -> None:
        """Wait until more than commit `seq` is archived."""
        while self.archived <= seq:
            await self._grown.wait()

    async def _follow(self) -> None:
        await self._check()
        try:
            async for batch in gathered(self._read()):
                await self._archive(batch)
        except Trimmed as error:
            raise Corrupt(await self._missing()) from error

    async def _read(self) -> AsyncIterator[list[Entry]]:
        async for batch in self.log.read(self.archived):
            self.pulse.beat(FOLLOWER)
            yield batch

    async def _missing(self) -> str:
        """Return the error text for a log that begins after the end of the archive."""
        base = await snapshot_store.load(self.snapshots, BASE_OBJECT)
        lost = (
            f"commit {self.archived + 1} is not archived, and the log no longer holds it: "
            "restore the archive from a backup"
        )
        if self.archived >= self.begin or base is None:
            return lost
        return (
            f"{lost}; if there is none, MUSTER_AUDIT_BEGIN={base.seq + 1} begins a new chain, and "
            "every verification will report the missing commits before it"
        )

    async def _archive(self, batch: list[Entry]) -> None:
        """Store the batch in portions, each in one transaction.

        While the database does not accept one, log the error and try again.
        """
        loop = asyncio.get_running_loop()
        while batch:
            try:
                count, _ = await loop.run_in_executor(
                    self._thread, self.store.append_portion, batch, self.begin
                )
                portion, batch = batch[:count], batch[count:]
                self.pulse.beat(FOLLOWER)
                self.archived = portion[-1].seq
                if recording.active is not None:
                    _record_spans(recording.active, portion)
                self._grown.set()
                self._grown = asyncio.Event()
            except Unavailable as error:
                self.pulse.beat(FOLLOWER)  # a restart would not help against a failing database
                logger.error("the archive waits at %d: %s", self.archived, error)
                await asyncio.sleep(RETRY_S)


def _record_spans(recorder: Recorder, batch: list[Entry]) -> None:
    """Record that submissions of traced jobs are archived now. Others are not decoded."""
    now_ns = time.time_ns()
    for entry in batch:
        if TRACED in entry.data and subjects.writer_kind(entry.subject) == subjects.GATEWAY_KIND:
            commit = reading.read_alone(entry.subject, entry.data)
            recorder.record_all(job_spans.archived(commit, now_ns))


async def gathered(batches: AsyncIterator[list[Entry]]) -> AsyncIterator[list[Entry]]:
    """Merge batches into fewer, larger ones, because each transaction costs one fsync.

    A reader that is far behind does not wait.
    """
    async for batch in batches:
        for start in range(0, len(batch), BATCH_MAX):
            yield batch[start : start + BATCH_MAX]
        if 0 < len(batch) < BATCH_MAX:
            await asyncio.sleep(GATHER_S)
