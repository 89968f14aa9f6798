"""Reads of past moments: the states after the commits that requests ask for.

A state is folded from the nearest one before it: a kept one, or a snapshot. A tenant's requests for
the same commit share one fold. States and their bytes are kept within MUSTER_GATEWAY_PAST_BYTES for
the requests that follow, such as further pages. Reasons: docs/decisions/0070-past-moments.md.
Tests: tests/integration/test_past_moments.py.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from libs.common import fold, reading
from libs.common.errors import Corrupt, Unavailable
from libs.common.process.clock import Clock
from libs.common.state.cluster import Cluster
from libs.common.transport.log import Entry
from libs.common.transport.snapshot_store import BASE_OBJECT, CLUSTER_OBJECT, SnapshotStore
from services.api_gateway.moments import memory
from services.api_gateway.moments.frozen import (
    Part,
    Parts,
    frozen,
    head_of,
    is_whole,
    size_of,
    split,
    thawed,
)
from services.api_gateway.moments.kept import Kept
from services.api_gateway.moments.moment import Moment, time_of
from services.api_gateway.moments.places import Places
from services.api_gateway.moments.turns import FOLDS, RETRY_AFTER_S, Turns
from services.api_gateway.problems import Problem
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.history import History
from services.api_gateway.views.index import JobIndex
from services.api_gateway.views.job_lookup import JobLookup

# States that are kept as objects. One takes OBJECT_BYTES times its encoded size (measured: 2.4).
MOMENTS_MAX: Final = 8
FROZEN_MAX: Final = 256
OBJECT_BYTES: Final = 3
# On a long way a state is kept after so many commits.
CHECKPOINT_EVERY: Final = 20_000
# A kept state this near is used without a look at the snapshots.
NEAR: Final = 10_000


class Moments:
    """The past moments of one gateway."""

    def __init__(
        self, entries: Entries, store: SnapshotStore, clock: Clock, bytes_max: int, wait_s: float
    ) -> None:
        self.entries = entries
        self.store = store
        self.wait_s = wait_s
        self.places = Places(entries, store, clock, wait_s)
        self.turns = Turns(FOLDS)
        self.moments: Kept[Moment] = Kept(MOMENTS_MAX, bytes_max * 3 // 4)
        self.frozen: Kept[Parts] = Kept(FROZEN_MAX, bytes_max // 4)
        self._folds: dict[tuple[str, int], _Fold] = {}
        self.collector = memory.Collector()
        self._freeing: set[asyncio.Task[None]] = set()

    async def at(self, text: str, tenant: str) -> Moment:
        """Return the state at a sequence, or at a time.

        Raises Refused if the text is neither, Problem 410 for a moment before the oldest one, 429
        or 503 if it takes too long, and Unavailable.
        """
        seq = await self.places.seq_of(text, tenant)
        kept = self.moments.get(seq)
        if kept is not None:
            return kept
        running = self._folds.get((tenant, seq))
        if running is None:
            running = self._folds[(tenant, seq)] = _Fold(seq)
            running.task = asyncio.create_task(self._run(running, tenant), name=f"moment {seq}")
            # Its error is known even if no request waits for it any more.
            running.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        assert running.task is not None
        done, _ = await asyncio.wait({running.task}, timeout=self.wait_s)
        if not done:
            text = (
                f"the state at commit {seq} is not ready after {self.wait_s:.0f} s: it is folded "
                f"up to commit {running.reached}, and goes on: ask again in a moment"
            )
            raise Problem(503, text, retry_after_s=RETRY_AFTER_S)
        return running.task.result()

    async def _run(self, running: "_Fold", tenant: str) -> Moment:
        try:
            async with self.turns.take(tenant):
                kept = self.moments.get(running.seq)
                if kept is not None:
                    return kept
                with self.collector.deferred():
                    return await self._folded(running, tenant)
        except Corrupt as error:
            raise Unavailable(
                f"the state at commit {running.seq} cannot be folded: {error}: check the log with "
                "muster audit verify, or ask for a later moment"
            ) from error
        finally:
            del self._folds[(tenant, running.seq)]

    async def _folded(self, running: "_Fold", tenant: str) -> Moment:
        """Fold to the commit, and keep the state. Raises Unavailable or Corrupt."""
        cluster = await self._begin(running.seq)
        async with aclosing(self._read(cluster.seq, running.seq)) as slices:
            async for piece in slices:
                await self.turns.steps(_applied(cluster, piece))
                running.reached = cluster.seq
                if cluster.seq >= self.frozen.nearest(cluster.seq) + CHECKPOINT_EVERY:
                    await self._freeze(cluster, tenant)
        if cluster.seq != running.seq:
            raise Unavailable(f"commit {cluster.seq + 1} could not be read: try again")
        size = await self._freeze(cluster, tenant)
        index = JobIndex(cluster, whole=False)
        await self.turns.steps(index.filled())
        entries, at_ns = self.entries, time_of(cluster)
        lookup = JobLookup(
            cluster, index=index, history=History(), entries=entries, bus=entries.bus
        )
        moment = Moment(cluster, index, lookup, lambda: at_ns)
        for dropped in self.moments.put(cluster.seq, moment, size * OBJECT_BYTES, tenant):
            self._free(dropped)
        return moment

    def _free(self, dropped: Moment) -> None:
        """Free a state in the background, when no request reads it any more."""
        task = asyncio.create_task(
            self._freed(memory.pieces_of(dropped), weakref.ref(dropped)), name="freed moment"
        )
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _freed(self, pieces: list[object], moment: "weakref.ref[Moment]") -> None:
        await memory.unread(moment)
        await self.turns.steps(memory.freed(pieces))

    async def _read(self, after: int, upto: int) -> AsyncGenerator[list[Entry], None]:
        if after < upto:
            async with aclosing(self.entries.scan(after, upto)) as slices:
                async for piece in slices:
                    yield piece

    async def _freeze(self, cluster: Cluster, tenant: str) -> int:
        """Keep the state as bytes, and return their number."""
        parts: Parts = []
        await self.turns.steps(_collected(parts, frozen(cluster)))
        size = size_of(parts)
        self.frozen.put(cluster.seq, parts, size, tenant)
        return size

    async def _begin(self, seq: int) -> Cluster:
        """Return the nearest state that is not beyond `seq`; the empty one if there is none."""
        near = self.frozen.nearest(seq)
        parts = self.frozen.get(near) or []
        if not near or seq - near > NEAR:
            found = await self._snapshot(near, seq)
            parts = found if found is not None else parts
        try:
            cluster = await self.turns.steps(thawed(parts))
        except msgspec.DecodeError as error:
            raise Corrupt(f"a snapshot cannot be read ({error})") from error
        assert cluster is not None  # it yields at least once
        return cluster

    async def _snapshot(self, after: int, upto: int) -> Parts | None:
        """Return the newest snapshot of these sequences; None if there is none or it is damaged."""
        heads = [head for data in await self._snapshots() if (head := head_of(data)) is not None]
        for head in sorted(heads, key=lambda each: each.seq, reverse=True):
            if not after < head.seq <= upto or not await asyncio.to_thread(is_whole, head):
                continue
            parts: Parts = []
            with suppress(msgspec.DecodeError):
                await self.turns.steps(_collected(parts, split(head.state)))
                return parts
        return None

    async def _snapshots(self) -> list[bytes]:
        names = (CLUSTER_OBJECT, BASE_OBJECT)
        return [data for name in names if (data := await self.store.get(name))]


class _Fold:
    """One fold under way. `reached` is the commit up to which it has come."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.reached = 0
        self.task: asyncio.Task[Moment] | None = None


def _applied(cluster: Cluster, entries: Iterable[Entry]) -> Iterator[int]:
    """Fold the entries; yield after each."""
    for entry in entries:
        commit = reading.read(cluster.writers, entry.subject, entry.data)
        fold.apply_entry(cluster, entry.seq, entry.subject, commit)
        yield entry.seq


def _collected(parts: Parts, source: Iterator[Part]) -> Iterator[int]:
    """Put the parts into the list; yield after each."""
    for part in source:
        parts.append(part)
        yield len(parts)
