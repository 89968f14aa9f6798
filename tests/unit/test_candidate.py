"""A follower takes over from the leader that it follows, and at nobody else's word."""

import asyncio

from libs.common import subjects
from libs.common.leadership.candidate import Candidate, hand_over
from libs.common.process.clock import SystemClock
from libs.common.transport.bus_memory import MemoryBus

LONG_MS = 60_000


async def test_a_follower_takes_over_only_for_the_term_that_it_follows() -> None:
    bus, clock, began = MemoryBus(), SystemClock(), asyncio.Event()
    follower = Candidate("scheduler", bus, clock, LONG_MS)
    follower.read(7, clock.wall_ns(), live=False)

    async def begin() -> int:
        began.set()
        return 8

    async def answer(_: str, __: bytes) -> bytes:
        return b"7"

    await bus.subscribe(subjects.ask_alive("scheduler"), answer)
    leading = asyncio.create_task(follower.lead(begin))
    while not follower.waits:
        await asyncio.sleep(0)
    for wrong in (6, 8):
        await hand_over("scheduler", bus, wrong)
    for old in (b"", b"7 "):
        await bus.publish(subjects.take_over("scheduler"), old)
    await bus.publish("ask.scheduler.take_over", b"7")
    await asyncio.sleep(0.05)
    assert not began.is_set()
    asked = asyncio.create_task(hand_over("scheduler", bus, 7))
    assert await asyncio.wait_for(leading, 5) == 8
    asked.cancel()
