"""Turns go from tenant to tenant, and a round gives only so many."""

import asyncio

from services.api_gateway.access.fair_turns import BUDGET, SLICE, FairTurns


def waiting(turns: FairTurns, tenant: str, count: int, worth: int = 1) -> list[asyncio.Event]:
    events = [asyncio.Event() for _ in range(count)]
    for event in events:
        turns.put(tenant, event, worth)
    return events


def given(events: list[asyncio.Event]) -> int:
    """How many have had their turn; they are the first ones."""
    states = [event.is_set() for event in events]
    assert states == sorted(states, reverse=True)
    return sum(states)


async def test_a_tenant_with_little_work_does_not_wait_for_one_with_much() -> None:
    turns = FairTurns()
    greedy, quiet = waiting(turns, "greedy", 10_000), waiting(turns, "quiet", 3)
    turns.give()
    assert (given(greedy), given(quiet)) == (BUDGET - 3, 3)
    late = waiting(turns, "late", 1)
    turns.give()
    assert given(late) == 1 and given(greedy) == 2 * BUDGET - 4


async def test_heavy_work_takes_more_of_a_round() -> None:
    turns = FairTurns()
    heavy, light = waiting(turns, "heavy", 100, SLICE), waiting(turns, "light", 100)
    turns.give()
    assert given(heavy) * SLICE + given(light) >= BUDGET
    assert given(heavy) in range(1, BUDGET // SLICE + 2)


async def test_all_work_gets_its_turn() -> None:
    turns = FairTurns()
    running = asyncio.create_task(turns.run())
    events = [*waiting(turns, "a", 500), *waiting(turns, "b", 100)]
    async with asyncio.timeout(10):
        await asyncio.gather(*(event.wait() for event in events))
        await turns.turn("c", SLICE)
    assert not turns.queues
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
