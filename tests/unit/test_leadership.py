"""What a leader says of itself, and the thread in which it says it."""

import asyncio
import threading

import pytest

from libs.common.errors import Unavailable
from libs.common.leadership.beside import in_thread
from libs.common.leadership.leading import (
    CUT_OFF_TERMS,
    HANGS_TERMS,
    UNRENEWED_TERMS,
    Leading,
    ask_first,
)
from libs.common.transport.bus_memory import MemoryBus

TERM_MS = 1_000
TERM_NS = TERM_MS * 1_000_000


class Hand:
    """A clock that is moved by hand."""

    now = 1_000 * TERM_NS

    def boot_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now


def leading(clock: Hand) -> Leading:
    found = Leading("scheduler", clock, TERM_MS)
    found.begin(epoch=7, renewed=clock.now)
    return found


def test_a_process_without_a_term_gives_no_sign_of_life() -> None:
    assert not Leading("scheduler", Hand(), TERM_MS).is_useful()


def test_leader_whose_main_loop_hangs_is_of_no_use() -> None:
    clock = Hand()
    leader = leading(clock)
    clock.now += HANGS_TERMS * TERM_NS - 1
    assert leader.is_useful()
    clock.now += 1
    assert not leader.is_useful()
    leader.beat()
    assert leader.is_useful()


def test_leader_whose_renewals_fail_is_of_use_for_as_long_as_an_election_takes() -> None:
    clock = Hand()
    leader = leading(clock)
    for _ in range(UNRENEWED_TERMS):
        assert leader.is_useful()
        clock.now += TERM_NS
        leader.beat()
    assert not leader.is_useful()
    leader.renewed_at(clock.now)
    assert leader.is_useful() and leader.renewals == 1


async def test_leader_whose_first_connection_is_cut_off_from_the_second_is_of_no_use() -> None:
    clock, bus = Hand(), MemoryBus()
    leader = leading(clock)
    asking = asyncio.create_task(ask_first(leader, bus))
    await asyncio.sleep(0)
    clock.now += CUT_OFF_TERMS * TERM_NS
    leader.beat()
    assert not leader.is_useful()
    await leader.listen(bus)
    async with asyncio.timeout(10):
        while not leader.is_useful():
            await asyncio.sleep(0.01)
    asking.cancel()


async def test_work_beside_goes_on_while_the_main_loop_is_busy() -> None:
    seen, begun = list[int](), threading.Event()

    async def work() -> None:
        begun.set()
        while True:
            seen.append(threading.get_ident())
            await asyncio.sleep(0.001)

    beside = asyncio.create_task(in_thread(work, "work"))
    await asyncio.sleep(0)
    assert begun.wait(5)  # the main loop stands still, and the work begins
    before = len(seen)
    while len(seen) < before + 10:
        sum(range(1_000))
    assert set(seen).isdisjoint({threading.get_ident()})
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    after = len(seen)
    await asyncio.sleep(0.05)
    assert len(seen) == after


async def test_an_error_of_the_work_ends_the_process_and_so_does_its_return() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    async def returns() -> None:
        return

    with pytest.raises(ValueError, match="broken"):
        await in_thread(fails, "work")
    with pytest.raises(Unavailable, match="the thread work ended"):
        await in_thread(returns, "work")
