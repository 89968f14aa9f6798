"""A search for the moment of a time is bounded per tenant, and the oldest moment costs no whole
snapshot.
"""

import asyncio

import pytest

from libs.common import facts as f
from libs.common.process.clock import SystemClock
from libs.common.transport import snapshot
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import (
    BASE_HEAD_OBJECT,
    BASE_OBJECT,
    MemorySnapshots,
)
from services.api_gateway.moments.moments import Moments
from services.api_gateway.moments.places import Places
from services.api_gateway.moments.turns import SEARCHES
from services.api_gateway.problems import Problem
from services.api_gateway.times import rfc3339
from services.api_gateway.views.entries import Entries
from tests.integration.test_past_moments import folded, present_of
from tests.unit.test_snapshot import history


class SlowLog(MemoryLog):
    """A log whose single entries arrive only when the test lets them."""

    def __init__(self, stream: MemoryStream) -> None:
        super().__init__(stream)
        self.gate = asyncio.Event()
        self.asked = 0

    async def get(self, seq: int) -> Entry | None:
        self.asked += 1
        await self.gate.wait()
        return await super().get(seq)


def places_of(log: MemoryLog, store: MemorySnapshots, wait_s: float = 30.0) -> Places:
    entries = Entries(log, MemoryBus())
    moments = Moments(entries, store, SystemClock(), bytes_max=1 << 20, wait_s=wait_s)
    last = len(log.stream.entries)
    moments.places.present = present_of(moments, folded(log.stream, last))
    return moments.places


def recorded_stream() -> MemoryStream:
    stream = MemoryStream()
    for subject, commit in history(1).log:
        last = stream.last_by_subject.get(subject)
        stream.store(subject, f.encode(commit), last.seq if last else 0)
    return stream


async def test_searches_by_time_are_bounded_by_tenant_and_delay_no_other_tenant() -> None:
    log = SlowLog(recorded_stream())
    places = places_of(log, MemorySnapshots())
    now = rfc3339(SystemClock().wall_ns())
    greedy = [asyncio.create_task(places.seq_of(now, "greedy")) for _ in range(SEARCHES.per_tenant)]
    while not log.asked:
        await asyncio.sleep(0)
    with pytest.raises(Problem, match="tenant greedy waits for 16 times in the log") as problem:
        await places.seq_of(now, "greedy")
    assert problem.value.status == 429
    quiet = asyncio.create_task(places.seq_of(now, "quiet"))
    while log.asked < 2:
        await asyncio.sleep(0)
    log.gate.set()
    found = await quiet
    assert not all(task.done() for task in greedy), "the other tenant went first"
    assert set(await asyncio.gather(*greedy)) == {found}


async def test_a_search_that_takes_too_long_is_ended_with_the_reason() -> None:
    places = places_of(SlowLog(recorded_stream()), MemorySnapshots(), wait_s=0.01)
    with pytest.raises(Problem, match="was not found within") as problem:
        await places.seq_of(rfc3339(SystemClock().wall_ns()), "t")
    assert problem.value.status == 503
    assert not places.turns.running


class WatchedSnapshots(MemorySnapshots):
    """Snapshots that note which objects were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, name: str) -> bytes | None:
        self.read.append(name)
        return await super().get(name)


async def test_the_oldest_moment_is_read_without_the_state_of_the_snapshot() -> None:
    stream, store = recorded_stream(), WatchedSnapshots()
    base = snapshot.encode(folded(stream, 7))
    await store.put(BASE_OBJECT, base)
    assert await places_of(MemoryLog(stream), store).oldest() == 7
    assert store.read == [BASE_HEAD_OBJECT, BASE_OBJECT], "an earlier version stored no head"
    await store.put(BASE_HEAD_OBJECT, snapshot.head(base))
    assert len(store.objects[BASE_HEAD_OBJECT]) < 128
    store.read.clear()
    assert await places_of(MemoryLog(stream), store).oldest() == 7
    assert store.read == [BASE_HEAD_OBJECT]
