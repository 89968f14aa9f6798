"""Trims the log: folds old commits into a base snapshot, stores it, and then purges them.

Each commit is proved against the archive before it is folded. The trimmer has its own identity, the
only one that may purge the log. It keeps no state between rounds: each starts from the stored base
snapshot, so a crash only repeats work. `trim.py` decides what may go. The simulation runs this
class too.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NoReturn, Protocol, cast

from libs.common import fold, reading, subjects
from libs.common.errors import Corrupt, Fenced, MusterError, Unavailable
from libs.common.process.clock import Clock
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot, snapshot_store
from libs.common.transport.bus import Bus
from libs.common.transport.log import Entry, Extent, TrimmableLog
from libs.common.transport.snapshot_store import (
    BASE_HEAD_OBJECT,
    BASE_OBJECT,
    SnapshotStore,
)
from libs.common.transport.writer import AHEAD_MAX_NS
from services.audit.chain.segments import Linked
from services.audit.trim import trim
from services.audit.trim.trim import Policy, Standing

PAGE: Final = 256
POSITION_S: Final = 2.0
# The pause after a purge, because there may be more to trim.
AGAIN_S: Final = 1.0
HOUR_NS: Final = 3_600_000_000_000
WAITED_FOR: Final = {
    "the scheduler": subjects.ask_scheduler("position"),
    "quota": subjects.ask_quota("position"),
}

logger = logging.getLogger(__name__)


class Archive(Protocol):
    """The archive as the trimmer uses it. All methods raise the archive's typed errors."""

    async def head_seq(self) -> int:
        """Return the last archived sequence; 0 if there is none."""
        ...

    async def between(self, first: int, last: int) -> Sequence[Linked]:
        """Return the archived commits of these sequences, in order."""
        ...

    async def young(self, after: int, since_ns: int, until_ns: int) -> int:
        """Return the first sequence after `after` whose commit was made at `since_ns` or later, but
        not after `until_ns`.

        If there is none, return the sequence after the head.
        """
        ...


def policy_of(settings: Settings) -> Policy:
    return Policy(
        settings.trim_keep_commits, settings.trim_keep_hours * HOUR_NS, settings.trim_full_percent
    )


async def _always() -> None:
    """Prove nothing: this trimmer is the only one of its log."""


class Trimmer:
    """The trimmer of one log. `trimmed` is the last sequence that this process removed.

    `prove_term` raises Fenced if another audit leads by now. It is called before each write: a
    process that was paused may go on long after another one has trimmed further.
    """

    def __init__(
        self,
        log: TrimmableLog,
        archive: Archive,
        store: SnapshotStore,
        bus: Bus,
        clock: Clock,
        policy: Policy,
        prove_term: Callable[[], Awaitable[None]] = _always,
    ) -> None:
        self.log = log
        self.archive = archive
        self.store = store
        self.bus = bus
        self.clock = clock
        self.policy = policy
        self.prove_term = prove_term
        self.trimmed = 0

    async def run(self, every_s: float) -> NoReturn:
        """Run rounds for ever. An error is logged, and the next round tries again.

        Raises Fenced if another audit leads.
        """
        while True:
            acted = False
            try:
                acted = await self.round()
            except Fenced:
                raise
            except MusterError as error:
                logger.error("the log is not trimmed: %s", error)
            await asyncio.sleep(min(AGAIN_S, every_s) if acted else every_s)

    async def round(self) -> bool:
        """Trim once; return whether commits were trimmed.

        Raises Corrupt if the archive does not hold the commits, Fenced if another audit leads,
        Unavailable.
        """
        extent = await self.log.extent()
        cluster = await snapshot_store.load(self.store, BASE_OBJECT) or Cluster()
        snapshot_store.check_end(cluster, extent.last)
        if cluster.seq < extent.last and await self.log.get(cluster.seq + 1) is None:
            await self._rebuild()
            return False
        decision = trim.decide(self.policy, await self._standing(cluster.seq, extent))
        if decision.waits_for:
            logger.warning(
                "more of the log could be trimmed, but %s has not read it", decision.waits_for
            )
        if not decision.upto:
            return False
        await self._fold(cluster, decision.upto)
        await self._trim(cluster, extent)
        return True

    async def _standing(self, base: int, extent: Extent) -> Standing:
        readers = {name: await self._position(subject) for name, subject in WAITED_FOR.items()}
        readers["the archive"] = await self.archive.head_seq()
        now_ns = self.clock.wall_ns()
        young = await self.archive.young(base, now_ns - self.policy.keep_ns, now_ns + AHEAD_MAX_NS)
        return Standing(
            base=base,
            young=young,
            last=extent.last,
            commits=extent.commits,
            bytes=extent.bytes,
            bytes_max=extent.bytes_max,
            readers=readers,
        )

    async def _position(self, subject: str) -> int:
        """Return the sequence up to which a service has folded; 0 if it does not answer."""
        try:
            answer = await self.bus.request(subject, b"", POSITION_S)
        except Unavailable:
            return 0
        return int(answer) if answer.isdigit() else 0

    async def _fold(self, cluster: Cluster, upto: int) -> None:
        """Fold the log's entries up to `upto`; prove each against the archive first."""
        async with aclosing(
            cast(AsyncGenerator[list[Entry], None], self.log.read(cluster.seq))
        ) as batches:
            async for batch in batches:
                for start in range(0, len(batch), PAGE):
                    await self._take(
                        cluster,
                        [entry for entry in batch[start : start + PAGE] if entry.seq <= upto],
                    )
                if cluster.seq >= upto:
                    return

    async def _take(self, cluster: Cluster, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        trim.prove(entries, await self.archive.between(entries[0].seq - 1, entries[-1].seq))
        for entry in entries:
            commit = reading.read(cluster.writers, entry.subject, entry.data)
            fold.apply_entry(cluster, entry.seq, entry.subject, commit)
        await asyncio.sleep(0)

    async def _trim(self, cluster: Cluster, before: Extent) -> None:
        """Store the snapshot, read it back, and then purge the commits that it replaces."""
        await self._store(cluster)
        await self.prove_term()
        await self.log.purge({subject: mark.seq for subject, mark in cluster.writers.items()})
        self.trimmed = cluster.seq
        after = await self.log.extent()
        gone, freed = (
            before.commits - after.commits + after.last - before.last,
            before.bytes - after.bytes,
        )
        logger.info(
            "the log is trimmed up to %d: %d commits and %d bytes removed", cluster.seq, gone, freed
        )

    async def _store(self, cluster: Cluster) -> None:
        data = snapshot.encode(cluster)
        await self.prove_term()
        await self.store.put(BASE_OBJECT, data)
        kept = await self.store.get(BASE_OBJECT)
        if kept != data or snapshot.decode(kept) != cluster:
            raise Unavailable(
                f"the object store did not return the snapshot at {cluster.seq} unchanged: the "
                "next round makes it again"
            )
        await self.prove_term()
        await self.store.put(BASE_HEAD_OBJECT, snapshot.head(data))

    async def _rebuild(self) -> None:
        """Make the base snapshot from the archive.

        The stored one is lost or unreadable, or the log no longer holds the commit after it.
        """
        logger.warning("no base snapshot is usable: the trimmer folds the archive to make one")
        cluster, head = Cluster(), await self.archive.head_seq()
        while cluster.seq < head:
            records = await self.archive.between(cluster.seq + 1, min(cluster.seq + PAGE, head))
            if not records or records[0].seq != cluster.seq + 1:
                raise Corrupt(
                    f"the archive does not hold commit {cluster.seq + 1}, nor does the log; "
                    "see docs/howto/trim.md"
                )
            await self._take(
                cluster, [Entry(record.seq, record.subject, record.data) for record in records]
            )
        await self._store(cluster)
        logger.warning(
            "the base snapshot is at %d now: services that stopped without it can start",
            cluster.seq,
        )
