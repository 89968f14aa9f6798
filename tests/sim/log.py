"""The simulated log: `MemoryStream` as the one store, and each process's own faulty way to it.

A kill between decide and append, an answer that is lost, an append that arrives long after its
writer gave it up, a spurious refusal, a reader that lags: the faults are drawn from `weather.py`.
Rule: the stream itself never lies; only the ways to it do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from libs.common.errors import Corrupt, Unavailable
from libs.common.transport.log import AppendRefused, AppendUnknown, Entry, Extent
from libs.common.transport.log_memory import BATCH_MAX, MemoryStream
from libs.common.transport.snapshot_store import BASE_HEAD_OBJECT, BASE_OBJECT, MemorySnapshots
from tests.sim.loop import Process
from tests.sim.weather import Weather

HOP_S: Final = 0.0004
ANSWER_TIMEOUT_S: Final = 0.8
IDLE_S: Final = 0.5
# Time in which a process notices that a partition is over.
REJOINS_S: Final = 0.1
LAGGING_BATCH_MAX: Final = 2
LAGGING_READS: Final = 12
# The part of the commits that a server with a full disk keeps, although it answers with an error.
STORED_THOUGH_FULL: Final = 0.2


class SimStream(MemoryStream):
    """A stream that notifies the observer of each entry as it is stored, and wakes the readers that
    are caught up.

    `busy_s` is how long the reader of an entry folds it.
    """

    def __init__(self, observe: Callable[[Entry], None], busy_s: Mapping[int, float]) -> None:
        super().__init__()
        self.busy_s = busy_s
        self.observe = observe
        self.waiters: list[tuple[Process, asyncio.Future[None]]] = []
        # The disk of its servers is full until then (`deep.py`).
        self.full_until = 0.0

    def store(self, subject: str, data: bytes, expected: int) -> int:
        before = len(self.entries)
        seq = super().store(subject, data, expected)
        if len(self.entries) > before:
            self.observe(self.entries[-1])
            waiters, self.waiters = self.waiters, []
            for process, future in waiters:
                process.deliver(_resolve, future)
        return seq


class SimSnapshots(MemorySnapshots):
    """Snapshots on the disk of the log's servers."""

    def __init__(self, stream: SimStream) -> None:
        super().__init__()
        self.stream = stream
        self.watchers: list[Callable[[str, bytes], None]] = []

    async def put(self, name: str, data: bytes) -> None:
        if self.stream.full_until > asyncio.get_running_loop().time():
            raise Unavailable(f"{name} was not stored: no space left on the servers' disk")
        if name not in (BASE_OBJECT, BASE_HEAD_OBJECT):
            await asyncio.sleep(HOP_S)
        await super().put(name, data)
        for watch in self.watchers:
            watch(name, data)


class SimLog:
    """One process's handle to the log, dead when the process is.

    `acked` holds the appends that the log confirmed to this process.
    """

    def __init__(
        self,
        stream: SimStream,
        process: Process,
        weather: Weather,
        acked: list[tuple[int, str, bytes]],
    ) -> None:
        self.stream = stream
        self.process = process
        self.weather = weather
        self.acked = acked
        self.stalled_until = 0.0
        # The process is on the side of a partition without the log until then.
        self.apart_until = 0.0
        self.lagging_reads = 0

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        await self._hop()
        await self._append_fault(subject, data, expected)
        seq = self.stream.store(subject, data, expected)
        if self.weather.hit("append_twice", subject):
            assert self.stream.store(subject, data, expected) == seq
        if self.weather.hit("kill_after_store", subject):
            self.process.kill()
        await self._hop()
        if self.weather.hit("append_unknown_stored", subject):
            await self._no_answer(subject)
        self.acked.append((seq, subject, data))
        return seq

    async def last(self, subject: str) -> Entry | None:
        await self._hop()
        if self.weather.hit("log_silent", subject):
            await asyncio.sleep(ANSWER_TIMEOUT_S)
            raise Unavailable(f"the log did not answer about {subject}")
        return self.stream.last_by_subject.get(subject)

    async def get(self, seq: int) -> Entry | None:
        await self._hop()
        return self.stream.at(seq)

    async def bounds(self) -> tuple[int, int]:
        await self._hop()
        return self.stream.bounds()

    async def extent(self) -> Extent:
        await self._hop()
        return self.stream.extent()

    async def purge(self, keep: Mapping[str, int]) -> None:
        """Purge one subject at a time, so that a kill leaves the purge half done."""
        for subject, seq in keep.items():
            await self._hop()
            self.stream.purge({subject: seq})
            if self.weather.hit("kill_in_purge", subject):
                self.process.kill()
                self.process.check()

    async def read(self, after: int) -> AsyncIterator[list[Entry]]:
        if after > len(self.stream.entries):
            raise Corrupt(f"the log ends at {len(self.stream.entries)}, before {after}")
        while True:
            lagging = self._lags()
            await self._hop(
                self.weather.between(HOP_S, self.weather.rates.lag_max_s) if lagging else HOP_S
            )
            batch = self.stream.following(after, LAGGING_BATCH_MAX if lagging else BATCH_MAX)
            after += len(batch)
            if busy_s := sum(self.stream.busy_s.get(entry.seq, 0.0) for entry in batch):
                await self._hop(busy_s)
            yield batch
            if after == len(self.stream.entries):
                await self._growth()

    def _lags(self) -> bool:
        """A reader that begins to lag stays behind for a while: it sees a little, decides, and sees
        a little more.
        """
        if self.weather.hit("read_lag", self.process.name):
            self.lagging_reads = LAGGING_READS
        self.lagging_reads -= 1
        return self.lagging_reads > 0

    async def _append_fault(self, subject: str, data: bytes, expected: int) -> None:
        weather = self.weather
        if self.stream.full_until > asyncio.get_running_loop().time():
            await self._disk_full(subject, data, expected)
        if weather.hit("append_refused", subject):
            raise AppendRefused("spurious")
        if weather.hit("kill_before_store", subject):
            self.process.kill()
            self.process.check()
        if weather.hit("append_unknown_lost", subject):
            await self._no_answer(subject)
        if weather.hit("append_late", subject):
            delay_s = weather.between(0.0, weather.rates.late_max_s)
            asyncio.get_running_loop().call_later(
                delay_s, self._store_late, subject, data, expected
            )
            await self._no_answer(subject)

    async def _disk_full(self, subject: str, data: bytes, expected: int) -> None:
        """Answer with an error. A part of the commits is stored all the same: the server wrote them
        before it noticed, and keeps them.
        """
        self.weather.tell("append_on_full_disk", subject)
        if self.weather.between(0.0, 1.0) < STORED_THOUGH_FULL:
            self._store_late(subject, data, expected)
        await self._hop()
        raise AppendUnknown(f"{subject}: no space left on the servers' disk")

    def _store_late(self, subject: str, data: bytes, expected: int) -> None:
        """Store a message that was still on its way when its sender gave it up or died."""
        try:
            self.stream.store(subject, data, expected)
        except AppendRefused:
            self.weather.tell("late_append_refused", subject)

    async def _no_answer(self, subject: str) -> None:
        await asyncio.sleep(ANSWER_TIMEOUT_S)
        raise AppendUnknown(f"no answer for {subject}")

    async def _hop(self, delay_s: float = HOP_S) -> None:
        """Travel to the server or back; a stream election or a frozen server makes it long."""
        self.process.check()
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(delay_s, max(self.stalled_until, self.process.silent_until) - now))
        while self.apart_until > asyncio.get_running_loop().time():
            self.process.check()
            await asyncio.sleep(REJOINS_S)
        self.process.check()

    async def _growth(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.stream.waiters.append((self.process, future))
        timer = loop.call_later(IDLE_S, _resolve, future)
        try:
            await future
        finally:
            timer.cancel()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
