"""The places of moments in the log: which commit a request means, and the oldest one.

A search for the commit of a time reads up to hundreds of commits, so searches take turns as folds
do. Tests: tests/integration/test_past_moments.py.
"""

import asyncio
from contextlib import aclosing
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.process.clock import Clock
from libs.common.transport import snapshot
from libs.common.transport.snapshot_store import BASE_HEAD_OBJECT, BASE_OBJECT, SnapshotStore
from services.api_gateway.moments import times
from services.api_gateway.moments.moment import Moment, time_of
from services.api_gateway.moments.turns import RETRY_AFTER_S, SEARCHES, Turns
from services.api_gateway.problems import Problem
from services.api_gateway.times import instant_ns, rfc3339
from services.api_gateway.views.entries import Entries

# Answers show times to the millisecond, so a time means the whole of its millisecond. Otherwise the
# shown time of a commit would mean the one before it.
MS: Final = 1_000_000
# The oldest moment changes with each trim of the log.
OLDEST_FOR_NS: Final = 10_000_000_000


class Place(NamedTuple):
    """A commit and its time; 0 if the time is not known."""

    seq: int
    at_ns: int


class Places:
    """The commits of one gateway's log. `present` is its state now."""

    def __init__(self, entries: Entries, store: SnapshotStore, clock: Clock, wait_s: float) -> None:
        self.entries = entries
        self.store = store
        self.clock = clock
        self.wait_s = wait_s
        self.present: Moment | None = None
        self.turns = Turns(SEARCHES)
        self._oldest = 0
        self._reading_oldest = asyncio.Lock()
        self._oldest_until_ns = 0
        self._first_place = Place(0, 0)

    async def seq_of(self, text: str, tenant: str) -> int:
        """Return the commit that `text` means: a sequence, or the last one up to a time.

        Raises as `Moments.at`.
        """
        last, oldest = self._present().seq, await self.oldest()
        if text.isascii() and text.isdigit():
            seq = int(text[:20])
            if seq > last:
                raise Refused(
                    f"at: {seq} is beyond the last commit of this log, {last}: give a commit up "
                    "to it, or a time"
                )
        else:
            at_ns = instant_ns(text, "at", self.clock.wall_ns()) // MS * MS + MS - 1
            is_early = at_ns < (await self._first(oldest, last)).at_ns
            seq = 0 if is_early else await self._searched(tenant, at_ns, oldest, last)
        if seq < oldest:
            raise await self._too_old(text, oldest, last)
        return seq

    async def _searched(self, tenant: str, at_ns: int, oldest: int, last: int) -> int:
        """Return the commit of a time, when it is the tenant's turn."""
        try:
            async with asyncio.timeout(self.wait_s), self.turns.take(tenant):
                return await times.seq_at(self.entries, oldest, last, at_ns)
        except TimeoutError as error:
            text = (
                f"the commit of {rfc3339(at_ns)} was not found within {self.wait_s:.0f} s, because "
                "the log is slow or many times are looked for: try again, or ask for a commit"
            )
            raise Problem(503, text, retry_after_s=RETRY_AFTER_S) from error

    async def oldest(self) -> int:
        """Return the first commit whose state can be read: that of the trimmer's snapshot."""
        # One request reads it, and the others wait.
        async with self._reading_oldest:
            if self.clock.boot_ns() >= self._oldest_until_ns:
                self._oldest = max(1, await self._base_seq())
                self._oldest_until_ns = self.clock.boot_ns() + OLDEST_FOR_NS
        return self._oldest

    async def _base_seq(self) -> int:
        """Return the sequence of the trimmer's snapshot; 0 if there is no usable one."""
        # The trimmer of an earlier version stores no head.
        for name in (BASE_HEAD_OBJECT, BASE_OBJECT):
            data = await self.store.get(name)
            if data is not None and (seq := snapshot.seq_of(data)):
                return seq
        return 0

    async def bounds(self) -> tuple[Place, Place]:
        """Return the oldest and the present moment. Raises Unavailable."""
        cluster, oldest = self._present().cluster, await self.oldest()
        if not cluster.seq:
            return Place(0, 0), Place(0, 0)
        last = Place(cluster.seq, time_of(cluster))
        return await self._first(oldest, last.seq), last

    async def place(self, seq: int, tenant: str) -> Place:
        """Return a commit with its time. Raises Problem 429 or 503."""
        oldest = await self.oldest()
        if seq <= oldest:
            return await self._first(oldest, self._present().seq)
        async with self.turns.take(tenant):
            found = await times.dated(self.entries, oldest, seq)
        return Place(seq, found.at_ns if found is not None else 0)

    async def _first(self, oldest: int, last: int) -> Place:
        """Return the oldest commit, with the time of the first one of the control plane there."""
        if self._first_place.seq != oldest or not self._first_place.at_ns:
            self._first_place = await self._dated_first(oldest, last)
        return self._first_place

    async def _dated_first(self, oldest: int, last: int) -> Place:
        async with aclosing(
            self.entries.scan(oldest if oldest > 1 else 0, min(last, oldest + times.WINDOW_MAX))
        ) as slices:
            async for piece in slices:
                for entry in piece:
                    found = times.dated_entry(entry)
                    if found is not None:
                        return Place(oldest, found.at_ns)
        return Place(oldest, 0)

    async def _too_old(self, text: str, oldest: int, last: int) -> Problem:
        first = await self._first(oldest, last)
        detail = (
            f"at: {text[:64]} is before the oldest moment of this cluster, commit {first.seq} "
            f"({rfc3339(first.at_ns) or 'time not known'}), because the log before it was trimmed "
            "or there is none: ask for a later moment, or read older facts with `muster log`"
        )
        return Problem(410, detail, oldest={"seq": first.seq, "at": rfc3339(first.at_ns)})

    def _present(self) -> Moment:
        assert self.present is not None  # set with the gateway's state
        return self.present
